"""Whoever dies is noticed, and the gate outlives them all."""

from __future__ import annotations

import pytest
from harness import INSTRUCTION, toy_system

from flashrt_ros.nodes.operator import Operator
from flashrt_ros.nodes.runner import System

pytestmark = pytest.mark.xdist_group('ros')
ENDLESS = {
    'sim': {'env': 'toy_world:Endless-v0'},
    'brain': {'subgoal_max_ticks': 0},
    'supervisor': {'episode_max_ticks': 100000},
}


def state(operator: Operator) -> str:
    """Return the newest state of the episode."""
    return operator.episode.state if operator.episode is not None else ''


def moves(operator: Operator) -> bool:
    """Wait until an action goes through the gate that was not sent before."""
    seen = len(operator.record.sent)
    return operator.until(lambda: any(not m.held for _, m in operator.record.sent[seen:]), 20.0)


def holds(operator: Operator, words: str) -> bool:
    """Wait until the gate sends a hold with ``words``, and nothing else after it."""
    seen = len(operator.record.sent)
    return operator.until(
        lambda: any(m.held and words in m.reason for _, m in operator.record.sent[seen:]), 20.0
    )


def says(system: System, operator: Operator, node: str, words: str) -> bool:
    """Wait until ``node`` has logged ``words``."""
    for _ in range(400):
        if any(words in line for line in system.lines(node)):
            return True
        operator.until(lambda: False, 0.05)
    return False


def test_the_gate_notices_and_outlives_everybody() -> None:
    """Kill -9 of supervisor, brain and robot, one after the other: each is named, and held for."""
    with toy_system(ENDLESS) as (system, operator, _):
        operator.start(INSTRUCTION)
        assert moves(operator)
        system.kill('supervisor')
        assert holds(operator, 'the supervisor gives no sign of life')
        system.kill('brain')
        assert says(system, operator, 'gate', 'hold: no command for')
        system.kill('sim')
        assert says(system, operator, 'gate', 'no state of the robot for more than')
        seen = len(operator.record.sent)
        assert operator.until(lambda: len(operator.record.sent) > seen + 3, 10.0)
        assert all(m.held for _, m in operator.record.sent[seen:])
        assert system.alive('gate')
        assert not system.alive('brain')  # the negative control


def test_a_gate_that_comes_back_is_not_trusted() -> None:
    """Kill -9 of the gate: started again it holds, the supervisor goes to fault; a reset helps."""
    with toy_system(ENDLESS) as (system, operator, _):
        operator.start(INSTRUCTION)
        assert moves(operator)
        system.kill('gate')
        system.check()  # starts it again, as launch would
        assert operator.until(lambda: state(operator) == 'fault', 20.0)
        assert operator.episode is not None
        reason = operator.episode.reason
        assert 'the gate was started anew' in reason or 'gate has been silent' in reason
        seen = len(operator.record.sent)
        assert operator.until(lambda: len(operator.record.sent) > seen + 3, 20.0)
        assert all(m.held for _, m in operator.record.sent[seen:])
        operator.reset()
        assert moves(operator)


def test_a_robot_that_dies_is_a_fault() -> None:
    """Kill -9 of the robot's driver: the supervisor says who is silent."""
    with toy_system(ENDLESS) as (system, operator, _):
        operator.start(INSTRUCTION)
        assert moves(operator)
        system.kill('sim')
        assert operator.until(lambda: state(operator) == 'fault', 20.0)
        assert operator.episode is not None
        assert operator.episode.reason.startswith('robot has been silent')
