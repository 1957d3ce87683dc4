"""The hand-off: what the graph decides is in the mailbox, and the host was not asked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from flashrt_policies.planner_lm.decide import open_decider
from flashrt_policies.planner_lm.handoff import NOTHING, SAME, HandOff
from flashrt_policies.planner_lm.questions import MOST, QuestionError
from flashrt_policies.planner_lm.situation import Situation
from flashrt_ros.contract.context import Context
from flashrt_ros.control.mailbox import Mailbox
from flashrt_ros.control.text import decode, encode

SKILLS = ('open the drawer', 'close the drawer')
ROWS = np.stack([encode(skill) for skill in SKILLS])


def made() -> tuple[HandOff, Mailbox]:
    """Return a hand-off and the mailbox behind it, the first skill live."""
    ctx = Context('cpu')
    box = Mailbox(ctx)
    hand_off = HandOff(ctx, ROWS, box.gather, box.buffers)
    box.post(ROWS[0])
    box.flip()
    return hand_off, box


def logits(best: int, done: float = 4, safe: float = 4, stop: float = -4) -> torch.Tensor:
    """Return logits of four options of what comes next, then done, safe and stop."""
    first = torch.full((4,), -4.0)
    first[best] = 4.0
    rest = [value for yes in (done, safe, stop) for value in (yes, 0.0)]
    return torch.cat((first, torch.tensor(rest), torch.zeros(40)))  # the room of a graph


def decide(hand_off: HandOff, box: Mailbox, seen: torch.Tensor, rows: list[int]) -> int:
    """Do what a round of the planner does; return what was handed over."""
    with box.offering(8), hand_off.armed(rows, 0.8):
        hand_off.tail(None, seen)
    return hand_off.chosen


def test_the_chosen_row_is_live_after_the_flip() -> None:
    """All four agree: the row is in the idle slot, with the next generation."""
    hand_off, box = made()
    assert decide(hand_off, box, logits(1), [SAME, 1, SAME, SAME]) == 1
    assert decode(box.row()) == SKILLS[0], 'nobody sees it before the flip'
    assert box.flip()
    assert (decode(box.row()), box.generation) == (SKILLS[1], 2)


@pytest.mark.parametrize(
    ('seen', 'rows'),
    [
        (logits(0), [SAME, 1, SAME, SAME]),  # the current one goes on
        (logits(2), [SAME, 1, SAME, SAME]),  # finished: nothing to hand over
        (logits(1, done=0.5), [SAME, 1, SAME, SAME]),
        (logits(1, safe=-4), [SAME, 1, SAME, SAME]),
        (logits(1, stop=0.0), [SAME, 1, SAME, SAME]),
        (logits(1) * 0.1, [SAME, 1, SAME, SAME]),  # not sure
    ],
)
def test_otherwise_all_stays_the_same(seen: torch.Tensor, rows: list[int]) -> None:
    """Unless every answer agrees surely enough, the live subgoal and its generation stay."""
    hand_off, box = made()
    assert decide(hand_off, box, seen, rows) == SAME
    assert box.flip()
    assert (decode(box.row()), box.generation) == (SKILLS[0], 1)


def test_other_rounds_leave_the_mailbox_alone() -> None:
    """Questions of somebody else pass the same graph; a posted row survives them."""
    hand_off, box = made()
    box.post(ROWS[1])
    hand_off.tail(None, logits(1))
    assert hand_off.chosen == NOTHING
    assert box.flip()
    assert (decode(box.row()), box.generation) == (SKILLS[1], 2)


def test_more_options_than_there_is_room_for_are_refused() -> None:
    """A question of 256 options is one line."""
    hand_off, _ = made()
    with pytest.raises(QuestionError, match='want at most 255'), hand_off.armed([0] * 256, 0.8):
        pass


def host_reads(work: Callable[[Callable[[Any], torch.Tensor]], None]) -> bool:
    """Whether work reads a value on the host: with fake tensors, which have none, that raises."""
    with FakeTensorMode(allow_non_fake_inputs=False) as mode:
        try:
            work(mode.from_tensor)
        except (DataDependentOutputException, RuntimeError, TypeError, ValueError) as error:
            assert 'Fake' in repr(error) or 'DataDependent' in repr(error), error
            return True
    return False


def chain(hand_off: HandOff, box: Mailbox, spy: bool, fake: Callable[[Any], torch.Tensor]) -> None:
    """Run decision, flip and what a policy's graph gathers, on fake tensors."""
    for owner in (hand_off, box):
        for name, value in vars(owner).items():
            if isinstance(value, torch.Tensor):
                setattr(owner, name, fake(value))
            elif hasattr(value, 'tensor'):
                setattr(owner, name, type('Fake', (), {'tensor': fake(value.tensor)})())
    seen = fake(logits(1))
    with box.offering(8):
        hand_off.tail(None, seen)
    if spy:
        int(hand_off._index.tensor)  # the planted fault: the host looks what was chosen
    box.flip()
    port = box.port
    port.slots.tensor.index_select(0, port.live.tensor)


@pytest.mark.parametrize('spy', [False, True])
def test_from_decision_to_replay_nothing_crosses_the_host(spy: bool) -> None:
    """Decision, flip and gathering need no value on the host; a planted read is noticed."""
    hand_off, box = made()
    assert host_reads(lambda fake: chain(hand_off, box, spy, fake)) == spy


def test_the_engine_ends_with_the_hand_off(tiny: Path) -> None:
    """A real round of the planner's four questions hands over what its answers say."""
    ctx = Context('cpu')
    box = Mailbox(ctx)
    hand_off = HandOff(ctx, ROWS, box.gather, box.buffers)
    decider = open_decider(tiny, ctx, capacity=1024, longest_round=1024, hand_off=hand_off)
    box.post(ROWS[0])
    box.flip()
    situation = Situation(SKILLS, 'open the drawer, then close it', (), SKILLS[0])
    options = situation.next.options
    answers = decider.decide(situation.text, situation.questions)
    assert hand_off.chosen == NOTHING, 'not armed'
    with box.offering(), hand_off.armed([1] * len(options), 0.0):
        again = decider.decide(situation.text, situation.questions)
    agreed = answers[3].yes <= 1.0  # with nothing to be sure of, whatever is likeliest
    assert again == answers
    assert (hand_off.chosen == 1) == agreed
    assert len(options) + 6 <= MOST
