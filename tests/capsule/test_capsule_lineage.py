"""Long lineages: thousands of short turns cost a restore few copies, and no byte is lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from flashrt_ros.capsule.arena import Block
from flashrt_ros.capsule.closure import Closure
from flashrt_ros.capsule.cursor import Cursor
from flashrt_ros.capsule.fingerprint import Fingerprint
from flashrt_ros.capsule.mover import Mover, Piece
from flashrt_ros.capsule.session import Session
from flashrt_ros.contract.context import Context

TURNS = 2000


class Counting:
    """A mover that counts what is asked of another."""

    def __init__(self, mover: Mover) -> None:
        self.mover = mover
        self.calls: list[int] = []

    def save(self, fixed: Block, pieces: Sequence[Piece]) -> None:
        """Pass it on."""
        self.mover.save(fixed, pieces)

    def load(self, fixed: Block, pieces: Sequence[Piece]) -> None:
        """Pass it on."""
        self.calls.append(len(pieces))
        self.mover.load(fixed, pieces)


def kernel_launches(mover: Mover) -> list[int]:
    """Programs of every launch from now on; stays empty where there are no kernels."""
    found: list[int] = []
    for name in ('_load', '_many'):
        if (launcher := getattr(mover, name, None)) is not None:

            def counted(programs: int, *args: int, start: Any = launcher.start) -> None:
                found.append(programs)
                start(programs, *args)

            launcher.start = counted
    return found


def test_two_thousand_turns_come_back_in_one_call(ctx: Context) -> None:
    """The whole history is loaded at once: on a GPU, one launch instead of 2,000."""
    keys = ctx.buffer('keys', (1, 2, TURNS * 2, 8), torch.bfloat16)
    state = ctx.buffer('state', (17,), torch.float32)
    cursor = Cursor('c')
    closure = Closure('x').fixed(state).append(keys, 2, cursor)
    session = Session(ctx, closure, Fingerprint.of(closure, ctx.device))
    empty = session.snapshot('empty')
    tip = empty
    for turn in range(TURNS):
        count = 1 + turn % 2
        with cursor.appending(count):
            keys.tensor[:, :, cursor.length : cursor.length + count] = turn % 251
        tip = session.snapshot('turn', turn)
    state.tensor.fill_(3)
    tip = session.snapshot('end')
    length = cursor.length
    before = keys.tensor[:, :, :length].clone()
    session.restore(empty)
    with torch.no_grad():
        keys.tensor.fill_(-1)
        state.tensor.zero_()
    live = closure.live
    assert live is not None
    counting = Counting(live.mover)
    launches = kernel_launches(live.mover)
    live.mover = counting
    session.restore(tip)
    assert counting.calls == [TURNS]
    assert len(launches) == (1 if ctx.device.type == 'cuda' else 0)
    assert cursor.length == length
    assert torch.equal(keys.tensor[:, :, :length], before)
    assert bool((keys.tensor[:, :, length:] == -1).all())
    assert bool((state.tensor == 3).all())


def test_rolling_back_a_turn_moves_no_positions(ctx: Context) -> None:
    """In one's own lineage nothing but the fixed part is loaded, however long it is."""
    keys = ctx.buffer('keys', (64, 8), torch.float32)
    state = ctx.buffer('state', (3,), torch.float32)
    cursor = Cursor('c')
    closure = Closure('x').fixed(state).append(keys, 0, cursor)
    session = Session(ctx, closure, Fingerprint.of(closure, ctx.device))
    with cursor.appending(40):
        keys.tensor[:40] = 5
    start = session.snapshot('start')
    live = closure.live
    assert live is not None
    live.mover = counting = Counting(live.mover)
    with cursor.appending(4):
        keys.tensor[40:44] = 6
    session.rollback(start)
    assert counting.calls == [0]
    keys.touch()  # a write that nobody placed: everything is loaded again
    session.rollback(start)
    assert counting.calls == [0, 1]


@pytest.mark.parametrize('fails', [True, False])
def test_a_snapshot_whose_copy_fails_leaves_nothing(ctx: Context, fails: bool) -> None:
    """The blocks that it took are free again, and the session stands where it stood."""
    state = ctx.buffer('state', (3000,), torch.float32)
    closure = Closure('x').fixed(state)
    session = Session(ctx, closure, Fingerprint.of(closure, ctx.device))
    first = session.snapshot('first')
    used = session.registry.usage('gpu').used

    class Failing(Counting):
        def save(self, fixed: Block, pieces: Sequence[Piece]) -> None:
            if fails:
                raise RuntimeError('launch failed')

    live = closure.live
    assert live is not None
    live.mover = Failing(live.mover)
    if not fails:  # the control: a copy that works does take room
        kept = session.snapshot('second')
        assert session.registry.usage('gpu').used > used
        assert session.head is kept
        return
    with pytest.raises(RuntimeError, match='launch failed'):
        session.snapshot('second')
    assert session.registry.usage('gpu').used == used
    assert session.head is first
