"""Lockstep: the world waits for a slow brain. Real time: what it does not serve is missed."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from harness import HERE, INSTRUCTION, ended, toy_system
from slow_brain import SLOW
from toy_world import CLOSED_AT, STALL, STALL_S, ToyWorld

from flashrt_ros.contract.context import Context
from flashrt_ros.control.actor import Actor
from flashrt_ros.control.guards import Guards
from flashrt_ros.control.mailbox import Mailbox
from flashrt_ros.control.planner import NEXT, Facts, ScriptedPlanner
from flashrt_ros.control.types import Observation
from flashrt_ros.nodes.demo import figures
from flashrt_ros.nodes.demo.story import Told

sys.path.insert(0, str(HERE.parent / 'control'))
pytestmark = pytest.mark.xdist_group('ros')


def plain_loop(seed: int) -> list[tuple[bytes, bytes]]:
    """Return each tick's command and world, as bytes, of the same episode without any ROS."""
    from toy_policy import ToyPolicy

    ctx = Context('cpu')
    mailbox = Mailbox(ctx)
    policy = ToyPolicy(ctx, mailbox.port)
    actor = Actor(ctx, policy, mailbox, Guards.of(policy.spec))
    planner = ScriptedPlanner(policy.spec.skills)
    world, found = ToyWorld(), []
    actor.start(1, 1, seed)
    actor.post(planner.start(INSTRUCTION)[0])
    seen, info = world.reset(seed=seed)
    for tick in range(CLOSED_AT):
        decision = planner.decide(tick, Facts(info['subgoals']))
        if decision.kind == NEXT:
            actor.post(decision.subgoal, tick)
        if actor.wants(tick):
            actor.infer(Observation(seen['pixels'], seen['agent_pos'], tick, 1, 1))
        command = actor.act(tick)
        state = world.get_state().tobytes() + seen['agent_pos'].tobytes()
        words = f'|{command.generation}|{command.held}|{command.reason}'.encode()
        found.append((command.action.tobytes() + words, state))
        seen, *_, info = world.step(command.action)
    return found


def test_a_slow_brain_gives_the_same_episode() -> None:
    """Four processes, a brain that stalls: command for command the plain loop's, none missed."""
    with toy_system({'sim': {'control_hz': 50.0}}, brain='slow_brain.py') as (_, operator, _):
        start = operator.start(INSTRUCTION, seed=3)
        assert ended(operator, start.episode)
        told = Told(operator.record, epochs=[start.epoch])
        ran = figures.moments(told, 1)
        missed = max(m.missed_ticks for _, m in operator.record.states)
    wanted = plain_loop(seed=3)
    assert [(ran[t].command, ran[t].world) for t in range(CLOSED_AT)] == wanted
    assert missed == 0
    assert plain_loop(seed=4) != wanted  # negative control


def test_real_time_misses_and_never_makes_up() -> None:
    """The same brain, and a world that stalls: such ticks are held or skipped, and counted."""
    with toy_system(
        {'sim': {'env': 'toy_world:Stalling-v0'}}, brain='slow_brain.py', lockstep=False
    ) as (_, operator, _):
        start = operator.start(INSTRUCTION, seed=3)
        assert ended(operator, start.episode)
        states = [m for _, m in operator.record.states if m.epoch == start.epoch]
    first = {m.tick: m for m in reversed(states)}
    assert sorted(first) == list(range(max(first) + 1))  # one after the other, each its own
    late = first[min(SLOW) + 1]  # the world after the first tick that had no answer in time
    assert late.held
    assert late.missed_ticks > 0
    assert late.hold_reason == f'no command for tick {min(SLOW)}'
    missed = np.array([first[tick].missed_ticks for tick in sorted(first)])
    assert (np.diff(missed) >= 0).all()
    skipped = int(STALL_S * 10) - 2  # at least, of those at 10 Hz
    assert missed[STALL + 2] - missed[STALL] >= skipped
