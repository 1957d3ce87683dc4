"""A planner in a process of its own behaves like one in the brain, and may die."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from harness import INSTRUCTION, toy_system

from flashrt_ros.nodes.operator import Operator
from flashrt_ros.nodes.peers import PeerRefused
from flashrt_ros.nodes.runner import System

pytestmark = pytest.mark.xdist_group('ros')
Running = tuple[System, Operator]


@contextmanager
def apart(**brain: Any) -> Iterator[Running]:
    """Run a world whose second subgoal never ends, with subgoals that have to be renewed."""
    overrides = {
        'sim': {'env': 'toy_world:Slow-v0'},
        'supervisor': {'episode_max_ticks': 100000},
        'planner': {
            'skills': "['open the drawer', 'close the drawer']",
            'valid_ticks': 20,
            'subgoal_max_ticks': 0,
        },
        'brain': brain,
    }
    with toy_system(overrides, planner_apart=True) as (system, operator, _):
        yield system, operator


@pytest.fixture(scope='module')
def running() -> Iterator[Running]:
    """A system that holds when its planner falls silent."""
    with apart(subgoal_expired='hold') as it:
        yield it


def moves(operator: Operator, epoch: int) -> bool:
    """Wait until an action of ``epoch`` goes through the gate."""
    return operator.until(
        lambda: any(m.epoch == epoch and not m.held for _, m in operator.record.sent), 20.0
    )


def test_a_refusal_loses_nothing(running: Running) -> None:
    """What nobody understands is refused with the same sentence as in the brain."""
    _, operator = running
    with pytest.raises(PeerRefused, match='"make coffee" is no subgoal of this policy'):
        operator.start('make coffee')
    assert operator.episode is not None
    assert operator.episode.state == 'idle'


def test_the_plan_is_told_and_followed(running: Running) -> None:
    """The answer names the plan; the second subgoal follows the first."""
    _, operator = running
    answer = operator.start(INSTRUCTION, seed=3)
    assert answer.message.endswith('open the drawer, then close the drawer')
    assert operator.until(lambda: operator.generation() == 2, 30.0)


def test_an_interrupt_changes_no_subgoal(running: Running) -> None:
    """After a warm re-entry the robot moves under the subgoal, and the generation, it had."""
    _, operator = running
    operator.interrupt()
    epoch = operator.resume().epoch
    assert moves(operator, epoch)
    after = {m.generation for _, m in operator.record.sent if m.epoch == epoch and not m.held}
    assert after == {2}


def test_a_rollback_takes_the_planner_back(running: Running) -> None:
    """Back at the start, the first subgoal is posted again, and the second follows it again."""
    _, operator = running
    answer = operator.rollback(2)
    assert answer.boundary == 'episode-start'
    told = [m for _, m in operator.record.subgoals if m.epoch == answer.epoch]
    assert [m.index for m in told if m.status == 'posted'][:1] == [0]
    assert operator.until(
        lambda: any(
            m.index == 1 and m.status == 'posted' and m.epoch == answer.epoch
            for _, m in operator.record.subgoals
        ),
        30.0,
    )


def test_a_dead_planner_delays_nothing_and_its_subgoal_expires(running: Running) -> None:
    """Every tick has its command; after its lease the subgoal is held for, with a sentence."""
    system, operator = running
    missed = operator.state.missed_ticks if operator.state is not None else 0
    system.kill('planner')
    words = 'the subgoal has expired'
    assert operator.until(lambda: words in operator.record.sent[-1][1].reason, 20.0)
    sent = [m for _, m in operator.record.sent[-30:] if m.tick >= 0]
    ticks = [m.tick for m in sent]
    assert len(ticks) > 10
    if (
        operator.state is not None and operator.state.missed_ticks == missed
    ):  # else: a busy machine
        assert ticks == list(range(ticks[0], ticks[-1] + 1))


def test_what_comes_after_is_configured() -> None:
    """With a subgoal in words as the fallback, it is posted and the robot goes on."""
    with apart(subgoal_expired='open the drawer') as (system, operator):
        epoch = operator.start(INSTRUCTION, seed=3).epoch
        assert operator.until(lambda: operator.generation() == 2, 30.0)
        assert moves(operator, epoch)
        system.kill('planner')
        assert operator.until(
            lambda: any(m.generation == 3 and not m.held for _, m in operator.record.sent), 30.0
        )
        assert any('expired' in x and 'open the drawer' in x for x in system.lines('brain'))
