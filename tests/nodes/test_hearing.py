"""What the supervisor makes of what it hears: who was replaced, who is silent, what was done."""

from typing import Any

import pytest
from builtin_interfaces.msg import Time

from flashrt_interfaces.msg import ControlCommand, RobotState
from flashrt_ros.control import watchdog
from flashrt_ros.nodes.hearing import STRAGGLERS, Hearing


def said(hearing: Hearing, episode: int, epoch: int, times: int = 1) -> str:
    """Let the gate say something; return who counts as replaced."""
    for _ in range(times):
        hearing.gate(ControlCommand(episode=episode, epoch=epoch, held=True))
    return hearing.replaced


def test_a_gate_that_was_started_anew() -> None:
    """Once it has been heard in the episode, one word of an older epoch gives it away."""
    hearing = Hearing(1.0)
    hearing.forgive(1, 1)
    assert said(hearing, 1, 1) == ''
    assert said(hearing, 1, 2) == ''
    assert said(hearing, 0, 0) == 'gate'
    assert 'knows nothing of this episode' in hearing.silent()


def test_words_from_before_the_episode() -> None:
    """A few older words after its beginning prove nothing; without end they do."""
    hearing = Hearing(1.0)
    said(hearing, 1, 2)
    hearing.forgive(2, 3)
    assert said(hearing, 1, 2, 3) == ''
    assert said(hearing, 0, 0, 3) == ''
    assert said(hearing, 2, 3) == ''
    assert said(hearing, 1, 2) == 'gate'
    hearing.forgive(3, 9)
    assert said(hearing, 0, 0, STRAGGLERS) == ''
    assert said(hearing, 0, 0) == 'gate'


def state(tick: int, epoch: int, nanoseconds: int) -> RobotState:
    """Return a robot state that applied something of ``epoch`` last."""
    msg: Any = RobotState(tick=tick, applied_epoch=epoch)
    msg.header.stamp = Time(nanosec=nanoseconds)
    return msg


def test_ticks_after_a_request_are_counted_once() -> None:
    """A state that is told again, by a robot that waits, is no further tick."""
    hearing = Hearing(1.0)
    for tick, epoch, at in ((5, 1, 10), (5, 1, 30), (6, 1, 40), (6, 1, 50), (6, 2, 60)):
        hearing.robot(state(tick, epoch, at))
    assert hearing.carried_out_since(20, 2) == 1
    assert hearing.carried_out_since(0, 2) == 2


def test_who_is_silent_longest_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The brain falls silent, and the gate with it: it is the brain that has died."""
    now = [100.0]
    hearing = Hearing(1.0)
    for watch in hearing._ages.values():
        monkeypatch.setattr(watch, 'clock', lambda: now[0])
    assert isinstance(hearing._ages['brain'], watchdog.AgeWatch)
    hearing.brain(ControlCommand())
    now[0] += 0.01
    hearing.gate(ControlCommand())
    assert hearing.silent() == ''
    now[0] += 1.5
    hearing.robot(state(1, 1, 0))
    assert hearing.silent() == 'brain has been silent for 1.5 s'
