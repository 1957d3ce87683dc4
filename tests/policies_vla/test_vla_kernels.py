"""The kernels of the VLA policies: right in the interpreter, compiled for the GPUs we name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from flashrt_policies.kernels.vla.matrix import quantised
from flashrt_policies.vla.sizes import FULL

pytest.importorskip('triton', reason='the kernels are written in Triton')
# The interpreter takes a minute where nothing else runs, and much longer on a busy machine.
pytestmark = pytest.mark.timeout(1800)
HERE = Path(__file__).parent
CASES = (
    'norms', 'rotations', 'attention', 'products', 'heads', 'steps', 'stacks', 'frames', 'draws',
)  # fmt: skip


def interpreted(code: str, *args: str) -> subprocess.CompletedProcess[str]:
    """Run the cases in Triton's interpreter, in a process of its own."""
    environment = {**os.environ, 'TRITON_INTERPRET': '1', 'PYTHONWARNINGS': 'ignore'}
    command = [sys.executable, *(['-c', code] if code else [str(HERE / 'vla_kernel_cases.py')])]
    return subprocess.run([*command, *args], env=environment, capture_output=True, text=True)


def test_kernels_agree_with_float64_in_the_interpreter() -> None:
    """Every kernel, over odd shapes, within 2e-5 of the largest value."""
    done = interpreted('', 'cpu', 'float32', '0', *CASES)
    print(done.stdout)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert all(f'ok {case}:' in done.stdout for case in CASES)


def test_a_broken_kernel_fails_its_case() -> None:
    """The planted fault: a reference with another guidance weight, and the step must not pass."""
    fault = (
        'import sys; sys.argv = ["cases", "cpu", "float32", "0", "steps"]; '
        f'sys.path.insert(0, {str(HERE)!r}); import vla_kernel_cases as cases; '
        'cases.PULL += 0.1; sys.exit(cases.main())'
    )
    done = interpreted(fault)
    assert done.returncode == 1 and 'FAIL' in done.stdout, done.stderr[-2000:]


def test_float8_keeps_each_row_within_its_own_steps() -> None:
    """A row's largest number is exact to its type; no error is above a sixteenth of the number.

    Rows of very different magnitude keep their own precision: the scale is per channel.
    """
    seed = 5
    print(f'seed {seed}')
    weight = torch.randn(8, 64, generator=torch.Generator().manual_seed(seed))
    weight *= torch.logspace(-6, 6, 8)[:, None]
    matrix = quantised(weight)
    assert matrix.data.dtype == torch.float8_e4m3fn and matrix.scale is not None
    off = (matrix.dense(torch.float32) - weight).abs()
    floor = weight.abs().amax(1, keepdim=True) * 2**-9 / 448 * 2
    assert bool((off <= weight.abs() / 16 + floor).all())
    shared = (weight / weight.abs().max() * 448).to(torch.float8_e4m3fn).float()
    lost = (shared * weight.abs().max() / 448 - weight).abs()
    assert bool((lost[0] > weight[0].abs() / 2).any()), 'one scale for all would do as well'


def test_tiles_of_128_columns_want_several_tiles_of_rows() -> None:
    """The fifty rows of a step take narrower ones, however many columns there are."""
    from flashrt_policies.kernels.vla import linear_triton as kernels

    like = torch.empty(0)
    for end in ('gated', 'heads'):
        assert kernels._tile(kernels.ROWS, 8192, 1024, end, like) == (64, 1)
        assert kernels._tile(kernels.ROWS + 1, 8192, 1024, end, like) == (128, 1)


# Launches of one Euler step for every layer, and beside these: into the stack, and out of it with
# the step itself; π0 puts its state's token in front.
STEP = {'pi05': (6, 2, 0), 'pi0': (6, 3, 1), 'smolvla': (5, 3, 0)}


@pytest.mark.parametrize('family', STEP)
def test_a_step_is_few_launches_a_layer(family: str) -> None:
    """At full size nothing else stands in the chain of a step: it is what a chunk's time is."""
    import vla_aot

    kernels, torches = vla_aot.step_launches(family)
    layers = FULL[family].expert.layers
    each, ours, theirs = STEP[family]
    assert (sum(kernels.values()), torches) == (each * layers + ours, theirs), kernels


def test_a_launch_more_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: an activation behind its product, and a layer has a launch more."""
    import vla_aot

    from flashrt_policies.kernels.vla import norm_triton as vla_norm_triton
    from flashrt_policies.vla import expert

    plain = expert.project_gated

    def apart(*args: Any) -> torch.Tensor:
        vla_norm_triton.gated(torch.cat((args[0].x, args[0].x), dim=1), 'silu')
        return plain(*args)

    monkeypatch.setattr(expert, 'project_gated', apart)
    kernels, torches = vla_aot.step_launches('smolvla')
    layers = FULL['smolvla'].expert.layers
    assert (kernels['gated_kernel'], torches) == (layers, layers)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize('capability', [87, 90, 110, 121])
def test_kernels_compile_ahead_of_time(
    capability: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Every launch of the three families at full size compiles and fits the shared memory."""
    import vla_aot
    from lm_aot import SHARED, blackwell_ptxas, compile_launch

    if capability == 110:
        ptxas = blackwell_ptxas()
        if ptxas is None:
            pytest.skip('no ptxas of CUDA 13 (pip install nvidia-cuda-nvcc): sm_110 needs it')
        monkeypatch.setenv('TRITON_PTXAS_BLACKWELL_PATH', ptxas)
    shared = SHARED[capability]
    launches = vla_aot.launches(shared, capability >= vla_aot.FLOAT8_FROM, capability >= 90)
    for launch in launches:
        compiled = compile_launch(launch, capability)
        assert compiled.metadata.shared <= shared, launch[0].fn.__name__
        assert compiled.asm['ptx'], launch[0].fn.__name__
    assert len(launches) > 20
