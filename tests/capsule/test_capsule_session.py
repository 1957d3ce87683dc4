"""Sessions: snapshot, restore, rollback and fork give every byte back, or change none."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

from flashrt_ros.capsule.closure import Closure
from flashrt_ros.capsule.cursor import Cursor
from flashrt_ros.capsule.errors import (
    BudgetError,
    CapsuleError,
    ClosureError,
    EvictedError,
    LineageError,
)
from flashrt_ros.capsule.fingerprint import Fingerprint
from flashrt_ros.capsule.registry import Registry
from flashrt_ros.capsule.session import Session
from flashrt_ros.contract.context import Context
from flashrt_ros.contract.errors import AllocationError, ReboundError


def test_restore_gives_every_byte_back_and_the_future_repeats(brain: Any) -> None:
    """Buffers, cache, length and queue are as they were; the same steps give the same bits."""
    session = brain.session()
    capsule = session.snapshot('middle', position=3)
    then = brain.bytes()
    future = [brain.step() for _ in range(5)]
    assert brain.bytes() != then
    session.restore(capsule)
    assert brain.bytes() == then
    for expected in future:
        got = brain.step()
        assert torch.equal(got['state'], expected['state'])
        assert got['left'] == expected['left']


def test_a_capsule_never_changes(brain: Any) -> None:
    """Neither steps, nor restores, nor changes to what `get` returned reach into it."""
    session = brain.session()
    capsule = session.snapshot('middle')
    digest, then = capsule.digest, brain.bytes()
    for _ in range(3):
        brain.step()
    session.snapshot('later')
    brain.queue.append(99)
    session.restore(capsule)
    assert brain.bytes() == then
    assert session.snapshot('middle').digest == digest


def test_the_digest_is_of_the_state_not_of_its_history(ctx: Context, make_brain: Any) -> None:
    """However often snapshots cut the cache into segments; boundary and position count."""
    brain = make_brain(ctx, capacity=600)
    session = brain.session()
    start = session.snapshot('start')
    for _ in range(520):
        brain.step()
    whole = session.snapshot('end', 520).digest
    session.rollback(start)
    for index in range(520):
        if index % 97 == 0:
            session.snapshot('cut')
        brain.step()
    capsule = session.snapshot('end', 520)
    assert capsule.digest == whole
    assert session.snapshot('end', 521).digest != whole
    brain.flags.tensor[0] += 1
    assert session.snapshot('end', 520).digest != whole


def test_lineage(brain: Any) -> None:
    """Parents follow history, rollback stays in it, restore leaves it."""
    session = brain.session()
    one = session.snapshot('one', 1)
    brain.step()
    two = session.snapshot('two', 2)
    session.rollback(one)
    brain.step()
    other = session.snapshot('other', 2)
    assert (two.parent, other.parent, one.parent) == (one, one, None)
    assert session.head is other
    with pytest.raises(LineageError, match='no ancestor'):
        session.rollback(two)
    session.restore(two)
    assert session.head is two
    session.rollback(one)


def test_forks_share_bytes_and_take_turns(brain: Any) -> None:
    """Branches stand on one capsule; each costs its fixed part and its own tail."""
    registry = Registry(brain.ctx, gpu_bytes=1 << 20)
    session = brain.session(registry)
    trunk = session.snapshot('trunk')
    base = registry.usage('gpu').used
    branches = session.fork(trunk, 4)
    assert registry.usage('gpu').used == base
    ends, tips = [], []
    for index, branch in enumerate(branches):
        branch.restore(branch.head)
        for _ in range(index + 1):
            brain.step()
        brain.flags.tensor[0] += index
        tips.append(branch.snapshot('tip'))
        ends.append(brain.bytes())
    stride = trunk.layout.ropes[0].stride
    for index, (branch, tip, end) in enumerate(zip(branches, tips, ends, strict=True)):
        branch.restore(tip)
        assert brain.bytes() == end
        assert tip.parent is trunk
        assert tip.texts[0].node.parent is trunk.texts[0].node
        assert tip.texts[0].node.nbytes == (index + 1) * stride


def test_truncating_and_rewriting_the_cache_is_seen(brain: Any) -> None:
    """Positions below the length that were rewritten since the snapshot are not shared."""
    session = brain.session()
    capsule = session.snapshot('full')
    then = brain.bytes()
    brain.cursor.truncate(1)
    with brain.cursor.appending(2):
        brain.keys.tensor[:, :, 1:3] = 7
        brain.odd.tensor[1:3] = 7
    rewritten = session.snapshot('rewritten')
    other = brain.bytes()
    session.restore(capsule)
    assert brain.bytes() == then
    session.restore(rewritten)
    assert brain.bytes() == other


def test_a_write_that_nobody_announced_is_seen(brain: Any) -> None:
    """Exactness does not rest on the user: torch counts writes, and unplaced ones cost a copy."""
    session = brain.session()
    capsule = session.snapshot('before')
    then = brain.bytes()
    brain.keys.tensor[0, 0, 0, 0] = 42  # below the length, outside `appending`
    spoiled = session.snapshot('spoiled')
    session.restore(capsule)
    assert brain.bytes() == then
    brain.odd.tensor[0, 0] = 42
    session.restore(capsule)
    assert brain.bytes() == then
    session.restore(spoiled)
    assert brain.keys.tensor[0, 0, 0, 0].item() == 42


def test_an_audit_finds_a_write_below_the_cursor(brain: Any) -> None:
    """Planted fault: the one thing taken on trust is broken. The next snapshot copies it all."""
    session = brain.session()
    capsule = session.snapshot('before')
    then = brain.bytes()
    brain.cursor.audit = True
    brain.step()  # sound: passes
    below = pytest.raises(ClosureError, match="'odd' was written below position 4")
    with below, brain.cursor.appending(1):
        brain.odd.tensor[0] = 77
    session.restore(capsule)
    assert brain.bytes() == then


@pytest.mark.parametrize('source', ['function', 'buffer'])
def test_lengths_kept_by_others_are_exact_too(ctx: Context, source: str) -> None:
    """A function or an integer buffer as length: any write costs a full copy, never a byte."""
    cache = ctx.buffer('cache', (10, 4), torch.float32)
    length = ctx.buffer('length', (1,), torch.int64)
    state = {'n': 0}
    closure = Closure('polled').fixed(length)
    closure.append(cache, 0, length if source == 'buffer' else lambda: state['n'])
    closure.host('n', lambda: dict(state), state.update)
    session = Session(ctx, closure, Fingerprint.of(closure))

    def fill(until: int, value: float) -> None:
        cache.tensor[:until] = value
        length.tensor.fill_(until)
        state['n'] = until

    fill(4, 1.0)
    one = session.snapshot('one')
    fill(6, 2.0)
    two = session.snapshot('two')
    assert (one.lengths, two.lengths) == ((4,), (6,))
    for capsule, until, value in ((one, 4, 1.0), (two, 6, 2.0), (one, 4, 1.0)):
        session.restore(capsule)
        assert bool((cache.tensor[:until] == value).all())
        assert (state['n'], length.tensor.item()) == (until, until)


def test_a_snapshot_costs_what_was_appended(brain: Any) -> None:
    """Counted in bytes: a second snapshot after one step adds the fixed part and one position."""
    registry = Registry(brain.ctx, gpu_bytes=1 << 20)
    session = brain.session(registry)
    for _ in range(40):
        brain.step()
    first = session.snapshot('first')
    before = registry.usage('gpu').used
    brain.step()
    second = session.snapshot('second')
    layout = second.layout
    assert registry.usage('gpu').used - before == 64 + 48  # in steps of 16 bytes, side by side
    assert second.texts[0].node.nbytes == layout.ropes[0].stride
    assert second.texts[0].node.parent is first.texts[0].node


def test_nothing_is_allocated_on_the_way(brain: Any) -> None:
    """Snapshot, rollback and restore work in memory that was set aside before."""
    session = brain.session()
    capsule = session.snapshot('a')
    brain.step()
    session.snapshot('b')
    with brain.ctx.guard_allocations():
        session.rollback(capsule)
        session.snapshot('c')
        session.restore(capsule)
    with pytest.raises(AllocationError), brain.ctx.guard_allocations():
        brain.keys.tensor.clone()


def test_a_full_registry_says_so_and_changes_nothing(brain: Any) -> None:
    """Planted fault: no room. The live state and the capsules there are stay as they were."""
    registry = Registry(brain.ctx, gpu_bytes=512)
    session = brain.session(registry)
    capsule = session.snapshot('fits')
    then, used = brain.bytes(), registry.usage('gpu').used
    with pytest.raises(BudgetError, match='gpu tier has no'):
        for _ in range(5):
            session.snapshot('more')
            brain.step()
            then, used = brain.bytes(), registry.usage('gpu').used
    assert brain.bytes() == then
    assert registry.usage('gpu').used == used
    session.restore(capsule)


def test_an_evicted_capsule_is_refused(brain: Any) -> None:
    """Its bytes are gone; children that share segments keep theirs."""
    session = brain.session(Registry(brain.ctx, gpu_bytes=1 << 20))
    parent = session.snapshot('parent')
    brain.step()
    child = session.snapshot('child')
    then = brain.bytes()
    session.registry.evict(parent)
    with pytest.raises(EvictedError, match='its bytes are gone'):
        session.restore(parent)
    brain.step()
    session.restore(child)
    assert brain.bytes() == then
    assert child.parent is None


def test_without_a_registry_capsules_live_as_long_as_they_are_referenced(brain: Any) -> None:
    """A dropped capsule's memory is used again: thousands of snapshots do not fill up."""
    session = brain.session()
    keep = session.snapshot('keep')
    then = brain.bytes()
    for _ in range(300):
        session.snapshot('dropped')
    gc.collect()
    session.restore(keep)
    assert brain.bytes() == then
    assert session.registry.usage('gpu').capsules == 1


