"""Starts the system as the runner would, over the toy world and the toy policy.

Most tests run in lockstep: the world waits for the brain, so nothing depends on how fast a machine
is. What is about real time runs slowly, with limits in seconds that only a machine that hangs
exceeds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from flashrt_ros.nodes.convert import key
from flashrt_ros.nodes.lifecycle import Lifecycle
from flashrt_ros.nodes.operator import Operator
from flashrt_ros.nodes.runner import System, free_domain
from flashrt_ros.nodes.system import Process, processes

HERE = Path(__file__).resolve().parent
INSTRUCTION = 'open the drawer, then close it'
LONG = 120.0  # seconds: the upper bound of whatever is waited for
RULES = {'planner': 'rules'}  # the toy world's facts are none that a model was taught
TOY = {'sim': {'env': 'toy_world:Toy-v0'}, 'brain': RULES, 'planner': RULES}
REAL_TIME = {
    'sim': {'control_hz': 10.0, 'grace_s': 0.05},
    'gate': {'silence_s': 2.0, 'robot_silence_s': 5.0},
    'brain': {'delay': 1, 'max_age_s': 60.0},
    'supervisor': {
        'answer_timeout_s': LONG,
        'confirm_timeout_s': LONG,
        'reentry_timeout_s': LONG,
        'peer_timeout_s': 8.0,
    },
}
Overrides = Mapping[str, Mapping[str, Any]]


def table(
    planner_apart: bool = False,
    robot: str = '',
    recorder: bool = False,
    brain: str = 'toy_brain.py',
    lockstep: bool = True,
) -> list[Process]:
    """Return the processes: the toy policy in the brain, ``robot`` as simulator."""
    others = {'brain': 'toy_policy_node.py' if planner_apart else brain, 'sim': robot}
    whole = processes(planner_apart=planner_apart, recorder=recorder, lockstep=lockstep)
    return [
        replace(p, executable=str(HERE / others[p.node])) if others.get(p.node) else p
        for p in whole
    ]


def merged(*layers: Overrides) -> dict[str, dict[str, Any]]:
    """Return parameters by node, those of later layers over those of earlier ones."""
    found: dict[str, dict[str, Any]] = {}
    for layer in layers:
        for node, values in layer.items():
            found.setdefault(node, {}).update(values)
    return found


@contextmanager
def toy_environment() -> Iterator[None]:
    """Let the processes find the toy world."""
    path = os.environ.get('PYTHONPATH', '')
    os.environ['PYTHONPATH'] = os.pathsep.join(filter(None, [str(HERE), path]))
    try:
        yield
    finally:
        os.environ['PYTHONPATH'] = path


@contextmanager
def toy_system(
    overrides: Overrides | None = None,
    planner_apart: bool = False,
    robot: str = '',
    recorder: bool = False,
    brain: str = 'toy_brain.py',
    lockstep: bool = True,
) -> Iterator[tuple[System, Operator, Lifecycle]]:
    """Run a whole system in a domain of its own, up and active."""
    domain = free_domain()
    params = merged(TOY, {} if lockstep else REAL_TIME, overrides or {})
    whole = table(planner_apart, robot, recorder, brain, lockstep)
    with (
        toy_environment(),
        System(whole, params, domain) as system,
        Operator(domain, patience=LONG) as operator,
    ):
        lifecycle = Lifecycle(operator.node, system.check)
        lifecycle.bring_up([p.node for p in system.processes], LONG)
        yield system, operator, lifecycle


def ended(operator: Operator, number: int) -> bool:
    """Wait until episode ``number`` is over."""
    return operator.until(lambda: operator.ended(number), LONG)


def becomes(operator: Operator, state: str) -> bool:
    """Wait until the episode's state is ``state``."""
    return operator.until(lambda: state_of(operator) == state, LONG)


def state_of(operator: Operator) -> str:
    """Return the newest state of the episode."""
    return operator.episode.state if operator.episode is not None else ''


def moves(operator: Operator, epoch: int = 0) -> bool:
    """Wait until an action, of ``epoch`` or a new one, goes through the gate."""
    now = 0 if epoch else time.time_ns()

    def moving() -> bool:
        return any(not m.held and epoch in (0, m.epoch) for m in since(operator.record.sent, now))

    return operator.until(moving, LONG)


def since(record: list[tuple[float, Any]], nanoseconds: int) -> list[Any]:
    """Return what was sent after ``nanoseconds`` of ROS time, by its own stamp.

    When a message reached this process says nothing: a busy one reads what was sent long ago.
    """
    return [m for _, m in record if key(m.header.stamp) > nanoseconds]


def moves_again(operator: Operator) -> bool:
    """Reset until the robot moves; what was wrong may go on being seen for a moment."""
    for _ in range(20):
        epoch = operator.reset().epoch

        def over(epoch: int = epoch) -> bool:
            now = operator.episode
            fault = now is not None and now.epoch > epoch and now.state == 'fault'
            return fault or moved(operator, epoch)

        assert operator.until(over, LONG)
        if moved(operator, epoch):
            return True
    return False


def moved(operator: Operator, epoch: int) -> bool:
    """Whether an action of ``epoch`` has gone through the gate."""
    return any(m.epoch == epoch and not m.held for _, m in operator.record.sent)


def says(system: System, operator: Operator, node: str, words: str) -> bool:
    """Wait until ``node`` has logged ``words``."""
    return looked_for(operator, lambda: any(words in line for line in system.lines(node)))


def looked_for(operator: Operator, holds: Any) -> bool:
    """Wait until ``holds()``, for what no message tells of."""
    for _ in range(int(LONG / 0.05)):
        if holds():
            return True
        operator.until(lambda: False, 0.05)
    return False
