"""The subgoal mailbox: an idle slot is written, a flip shows it, a reader never sees a mix."""

import threading

import numpy as np
import pytest
import torch

from flashrt_ros.capsule.closure import Closure
from flashrt_ros.contract.context import Context
from flashrt_ros.control.mailbox import Mailbox
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
