"""assert_complete: passes for a closure that is right, and names what is wrong with others."""

from __future__ import annotations

from typing import Any

import pytest

from flashrt_ros.capsule.completeness import assert_complete
from flashrt_ros.capsule.errors import IncompleteError
from flashrt_ros.contract.context import Context


def test_a_complete_closure_passes_and_stays_as_it_was(brain: Any) -> None:
    """Every entry is needed; scratch memory outside the closure is not missed."""
    session = brain.session()
    then = brain.bytes()
    report = assert_complete(session, brain.step, steps=4, constant=['weight'])
    assert sorted(report.needed) == ['count', 'flags', 'keys', 'odd', 'queue', 'state']
    assert report.superfluous == report.missing == []
    assert brain.bytes() == then


def test_a_missing_buffer_is_named(ctx: Context, make_brain: Any) -> None:
    """Planted fault: the counter is not in the closure."""
    brain = make_brain(ctx, complete=False)
    for _ in range(3):
        brain.step()
    with pytest.raises(IncompleteError, match="misses 'count'"):
        assert_complete(brain.session(), brain.step, constant=['weight'])


def test_missing_host_state_is_suspected(ctx: Context, make_brain: Any) -> None:
    """Planted fault: something outside buffers; it cannot be named, and that is said."""
    brain = make_brain(ctx)
    for _ in range(3):
        brain.step()
    secret = [0]

    def step() -> dict[str, object]:
        secret[0] += 1
        return {**brain.step(), 'secret': secret[0]}

    with pytest.raises(IncompleteError, match='a host entry'):
        assert_complete(brain.session(), step, constant=['weight'])


def test_a_superfluous_buffer_is_named(ctx: Context, make_brain: Any) -> None:
    """Planted fault: scratch memory in the closure. It can be listed as known."""
    brain = make_brain(ctx)
    brain.closure.fixed(brain.scratch)
    for _ in range(3):
        brain.step()
    session = brain.session()
    with pytest.raises(IncompleteError, match="names 'scratch'"):
        assert_complete(session, brain.step, steps=4, constant=['weight'])
    report = assert_complete(
        session, brain.step, steps=4, constant=['weight'], superfluous=['scratch']
    )
    assert report.superfluous == ['scratch']


def test_dropping_any_entry_is_noticed(brain: Any) -> None:
    """The check itself: with a disturbance of one's own it needs every entry as well."""
    session = brain.session()

    def other_episode() -> None:
        for _ in range(7):
            brain.step()
        brain.state.tensor.mul_(-0.3)
        brain.flags.tensor.add_(3)
        brain.keys.tensor.mul_(-1)
        brain.odd.tensor.add_(5)

    report = assert_complete(session, brain.step, steps=4, disturb=other_episode)
    assert len(report.needed) == 6


def test_a_step_must_return_something(brain: Any) -> None:
    """Planted fault: nothing to compare."""
    with pytest.raises(IncompleteError, match='return the outputs'):
        assert_complete(brain.session(), lambda: None)