def test_a_dropped_capsule_gives_its_blocks_back_at_once(brain: Any) -> None:
    """With the last reference; in the middle of the registry's own work, with the next call."""
    session = brain.session()
    arena = session.registry._memory.arenas['gpu']
    kept = session.snapshot('kept')
    once = arena.used
    for busy in (False, True):
        dropped = session.snapshot('dropped')
        assert arena.used > once
        if busy:
            with session.registry.lock:
                del dropped
                gc.collect()
                assert arena.used > once
            session.restore(kept)
        else:
            del dropped
            gc.collect()
        assert arena.used == once


def test_a_foreign_capsule_is_refused(brain: Any) -> None:
    """Planted fault: a capsule of another registry."""
    capsule = brain.session(Registry(brain.ctx, gpu_bytes=1 << 20)).snapshot('here')
    other = brain.session(Registry(brain.ctx, gpu_bytes=1 << 20))
    with pytest.raises(CapsuleError, match='another registry'):
        other.restore(capsule)


def test_a_rebound_buffer_is_refused(brain: Any) -> None:
    """Planted fault: a buffer's memory was replaced since the closure was made."""
    session = brain.session()
    capsule = session.snapshot('a')
    keep = brain.state.tensor.clone()
    brain.state.tensor.set_(keep)
    for call in (lambda: session.snapshot('b'), lambda: session.restore(capsule)):
        with pytest.raises(ReboundError, match="'state' was rebound"):
            call()


