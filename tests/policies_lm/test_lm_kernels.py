"""The language model's kernels are right, in Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip('triton', reason='the kernels are written in Triton')
# The interpreter takes a minute where nothing else runs, and much longer on a busy machine.
pytestmark = pytest.mark.timeout(1800)
HERE = Path(__file__).parent
CASES = ('norms', 'activation', 'products', 'delta', 'attention', 'tokens', 'decode', 'prefill')


def interpreted(*args: str) -> subprocess.CompletedProcess[str]:
    """Run the cases in Triton's interpreter, in a process of its own."""
    environment = {**os.environ, 'TRITON_INTERPRET': '1', 'PYTHONWARNINGS': 'ignore'}
    return subprocess.run(
        [sys.executable, str(HERE / 'lm_kernel_cases.py'), *args],
        env=environment, capture_output=True, text=True,
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
        [sys.executable, '-c', fault], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 1 and 'FAIL' in done.stdout, done.stderr[-2000:]
