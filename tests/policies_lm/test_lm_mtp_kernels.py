"""On CUDA too a pass over drafts has the bits of single steps: its kernels in the interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip('triton', reason='the kernels are written in Triton')
# The interpreter takes a minute where nothing else runs, and much longer on a busy machine.
pytestmark = pytest.mark.timeout(1800)
SCRIPT = Path(__file__).parent / 'lm_verify_cases.py'


@pytest.mark.slow
@pytest.mark.parametrize('fault', [False, True])
def test_a_pass_over_drafts_has_the_bits_of_single_steps(fault: bool) -> None:
    """Hidden states, states after each row, keys and values; a state of another row shows."""
    environment = {**os.environ, 'TRITON_INTERPRET': '1', 'OMP_NUM_THREADS': '1'}
    call = [sys.executable, '-W', 'ignore', str(SCRIPT), *['--fault'] * fault]
    done = subprocess.run(call, env=environment, capture_output=True, text=True)
    print(done.stdout, done.stderr[-1000:])
    assert done.returncode == int(fault)
    assert ('state after row 1' in done.stdout) == fault
