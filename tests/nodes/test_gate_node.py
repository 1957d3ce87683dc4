"""The gate as a process: up by itself, without torch, and suspicious of everybody."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from gate_stand import Stand, gate_stand
from harness import LONG, looked_for, says

from flashrt_interfaces.msg import ControlCommand
from flashrt_interfaces.srv import SetEpoch
from flashrt_ros.nodes import names, qos
from flashrt_ros.nodes.operator import Operator
from flashrt_ros.nodes.peers import PeerRefused

pytestmark = pytest.mark.xdist_group('ros')


@pytest.fixture(scope='module')
def stand() -> Iterator[Stand]:
    """A gate that nobody configured or activated."""
    with gate_stand() as it:
        yield it


def test_it_is_on_guard_before_anybody_asks(stand: Stand) -> None:
    """Started and not asked for anything, it answers the robot's states with holds."""
    assert stand.until_held('no episode has been started')
    assert all(m.held for m in stand.sent())


def test_no_torch_in_its_address_space(stand: Stand) -> None:
    """Nothing of torch is mapped into the process; numpy is (the negative control)."""
    maps = Path(f'/proc/{stand.system.pid("gate")}/maps').read_text()
    assert 'torch' not in maps
    assert 'numpy' in maps


def test_it_opens_and_forwards(stand: Stand) -> None:
    """Open, it sends on what is for the robot's tick, to the bit."""
    stand.open()
    assert stand.until_passes()


def test_each_faulty_command_is_a_hold_with_a_sentence(stand: Stand) -> None:
    """Not finite, out of limits, of a tick that passed, too few entries: hold, over real ROS."""
    stand.open()
    assert stand.until_passes()
    for action, shift, words in (
        ((0.1, float('nan'), 0.1, 1.0), 0, 'action[1] is nan; every number must be finite'),
        ((0.1, 0.1, 1.5, 1.0), 0, 'action[2] is 1.5; it must lie in [-1, 1]'),
        ((0.1, 0.1), 0, 'action of shape [2]; this robot takes [4]'),
        ((0.1, 0.1, 0.1, 1.0), -5, 'the robot is at tick'),
    ):
        before = len(stand.operator.record.sent)
        stand.state()
        # State and command travel apart: what the gate has heard is what it judges by.
        assert stand.operator.until(lambda: _heard(stand), LONG)
        stand.command(*action, tick=stand.tick + shift)
        assert stand.operator.until(
            lambda b=before, w=words: any(m.held and w in m.reason for m in stand.sent(b)), LONG
        ), words


def _heard(stand: Stand) -> bool:
    state = stand.operator.state
    return state is not None and state.tick == stand.tick


def test_two_publishers_on_the_command_topic(stand: Stand) -> None:
    """A second sender on the topic: hold, a sentence with both names, until it is gone."""
    stand.open()
    assert stand.until_passes()
    domain = stand.node.context.get_domain_id()
    with Operator(domain) as rogue:
        rogue.node.create_publisher(ControlCommand, names.COMMAND, qos.STATE)
        assert stand.until_held('brain/command has 2 publishers (/operator, /operator)')
        before = len(stand.sent())
        assert stand.until_held('brain/command has 2 publishers')
        assert all(m.held for m in stand.sent(before))
    assert stand.until_passes()
    assert says(stand.system, stand.operator, 'gate', 'it must have one; holding')
    lines = [x for x in stand.system.lines('gate') if 'it must have one; holding' in x]
    assert len(lines) == 1


def test_a_flood_moves_nothing_twice(stand: Stand) -> None:
    """Hundreds of commands for one tick: one goes through, and the log says what is odd."""
    stand.open()
    assert stand.until_passes()
    before = len(stand.operator.record.sent)
    stand.state()

    def said() -> bool:
        for _ in range(10):
            stand.command()
        return any('flood: ' in line for line in stand.system.lines('gate'))

    assert looked_for(stand.operator, said)

    def moved() -> int:
        return sum(m.tick == tick and not m.held for m in stand.sent(before))

    tick = stand.tick
    assert stand.operator.until(lambda: moved() > 0, LONG)
    assert stand.until_passes()  # whatever was sent before has been heard by then
    assert moved() == 1


def test_an_older_epoch_is_refused_in_words(stand: Stand) -> None:
    """Epochs only rise, also over the service."""
    request = SetEpoch.Request(episode=1, epoch=0, running=True)
    with pytest.raises(PeerRefused, match='epochs only rise'):
        stand.operator.peers.call(names.GATE_SET_EPOCH, request)


def test_a_button_pressed_before_it_started() -> None:
    """The emergency stop latches also when the button was pressed before the gate was there."""
    with Operator() as _:
        pass  # a first node of this process in another domain changes nothing
    with gate_stand() as stand:
        button = stand.button(qos.LATCHED)
        from std_msgs.msg import Bool

        button.publish(Bool(data=True))
        assert stand.until_held('emergency stop')
        with pytest.raises(PeerRefused, match='the emergency stop is latched'):
            stand.open()
        stand.system.kill('gate')
        stand.system.check()  # starts it again, as launch would
        stand.epoch = 0
        assert stand.until_held('emergency stop')


def test_a_silent_robot_is_noticed() -> None:
    """Commands without states: hold, and the sentence says who is silent."""
    with gate_stand(robot_silence_s=1.0) as stand:
        stand.open()
        assert stand.until_passes()
        before = len(stand.operator.record.sent)
        assert stand.operator.until(
            lambda: any('no state of the robot' in m.reason for m in stand.sent(before)), LONG
        )
        assert stand.until_passes()
