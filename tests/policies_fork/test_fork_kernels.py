"""The kernels of a round: right in the interpreter, compiled for the GPUs we name."""

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
SEED = '0'


def interpreted(code: list[str]) -> subprocess.CompletedProcess[str]:
    """Run Python in a process of its own where Triton interprets."""
    environment = {**os.environ, 'TRITON_INTERPRET': '1', 'PYTHONWARNINGS': 'ignore'}
    return subprocess.run([sys.executable, *code], env=environment, capture_output=True, text=True)


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
        'cases.DELTA = cases.DELTA[:2]; inner = cases.fork_delta._Parts.step; '
        'cases.fork_delta._Parts.step = lambda self, chunks, state, out: '
        'inner(self, chunks, state if isinstance(chunks, slice) else state.zero_(), out); '
        'sys.exit(cases.main())'
    )
    done = interpreted(['-c', fault])
    assert done.returncode == 1 and 'FAIL' in done.stdout, done.stderr[-2000:]
