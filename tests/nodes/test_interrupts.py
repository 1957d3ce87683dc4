"""Interrupts at random phases, in real time; refusals, the emergency stop, a dead brain."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import pytest
from harness import INSTRUCTION, LONG, becomes, looked_for, moves, moves_again, since, toy_system
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
        'supervisor': {'episode_max_ticks': 10**7},
    }
    with toy_system(endless, lockstep=False) as running:
        yield running


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
    assert becomes(operator, 'idle')
    assert operator.episode is not None
    assert (operator.episode.episode, operator.episode.epoch) == (0, 0)


def test_no_old_action_after_an_interrupt(running: Running) -> None:
    """20 interrupts at random phases: after the answer nothing older is sent or applied.

    The time of a message is that of its own stamp: when it reached the test says nothing.
    """
    seed = random.randrange(2**32)
    print(f'seed {seed}')
    rng = random.Random(seed)
    _, operator, _ = running
    record, epoch = operator.record, operator.start(INSTRUCTION).epoch
    for _ in range(20):
        assert moves(operator, epoch)
        phase = rng.uniform(0.0, 0.2)
        operator.until(lambda: False, phase)  # any moment of a tick
        asked = time.time_ns()
        answer = operator.interrupt('test')
        at = time.time_ns()
        assert operator.until(lambda at=at: len(since(record.states, at)) > 3, LONG)
        assert operator.until(lambda at=at: len(since(record.sent, at)) > 3, LONG)
        sent, states = since(record.sent, at), since(record.states, at)
        assert [m.epoch for m in sent if m.epoch < answer.epoch and not m.held] == []
        assert all(m.applied_epoch >= answer.epoch for m in states)
        assert all(m.held for m in states)
        carried_out = [
            m.tick for m in since(record.states, asked) if m.applied_epoch < answer.epoch
        ]
        assert answer.ack_ticks <= len(set(carried_out))  # and no others
        assert becomes(operator, 'interrupted')
        epoch = operator.resume().epoch
        assert epoch == answer.epoch + 1


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
    assert becomes(operator, 'running')
    assert operator.until(operator.ticked(tick + 1), LONG)


def test_an_unreadable_instruction_loses_nothing(running: Running) -> None:
    """While interrupted it is refused, and the interrupted episode can still be resumed."""
    _, operator, _ = running
    operator.interrupt()
    with pytest.raises(PeerRefused, match='no subgoal of this policy'):
        operator.start('dance')
    assert becomes(operator, 'interrupted')
    operator.resume()
    assert becomes(operator, 'running')


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
        LONG,
    )


def test_emergency_stop_latches(running: Running) -> None:
    """The stop holds until it is released; an episode cannot go on before that."""
    _, operator, _ = running
    button = operator.node.create_publisher(Bool, names.EMERGENCY_STOP, qos.STATE)
    assert looked_for(operator, lambda: button.get_subscription_count() > 0)
    button.publish(Bool(data=True))

    def stopped() -> bool:
        return operator.state is not None and 'emergency stop' in operator.state.hold_reason

    assert operator.until(stopped, LONG)
    operator.interrupt()
    with pytest.raises(PeerRefused, match='latched'):
        operator.resume()
    operator.peers.add(Trigger, names.GATE_RELEASE)
    operator.peers.call(names.GATE_RELEASE, Trigger.Request())
    assert moves(operator, operator.reset().epoch)


def test_two_publishers_on_the_gated_topic(running: Running) -> None:
    """Somebody who talks to the robot past the gate: fault, and a sentence with both names."""
    _, operator, _ = running
    operator.reset()
    with Operator(operator.node.context.get_domain_id()) as rogue:
        rogue.node.create_publisher(ControlCommand, names.GATED, qos.STATE)
        assert becomes(operator, 'fault')
        assert operator.episode is not None
        assert 'gate/command has 2 publishers (/gate, /operator)' in operator.episode.reason
    assert moves_again(operator)


def test_the_brain_dies(running: Running) -> None:
    """Kill -9 of the brain: the gate holds, the supervisor says who is silent, the rest lives."""
    system, operator, _ = running
    system.kill('brain')
    assert becomes(operator, 'fault')
    assert operator.episode is not None
    assert operator.episode.reason.startswith('brain has been silent')

    def faulty() -> bool:
        now = operator.state
        return now is not None and now.held and 'fault' in now.hold_reason

    assert operator.until(faulty, LONG)
    with pytest.raises(SystemDied, match=r'brain died \(SIGKILL\)'):
        system.check()
