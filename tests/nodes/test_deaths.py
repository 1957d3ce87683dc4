"""Whoever dies is noticed, and the gate outlives them all; in real time, where it counts."""

from __future__ import annotations

import time
from typing import Any

import pytest
from harness import INSTRUCTION, LONG, becomes, moves, moves_again, says, since, toy_system

from flashrt_ros.nodes.operator import Operator

pytestmark = pytest.mark.xdist_group('ros')
ENDLESS: dict[str, dict[str, Any]] = {
    'sim': {'env': 'toy_world:Endless-v0'},
    'brain': {'subgoal_max_ticks': 0},
    'supervisor': {'episode_max_ticks': 10**7},
}


def holds(operator: Operator, words: str) -> bool:
    """Wait until the gate sends a hold with ``words``."""
    seen = len(operator.record.sent)
    return operator.until(
        lambda: any(m.held and words in m.reason for _, m in operator.record.sent[seen:]), LONG
    )


def only_holds(operator: Operator, count: int = 3) -> bool:
    """Wait for some more of what the gate sends; whether none of it moves the robot."""
    now, record = time.time_ns(), operator.record
    assert operator.until(lambda: len(since(record.sent, now)) >= count, LONG)
    return all(m.held for m in since(record.sent, now))


def test_the_gate_notices_and_outlives_everybody() -> None:
    """Kill -9 of supervisor, brain and robot, one after the other: each is named, and held for."""
    with toy_system(ENDLESS, lockstep=False) as (system, operator, _):
        operator.start(INSTRUCTION)
        assert moves(operator)
        system.kill('supervisor')
        assert holds(operator, 'the supervisor gives no sign of life')
        system.kill('brain')
        assert says(system, operator, 'gate', 'hold: no command for')
        system.kill('sim')
        assert says(system, operator, 'gate', 'no state of the robot for more than')
        assert only_holds(operator)
        assert system.alive('gate')
        assert not system.alive('brain')  # the negative control


def test_a_gate_that_comes_back_is_not_trusted() -> None:
    """Kill -9 of the gate: started again it holds, the supervisor goes to fault; a reset helps."""
    with toy_system(ENDLESS, lockstep=False) as (system, operator, _):
        operator.start(INSTRUCTION)
        assert moves(operator)
        system.kill('gate')
        system.check()  # starts it again, as launch would
        assert becomes(operator, 'fault')
        assert operator.episode is not None
        reason = operator.episode.reason
        assert 'the gate was started anew' in reason or 'gate has been silent' in reason
        assert only_holds(operator)
        assert moves_again(operator)


def test_a_robot_that_dies_is_a_fault() -> None:
    """Kill -9 of the robot's driver: the supervisor says who is silent."""
    with toy_system(ENDLESS, lockstep=False) as (system, operator, _):
        operator.start(INSTRUCTION)
        assert moves(operator)
        system.kill('sim')
        assert becomes(operator, 'fault')
        assert operator.episode is not None
        assert operator.episode.reason.startswith('robot has been silent')
