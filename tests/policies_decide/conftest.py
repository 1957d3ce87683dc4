"""The tiny checkpoint and a decider over it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

if TYPE_CHECKING:
    from flashrt_policies.planner_lm.decide import Decider


@pytest.fixture(scope='session')
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the tiny checkpoint."""
    from decide_tiny import checkpoint

    return checkpoint(tmp_path_factory.mktemp('planner') / 'tiny')


@pytest.fixture
def decider(tiny: Path) -> Decider:
    """Return a decider over the tiny checkpoint."""
    from flashrt_policies.planner_lm.decide import open_decider

    return open_decider(tiny, capacity=1024, longest_round=1024)