def test_suffix_runs_after_the_restore(brain: Any) -> None:
    """Restore and append is one call."""
    session = brain.session()
    capsule = session.snapshot('a')
    expected = brain.step()['state']
    out: list[torch.Tensor] = []
    session.restore(capsule, suffix=lambda: out.append(brain.step()['state']))
    assert torch.equal(out[0], expected)


def test_closures_are_checked(ctx: Context) -> None:
    """Planted faults: twice, after use, no such dimension, shared cursor, empty, foreign."""
    a, b = ctx.buffer('a', (4,), torch.float32), ctx.buffer('b', (4,), torch.float32)
    cursor = Cursor('c')
    closure = Closure('x').fixed(a).append(b, 0, cursor)
    with pytest.raises(ClosureError, match='name each once'):
        closure.fixed(a)
    with pytest.raises(ClosureError, match='no dimension 1'):
        Closure('y').append(b, 1, cursor)
    with pytest.raises(ClosureError, match='another closure'):
        Closure('y').append(b, 0, cursor)
    with pytest.raises(ClosureError, match='do not fit the capacity 4'), cursor.appending(5):
        pass
    with pytest.raises(ClosureError, match='not within'):
        cursor.truncate(1)
    with pytest.raises(ClosureError, match='is empty'):
        Session(ctx, Closure('z'), Fingerprint({}))
    with pytest.raises(ClosureError, match='another context'):
        Session(Context('cpu'), closure, Fingerprint.of(closure))
    session = Session(ctx, closure, Fingerprint.of(closure))
    with pytest.raises(ClosureError, match='in use by a session'):
        closure.host('late', dict, print)
    assert session.snapshot('ok').lengths == (0,)
