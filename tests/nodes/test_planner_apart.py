"""A planner in a process of its own behaves like one in the brain, and may die. In real time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from brain_stand import brain_stand
from harness import INSTRUCTION, LONG, looked_for, moves, toy_system

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
        'supervisor': {'episode_max_ticks': 10**7},
        'planner': {
            'skills': "['open the drawer', 'close the drawer']",
            'valid_ticks': 20,
            'subgoal_max_ticks': 0,
        },
        'brain': brain,
    }
    with toy_system(overrides, planner_apart=True, lockstep=False) as (system, operator, _):
        yield system, operator


@pytest.fixture(scope='module')
def running() -> Iterator[Running]:
    """A system that holds when its planner falls silent."""
    with apart(subgoal_expired='hold') as it:
        yield it


def test_a_refusal_loses_nothing(running: Running) -> None:
    """What nobody understands is refused with the same sentence as in the brain."""
    _, operator = running
    with pytest.raises(PeerRefused, match='"make coffee" is no subgoal of this policy'):
        operator.start('make coffee')
    assert operator.until(lambda: operator.episode is not None, LONG)
    assert operator.episode is not None
    assert operator.episode.state == 'idle'


def test_the_plan_is_told_and_followed(running: Running) -> None:
    """The answer names the plan; the second subgoal follows the first."""
    _, operator = running
    answer = operator.start(INSTRUCTION, seed=3)
    assert answer.message.endswith('open the drawer, then close the drawer')
    assert operator.until(lambda: under(operator, 2, answer.epoch), LONG)


def under(operator: Operator, generation: int, epoch: int) -> bool:
    """Whether an action of ``epoch`` has been sent under the subgoal of ``generation``."""
    sent = (m for _, m in operator.record.sent if m.epoch == epoch and not m.held)
    return any(m.generation == generation for m in sent)


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

    def posted() -> list[int]:
        told = [m for _, m in operator.record.subgoals if m.epoch == answer.epoch]
        return [m.index for m in told if m.status == 'posted']

    assert operator.until(lambda: len(posted()) == 2, LONG)
    assert posted() == [0, 1]


def test_a_dead_planner_is_held_for(running: Running) -> None:
    """The robot's ticks go on; after its lease the subgoal is held for, with a sentence."""
    system, operator = running
    system.kill('planner')
    assert operator.state is not None
    tick = operator.state.tick
    words = 'the subgoal has expired'
    assert operator.until(lambda: words in operator.record.sent[-1][1].reason, LONG)
    assert operator.until(operator.ticked(tick + 20), LONG)


def test_a_silent_planner_delays_no_tick() -> None:
    """Without another word each tick is answered, up to the lease and after it."""
    with brain_stand() as stand:
        stand.begin(valid_ticks=20)
        heard = stand.operator.record.chunks
        assert stand.until(lambda _: bool(heard))  # the policy has the subgoal
        sent = [stand.answered() for _ in range(40)]
    assert None not in sent
    expired = [m is not None and 'the subgoal has expired at tick' in m.reason for m in sent]
    assert expired == sorted(expired)
    assert expired[-1]
    assert stand.tick - sum(expired) >= 19  # no tick before the twentieth


def test_what_comes_after_is_configured() -> None:
    """With a subgoal in words as the fallback, it is posted and the robot goes on."""
    with apart(subgoal_expired='open the drawer') as (system, operator):
        epoch = operator.start(INSTRUCTION, seed=3).epoch
        assert operator.until(lambda: operator.generation() == 2, LONG)
        assert moves(operator, epoch)
        system.kill('planner')
        assert operator.until(
            lambda: any(m.generation == 3 and not m.held for _, m in operator.record.sent), LONG
        )

        def said() -> bool:
            return any('expired' in x and 'open the drawer' in x for x in system.lines('brain'))

        assert looked_for(operator, said)
