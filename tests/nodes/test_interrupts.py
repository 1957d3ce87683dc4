"""Interrupts at random phases, refusals, the emergency stop, and the death of the brain."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import pytest
from harness import INSTRUCTION, toy_system
from std_msgs.msg import Bool
from std_srvs.srv import Trigger

from flashrt_interfaces.msg import ControlCommand
from flashrt_ros.nodes import names, qos
from flashrt_ros.nodes.lifecycle import Lifecycle
from flashrt_ros.nodes.operator import Operator
from flashrt_ros.nodes.peers import PeerRefused
from flashrt_ros.nodes.runner import System, SystemDied

pytestmark = pytest.mark.xdist_group('ros')
Running = tuple[System, Operator, Lifecycle]


@pytest.fixture(scope='module')
def running() -> Iterator[Running]:
    """A system whose episode never ends by itself, not started."""
    endless = {
        'sim': {'env': 'toy_world:Endless-v0'},
        'brain': {'subgoal_max_ticks': 0},
        'supervisor': {'episode_max_ticks': 100000},
    }
    with toy_system(endless) as running:
        yield running


def state(operator: Operator) -> str:
    """Return the newest state of the episode."""
    return operator.episode.state if operator.episode is not None else ''


def test_refusals_before_an_episode(running: Running) -> None:
    """Each request in the wrong state, or not understood, gets a sentence; nothing changes."""
    _, operator, _ = running
    for ask, words in (
        (operator.interrupt, 'cannot interrupt while idle: start an episode first'),
        (operator.resume, 'cannot resume while idle'),
        (operator.reset, "no capsule 'episode-start' of this robot; there is: none"),
        (lambda: operator.start('make coffee'), '"make coffee" is no subgoal of this policy'),
        (lambda: operator.start(''), 'the instruction is empty'),
    ):
        with pytest.raises(PeerRefused) as caught:
            ask()
        assert words in str(caught.value)
        assert '\n' not in str(caught.value)
    assert operator.until(lambda: state(operator) == 'idle', 5.0)
    assert operator.episode is not None
    assert (operator.episode.episode, operator.episode.epoch) == (0, 0)


def test_no_old_action_after_an_interrupt(running: Running) -> None:
    """20 interrupts at random phases: after the answer nothing older is sent or applied."""
    seed = random.randrange(2**32)
    print(f'seed {seed}')
    rng = random.Random(seed)
    _, operator, _ = running
    operator.start(INSTRUCTION)
    ticks = []
    for _ in range(20):
        moving = len(operator.record.sent) + 3
        assert operator.until(lambda n=moving: len(operator.record.sent) > n, 5.0)
        phase = rng.uniform(0.0, 0.1)
        operator.until(lambda: False, phase)  # any moment of a tick
        answer = operator.interrupt('test')
        at = time.monotonic()
        ticks.append(answer.ack_ticks)
        seen = len(operator.record.states) + 3
        assert operator.until(lambda n=seen: len(operator.record.states) > n, 5.0)
        sent = [m for t, m in operator.record.sent if t > at]
        states = [m for t, m in operator.record.states if t > at]
        assert [m.epoch for m in sent if m.epoch < answer.epoch and not m.held] == []
        assert all(m.applied_epoch >= answer.epoch for m in states)
        assert all(m.held for m in states)
        assert state(operator) == 'interrupted'
        assert operator.resume().epoch == answer.epoch + 1
    print('ack ticks', ticks)
    # One where the robot was about to begin its tick; a busy machine may add one once.
    assert sorted(ticks)[-2] <= 1


def test_refusals_while_running(running: Running) -> None:
    """A start while an episode runs is refused and the episode goes on; so is a resume."""
    _, operator, _ = running
    tick = operator.state.tick if operator.state else 0
    with pytest.raises(PeerRefused, match='cannot start while running: interrupt it first'):
        operator.start(INSTRUCTION)
    with pytest.raises(PeerRefused, match='cannot resume while running'):
        operator.resume()
    with pytest.raises(PeerRefused, match="no capsule 'yesterday' of this robot; there is: "):
        operator.reset('yesterday')
    assert state(operator) == 'running'
    assert operator.until(lambda: operator.state is not None and operator.state.tick > tick, 5.0)


def test_an_unreadable_instruction_loses_nothing(running: Running) -> None:
    """While interrupted it is refused, and the interrupted episode can still be resumed."""
    _, operator, _ = running
    operator.interrupt()
    with pytest.raises(PeerRefused, match='no subgoal of this policy'):
        operator.start('dance')
    assert state(operator) == 'interrupted'
    operator.resume()
    assert state(operator) in ('recovering', 'running')


def test_plain_triggers(running: Running) -> None:
    """std_srvs/Trigger interrupts and resets, for tools that know none of our types."""
    _, operator, _ = running
    assert operator.peers.call(names.PLAIN_INTERRUPT, Trigger.Request()).success
    before = operator.episode.episode if operator.episode else 0
    assert operator.peers.call(names.PLAIN_RESET, Trigger.Request()).success
    assert operator.until(
        lambda: (
            operator.episode is not None
            and (operator.episode.episode, operator.episode.state) == (before + 1, 'running')
        ),
        5.0,
    )


def test_emergency_stop_latches(running: Running) -> None:
    """The stop holds until it is released; an episode cannot go on before that."""
    _, operator, _ = running
    button = operator.node.create_publisher(Bool, names.EMERGENCY_STOP, qos.STATE)
    assert operator.until(lambda: button.get_subscription_count() > 0, 5.0)
    button.publish(Bool(data=True))

    def stopped() -> bool:
        return operator.state is not None and 'emergency stop' in operator.state.hold_reason

    assert operator.until(stopped, 5.0)
    operator.interrupt()
    with pytest.raises(PeerRefused, match='latched'):
        operator.resume()
    operator.peers.add(Trigger, names.GATE_RELEASE)
    operator.peers.call(names.GATE_RELEASE, Trigger.Request())
    operator.reset()
    moving = len(operator.record.sent)
    assert operator.until(lambda: any(not m.held for _, m in operator.record.sent[moving:]), 5.0)


def test_two_publishers_on_the_gated_topic(running: Running) -> None:
    """Somebody who talks to the robot past the gate: fault, and a sentence with both names."""
    _, operator, _ = running
    operator.reset()
    with Operator(operator.node.context.get_domain_id()) as rogue:
        rogue.node.create_publisher(ControlCommand, names.GATED, qos.STATE)
        assert operator.until(lambda: state(operator) == 'fault', 20.0)
        assert operator.episode is not None
        assert 'gate/command has 2 publishers (/gate, /operator)' in operator.episode.reason
    for _ in range(100):  # until the other one has left
        if operator.node.count_publishers(names.GATED) == 1:
            break
        operator.until(lambda: False, 0.05)
    operator.reset()
    moving = len(operator.record.sent)
    assert operator.until(lambda: any(not m.held for _, m in operator.record.sent[moving:]), 20.0)


def test_the_brain_dies(running: Running) -> None:
    """Kill -9 of the brain: the gate holds, the supervisor says who is silent, the rest lives."""
    system, operator, _ = running
    system.kill('brain')
    assert operator.until(lambda: state(operator) == 'fault', 10.0)
    assert operator.episode is not None
    assert operator.episode.reason.startswith('brain has been silent')
    count = len(operator.record.states)
    assert operator.until(lambda: len(operator.record.states) > count + 3, 5.0)
    assert operator.state is not None
    assert operator.state.held
    assert 'fault' in operator.state.hold_reason
    with pytest.raises(SystemDied, match=r'brain died \(SIGKILL\)'):
        system.check()
