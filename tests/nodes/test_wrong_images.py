"""Cameras that send what the policy cannot see, over ROS, to a running brain."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from harness import INSTRUCTION, ended, toy_system
from lying_sim import WRONG_ENCODING, WRONG_SHAPE

from flashrt_interfaces.msg import ControlCommand
from flashrt_ros.nodes.operator import Operator
from flashrt_ros.nodes.runner import System

pytestmark = pytest.mark.xdist_group('ros')
SHAPE = "image 'front' has shape [9, 8, 3]; it must be [8, 8, 3]"
ENCODING = "image 'wrist' has encoding '16UC1'; it must be rgb8, bgr8, rgba8, bgra8 or mono8"
Ran = tuple[System, Operator]


@pytest.fixture(scope='module')
def ran() -> Iterator[Ran]:
    """Run one episode in which the front camera lies once, and later the wrist camera."""
    with toy_system(robot='lying_sim.py') as (system, operator, _):
        start = operator.start(INSTRUCTION, seed=3)
        assert ended(operator, start.episode)
        yield system, operator


def sent(operator: Operator) -> dict[int, ControlCommand]:
    """Return what the gate sent for each tick."""
    return {m.tick: m for _, m in operator.record.sent if m.tick >= 0}


@pytest.mark.parametrize(('tick', 'words'), [(WRONG_SHAPE, SHAPE), (WRONG_ENCODING, ENCODING)])
def test_the_robot_holds_and_goes_on(ran: Ran, tick: int, words: str) -> None:
    """From the wrong image on every command is a hold with the sentence, until a good one."""
    _, operator = ran
    held = sorted(t for t, m in sent(operator).items() if m.held and m.reason == words)
    assert held
    assert held == list(range(tick, tick + 8))  # there are images every eight ticks
    assert any(not m.held for t, m in sent(operator).items() if t > held[-1])


def test_one_line_says_what_is_wrong_and_what_would_be_right(ran: Ran) -> None:
    """Each lie is one line in the log, and one when the camera is good again."""
    system, _ = ran
    lines = system.lines('brain')
    for words in (SHAPE, ENCODING):
        assert len([x for x in lines if words in x]) == 1
    assert len([x for x in lines if 'refused' in x]) == 2
    assert len([x for x in lines if 'is good again after 1' in x]) == 2


def test_nothing_is_lost(ran: Ran) -> None:
    """The episode ends as done in its one epoch, and chunks came after each lie."""
    _, operator = ran
    now = operator.episode
    assert now is not None
    assert (now.state, now.outcome) == ('idle', 'done')
    chunks = [m.tick for _, m in operator.record.chunks]
    assert len({m.epoch for _, m in operator.record.chunks}) == 1
    assert WRONG_SHAPE not in chunks
    assert WRONG_ENCODING not in chunks
    assert any(WRONG_SHAPE < tick < WRONG_ENCODING for tick in chunks)
    assert any(tick > WRONG_ENCODING for tick in chunks)
    done = [m.text for _, m in operator.record.subgoals if m.status == 'done']
    assert done == ['open the drawer', 'close the drawer']


def test_good_images_are_not_refused(ran: Ran) -> None:
    """The negative control: before the first lie nothing was held for an image."""
    _, operator = ran
    early = [m for t, m in sent(operator).items() if t < WRONG_SHAPE]
    assert any(not m.held for m in early)
    assert not [m for m in early if 'image' in m.reason]
