"""The language model's kernels compile ahead of time for sm_90 (H100 and H200), with no GPU here.

One file for each GPU: test workers take whole files.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip('triton', reason='the kernels are written in Triton')
sys.path.insert(0, str(Path(__file__).parent))
import lm_aot  # noqa: E402


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_kernels_compile_for_sm_90() -> None:
    """Every launch at a real model's dimensions compiles and fits the GPU's shared memory."""
    lm_aot.assert_compiles(90)
