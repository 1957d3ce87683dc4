"""The kernels of a round: right in the interpreter, compiled for the GPUs we name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip('triton', reason='the kernels are written in Triton')
HERE = Path(__file__).parent
SEED = '0'


def interpreted(code: list[str]) -> subprocess.CompletedProcess[str]:
    """Run Python in a process of its own where Triton interprets."""
    environment = {**os.environ, 'TRITON_INTERPRET': '1', 'PYTHONWARNINGS': 'ignore'}
    return subprocess.run(
        [sys.executable, *code], env=environment, capture_output=True, text=True, timeout=280
    )


@pytest.mark.parametrize('case', ['stream', 'delta', 'attention', 'head'])
def test_kernels_agree_with_their_references(case: str) -> None:
    """Over random trees, resumed or not, in a stream with room to spare: within 2e-5."""
    print('seed', SEED)
    done = interpreted([str(HERE / 'fork_kernel_cases.py'), 'cpu', 'float32', SEED, case])
    print(done.stdout)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert 'ok' in done.stdout


def test_a_branch_that_starts_from_nothing_fails_its_case() -> None:
    """The planted fault: a reference whose branches forget their trunk must not agree."""
    fault = (
        'import sys; sys.argv = ["cases", "cpu", "float32", "0", "delta"]; '
        f'sys.path.insert(0, {str(HERE)!r}); import torch, fork_kernel_cases as cases; '
        'inner = cases.fork_delta._Parts.step; '
        'cases.fork_delta._Parts.step = lambda self, chunks, state, out: '
        'inner(self, chunks, state.zero_() if len(chunks) != 1 else state, out); '
        'sys.exit(cases.main())'
    )
    done = interpreted(['-c', fault])
    assert done.returncode == 1 and 'FAIL' in done.stdout, done.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize('capability', [87, 90, 110, 121])
def test_kernels_compile_ahead_of_time(
    capability: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Every launch at a real model's dimensions compiles and fits the GPU's shared memory."""
    sys.path[:0] = [str(HERE), str(HERE.parent / 'policies_lm')]
    import fork_aot
    import lm_aot

    if capability == 110:
        ptxas = lm_aot.blackwell_ptxas()
        if ptxas is None:
            pytest.skip('no ptxas of CUDA 13 (pip install nvidia-cuda-nvcc): sm_110 needs it')
        monkeypatch.setenv('TRITON_PTXAS_BLACKWELL_PATH', ptxas)
    shared = lm_aot.SHARED[capability]
    for launch in fork_aot.launches(shared):
        compiled = lm_aot.compile_launch(launch, capability)
        name = f'{launch[0].fn.__name__} {launch[2]}'
        assert compiled.metadata.shared <= shared, f'{name}: {compiled.metadata.shared} bytes'
