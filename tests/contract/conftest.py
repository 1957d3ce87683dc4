"""The conformance suite runs against every backend; one that is not there is skipped aloud."""

from __future__ import annotations

import pytest
import torch

from flashrt_ros.contract.context import Context

torch.set_num_threads(2)


@pytest.fixture(params=['cpu', pytest.param('cuda', marks=pytest.mark.cuda)])
def ctx(request: pytest.FixtureRequest) -> Context:
    """A fresh context on each backend."""
    if request.param == 'cuda' and not torch.cuda.is_available():
        pytest.skip('no CUDA device: the CUDA backend is not tested here')
    return Context(request.param)
