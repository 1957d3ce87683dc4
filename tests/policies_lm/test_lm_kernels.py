"""The language model's kernels: right in the interpreter, compiled for the GPUs we name."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip('triton', reason='the kernels are written in Triton')
HERE = Path(__file__).parent
CASES = ('norms', 'activation', 'products', 'delta', 'attention', 'tokens', 'decode', 'prefill')


def interpreted(*args: str) -> subprocess.CompletedProcess[str]:
    """Run the cases in Triton's interpreter, in a process of its own."""
    environment = {**os.environ, 'TRITON_INTERPRET': '1', 'PYTHONWARNINGS': 'ignore'}
    return subprocess.run(
        [sys.executable, str(HERE / 'lm_kernel_cases.py'), *args],
        env=environment, capture_output=True, text=True, timeout=280,
    )  # fmt: skip


@pytest.mark.parametrize('case', CASES)
def test_kernels_agree_with_float64_in_the_interpreter(case: str) -> None:
    """Every kernel, over odd shapes, within 2e-5 of the largest value."""
    done = interpreted('cpu', 'float32', '0', case)
    print(done.stdout)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert 'ok' in done.stdout


def test_a_broken_kernel_fails_its_case() -> None:
    """The planted fault: with the decay's sign turned, the delta cases must not pass."""
    fault = (
        'import sys; sys.argv = ["cases", "cpu", "float32", "0", "delta"]; '
        f'sys.path.insert(0, {str(HERE)!r}); import lm_kernel_cases as cases; '
        'truth = cases.delta_truth; cases.delta_truth = lambda p, w, s, c, decay, *rest: '
        'truth(p, w, s, c, -decay, *rest); sys.exit(cases.main())'
    )
    environment = {**os.environ, 'TRITON_INTERPRET': '1', 'PYTHONWARNINGS': 'ignore'}
    done = subprocess.run(
        [sys.executable, '-c', fault], env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 1 and 'FAIL' in done.stdout, done.stderr[-2000:]


def blackwell_ptxas() -> str | None:
    """Return an assembler of CUDA 13, which alone knows sm_110."""
    named = os.environ.get('TRITON_PTXAS_BLACKWELL_PATH')
    places = [Path(named)] if named else []
    places += [Path(p) / 'nvidia/cu13/bin/ptxas' for p in sys.path if p]
    found = next((str(p) for p in places if p.is_file()), None) or shutil.which('ptxas')
    if found is None:
        return None
    version = subprocess.run([found, '--version'], capture_output=True, text=True).stdout
    return found if 'release 13' in version else None


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize('capability', [87, 90, 110, 121])
def test_kernels_compile_ahead_of_time(
    capability: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Every launch at a real model's dimensions compiles and fits the GPU's shared memory."""
    sys.path.insert(0, str(HERE))
    import lm_aot

    if capability == 110:
        ptxas = blackwell_ptxas()
        if ptxas is None:
            pytest.skip('no ptxas of CUDA 13 (pip install nvidia-cuda-nvcc): sm_110 needs it')
        monkeypatch.setenv('TRITON_PTXAS_BLACKWELL_PATH', ptxas)
    shared = lm_aot.SHARED[capability]
    for launch in lm_aot.launches(shared):
        compiled = lm_aot.compile_launch(launch, capability)
        name = f'{launch[0].fn.__name__} {launch[2]}'
        assert compiled.metadata.shared <= shared, f'{name}: {compiled.metadata.shared} bytes'
