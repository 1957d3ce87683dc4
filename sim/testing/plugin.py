"""The fixtures, which pytest finds by the entry point of the package."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .link import Fault
    from .pair import Pair

KINDS = ('none', 'delayed', 'dropped', 'duplicated', 'late')


@pytest.fixture
def handoff() -> Callable[..., Pair]:
    """Makes a planner and an actor that exchange subgoals; its arguments are those of `Pair`."""

    def make(**options: Any) -> Pair:
        from .pair import Pair

        return Pair(**options)

    return make


@pytest.fixture(params=KINDS)
def subgoal_fault(request: pytest.FixtureRequest) -> Fault:
    """Each kind of fault in turn: a test that asks for it runs once for every one of them."""
    from .link import FAULTS

    return FAULTS[request.param]
