"""The subgoal mailbox: an idle slot is written, a flip shows it, a reader never sees a mix."""

import threading

import numpy as np
import pytest
import torch

from flashrt_ros.capsule.closure import Closure
from flashrt_ros.contract.context import Context
from flashrt_ros.control.mailbox import Mailbox, MailboxError
from flashrt_ros.control.text import decode, encode


def mailbox(length: int = 64) -> Mailbox:
    """Return an empty mailbox on the CPU."""
    return Mailbox(Context('cpu'), length)


def seen(box: Mailbox) -> np.ndarray:
    """Return what a policy's graph reads: ``slots[live]``."""
    port = box.port
    return port.slots.tensor.index_select(0, port.live.tensor)[0].numpy().copy()


def test_posted_is_not_live() -> None:
    """A row is invisible until the flip; then it is there with its generation."""
    box = mailbox()
    assert (box.generation, box.pending) == (0, False)
    assert box.post(encode('open'), tick=3) == 1
    assert (box.generation, box.pending, box.posted_tick) == (0, True, 3)
    assert decode(seen(box)) == ''
    assert box.flip()
    assert (box.generation, box.pending, decode(seen(box))) == (1, False, 'open')
    assert not box.flip()
    assert decode(box.row()) == 'open'


def test_the_newest_post_counts() -> None:
    """Two posts before a flip: the second is shown, generations go on rising."""
    box = mailbox()
    box.post(encode('open'))
    assert box.post(encode('close')) == 2
    box.flip()
    assert (box.generation, decode(seen(box))) == (2, 'close')


@pytest.mark.parametrize('row', [np.zeros(63, np.int32), np.zeros(64, np.int64)])
def test_a_wrong_row_is_refused(row: np.ndarray) -> None:
    """Another length or dtype is an error, and nothing is posted."""
    box = mailbox()
    with pytest.raises(ValueError, match=r'must be torch.int32 \[64\]'):
        box.post(row)
    assert not box.pending


def test_no_reader_sees_a_mix() -> None:
    """With posts on one thread and flips and reads on another, every row read is one row whole."""
    box = mailbox(32)
    stop = threading.Event()

    def write() -> None:
        value = 1
        while not stop.is_set():
            box.post(torch.full((32,), value % 250 + 1, dtype=torch.int32))
            value += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        flips = 0
        for _ in range(2000):
            flips += box.flip()
            row = seen(box)
            assert (row == row[0]).all()
    finally:
        stop.set()
        thread.join()
    assert flips > 0


def test_it_is_closed_over_and_cleared() -> None:
    """Every buffer and the host state are named in the closure; clear forgets all of it."""
    box = mailbox()
    closure = Closure('test')
    box.close_over(closure)
    assert set(closure.entries) == {
        'subgoal/slots', 'subgoal/live', 'subgoal/generation', 'subgoal/host',
    }  # fmt: skip
    box.post(encode('open'))
    box.flip()
    box.clear()
    assert (box.generation, box.pending, decode(seen(box))) == (0, False, '')


def offer(box: Mailbox, rows: torch.Tensor, index: int, tick: int = -1) -> None:
    """Do what a planner's graph on the device does."""
    with box.offering(tick):
        box.gather(rows, torch.tensor([index]))


def test_an_offer_is_shown_by_the_next_flip() -> None:
    """A gathered row becomes live with a new generation; a repeated one keeps row and number."""
    box = mailbox()
    rows = torch.stack([torch.from_numpy(encode(text)) for text in ('open', 'close')])
    box.post(encode('open'))
    box.flip()
    offer(box, rows, 1, tick=8)
    assert (box.generation, box.pending, decode(seen(box))) == (1, True, 'open')
    assert box.posted_tick == 8
    assert box.flip()
    assert (decode(seen(box)), box.generation, box.pending) == ('close', 2, False)
    offer(box, rows, -1)
    assert box.flip()
    assert (decode(seen(box)), box.generation) == ('close', 2)
    assert box.post(encode('open')) == 3, 'generations go on rising after offers'
    assert not box.empty


def test_an_offer_does_not_overwrite_a_post() -> None:
    """A posted row that nobody saw yet is safe from a planner's graph."""
    box = mailbox()
    box.post(encode('open'))
    with pytest.raises(MailboxError, match='must wait for its flip'), box.offering():
        pass
    box.flip()
    with box.offering():
        pass


def test_a_capsule_settles_an_offer() -> None:
    """Freezing between a flip and the next chunk keeps the generation that the device has."""
    box = mailbox()
    closure = Closure('test')
    box.close_over(closure)
    box.post(encode('open'))
    box.flip()
    offer(box, torch.from_numpy(encode('close'))[None], 0)
    box.flip()
    kept = box._get()
    assert (kept['generation'], kept['unread']) == (2, 0)
    box.clear()
    assert box.empty
    box._set(kept)
    assert box.generation == 2
