"""The kernels of a round compile ahead of time for the GPUs we name, with none of them here."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip('triton', reason='the kernels are written in Triton')
HERE = Path(__file__).parent


@pytest.mark.slow
@pytest.mark.timeout(3600)
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
    # Attention of the rows that are read differs in where a query stands: one GPU shows that.
    reads = (False, True) if capability == 90 else (False,)
    for launch in fork_aot.launches(shared, reads=reads):
        compiled = lm_aot.compile_launch(launch, capability)
        name = f'{launch[0].fn.__name__} {launch[2]}'
        assert compiled.metadata.shared <= shared, f'{name}: {compiled.metadata.shared} bytes'
