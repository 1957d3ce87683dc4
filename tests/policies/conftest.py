"""Tests of the policies run on one thread: small networks gain nothing from two."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # the helper modules beside the tests


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Run the test with one thread of torch."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
