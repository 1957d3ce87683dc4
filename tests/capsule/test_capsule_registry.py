"""Tiers: budgets, pins, demotion in order of use, promotion, exact accounting."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from flashrt_ros.capsule.errors import BudgetError, CapsuleError, PinnedError, StoreError
from flashrt_ros.capsule.registry import Registry
from flashrt_ros.contract.context import Context

FIXED, STEP = 64, 48  # bytes that the toy brain's fixed part and one position of it take
ONE = FIXED + STEP  # its first capsule


def filled(brain: Any, gpu: int, host: int, count: int) -> tuple[Registry, Any, list[Any]]:
    """A registry with room for so many capsules, and `count` of them, each of its own history."""
    registry = Registry(brain.ctx, gpu_bytes=gpu * ONE, host_bytes=host * ONE)
    session = brain.session(registry)
    capsules = []
    for _ in range(count):
        brain.cursor.truncate(0)
        brain.count.tensor.zero_()
        brain.step()
        brain.flags.tensor.random_(0, 200)
        capsules.append((session.snapshot('s'), brain.bytes()))
    return registry, session, capsules


def test_the_least_recently_used_capsule_makes_room(brain: Any) -> None:
    """A full tier demotes by use; restoring counts as use, and promotes by itself."""
    registry, session, capsules = filled(brain, gpu=3, host=3, count=3)
    first, second, third = (capsule for capsule, _ in capsules)
    session.restore(first)
    session.snapshot('new')
    registry.settle()
    assert [c.tier for c in (first, second, third)] == ['gpu', 'host', 'gpu']
    session.restore(second)
    assert brain.bytes() == capsules[1][1]
    registry.settle()
    assert second.tier == 'gpu'
    assert third.tier == 'host'


def test_pins_are_real(brain: Any) -> None:
    """A pinned capsule is neither demoted nor evicted, whoever asks, until its session ends."""
    registry, session, capsules = filled(brain, gpu=2, host=4, count=2)
    pinned, _ = capsules[0]
    pinned.pin(session)
    for _ in range(3):
        session.snapshot('more')
    assert pinned.tier == 'gpu'
    for refuse in (lambda: registry.demote(pinned), lambda: registry.evict(pinned)):
        with pytest.raises(PinnedError, match='is pinned'):
            refuse()
    session.close()
    registry.demote(pinned, wait=True)
    assert pinned.tier == 'host'


def test_a_pin_ends_with_its_session(brain: Any) -> None:
    """No pin outlives the session that asked for it, closed or not."""
    registry, session, capsules = filled(brain, gpu=4, host=0, count=1)
    capsule, _ = capsules[0]
    branches = session.fork(capsule, 2)
    assert capsule.pinned
    branches[0].close()
    assert capsule.pinned
    del branches
    gc.collect()
    assert not capsule.pinned
    registry.evict(capsule)


def test_nothing_is_dropped_to_make_room(brain: Any) -> None:
    """Planted fault: everything is pinned or full below. The request fails; all stay."""
    registry, session, capsules = filled(brain, gpu=2, host=1, count=3)
    with pytest.raises(BudgetError, match='evict or unpin'):
        session.snapshot('too many')
    for capsule, expected in capsules:
        try:
            session.restore(capsule)
        except BudgetError:
            continue
        assert brain.bytes() == expected
    assert len(registry.capsules) == 3


def test_a_shared_segment_counts_once_in_each_tier(brain: Any) -> None:
    """Children of one capsule cost what they add, in the gpu tier and in the host tier."""
    registry = Registry(brain.ctx, gpu_bytes=1 << 16, host_bytes=1 << 16)
    session = brain.session(registry)
    for _ in range(50):
        brain.step()
    chain = [session.snapshot('0')]
    whole = registry.usage('gpu').used
    for index in range(5):
        brain.step()
        chain.append(session.snapshot(str(index)))
    assert registry.usage('gpu').used == whole + 5 * ONE
    for capsule in chain:
        registry.demote(capsule, 'host')
    registry.settle()
    chain_only = whole - FIXED + 5 * STEP  # what the live state shares stays while there is room
    assert registry.usage('gpu').used == chain_only
    assert registry.usage('host').used == whole + 5 * ONE
    registry.evict(chain[0])  # its segment lives on in its descendants
    assert registry.usage('host').used == whole + 5 * ONE - FIXED
    session.restore(chain[3])


def test_demotion_goes_on_beside_replays(brain: Any) -> None:
    """The bytes are right although the replays after it overwrite everything at once."""
    registry, session, capsules = filled(brain, gpu=4, host=4, count=2)
    for capsule, _ in capsules:
        registry.demote(capsule)
    brain.keys.tensor.fill_(0)
    brain.flags.tensor.zero_()
    for _ in range(5):
        brain.step()
    for capsule, expected in capsules:
        session.restore(capsule)
        assert brain.bytes() == expected


def test_a_demotion_can_be_called_off(brain: Any) -> None:
    """Restoring a capsule that is on its way down keeps it."""
    registry, session, capsules = filled(brain, gpu=2, host=2, count=1)
    capsule, expected = capsules[0]
    registry.demote(capsule)
    session.restore(capsule)
    registry.settle()
    assert capsule.tier == 'gpu'
    assert brain.bytes() == expected


def test_snapshots_straight_into_a_lower_tier(brain: Any) -> None:
    """tier= at the snapshot; pins hold it there."""
    registry = Registry(brain.ctx, gpu_bytes=4 * ONE, host_bytes=4 * ONE)
    session = brain.session(registry)
    capsule = session.snapshot('s', tier='host', pin=True)
    then = brain.bytes()
    registry.settle()
    assert capsule.tier == 'host'
    assert capsule.pinned
    brain.step()
    session.restore(capsule)
    assert brain.bytes() == then


def test_latest(brain: Any) -> None:
    """The newest of all, or of one boundary."""
    registry, session, _ = filled(brain, gpu=4, host=0, count=2)
    start = session.snapshot('episode-start')
    last = session.snapshot('turn')
    assert registry.latest() is last
    assert registry.latest('episode-start') is start
    assert registry.latest('never') is None


def test_unknown_tiers_and_missing_disks_are_refused(brain: Any) -> None:
    """Planted faults; the message lists the tiers."""
    registry, _, capsules = filled(brain, gpu=2, host=0, count=1)
    capsule = capsules[0][0]
    with pytest.raises(CapsuleError, match='use gpu, host, disk'):
        registry.demote(capsule, 'tape')
    with pytest.raises(StoreError, match='no disk tier'):
        registry.demote(capsule, 'disk')
    with pytest.raises(CapsuleError, match='promote to gpu or host'):
        registry.promote(capsule, 'disk')


def test_the_model_of_an_arena() -> None:
    """Blocks do not overlap, freed neighbours join, and everything comes back."""
    import random

    from flashrt_ros.capsule.arena import Arena

    seed = random.SystemRandom().randrange(1 << 32)
    print(f'seed {seed}')
    source = random.Random(seed)
    arena = Arena(64 * 256, Context('cpu').backend.reserve)
    taken: list[Any] = []
    for _ in range(2000):
        if taken and source.random() < 0.5:
            arena.give(taken.pop(source.randrange(len(taken))))
        else:
            block = arena.take(source.randrange(0, 2000))
            if block is not None:
                taken.append(block)
        spans = sorted((block.offset, block.offset + block.size) for block in taken)
        assert all(one[1] <= other[0] for one, other in zip(spans, spans[1:], strict=False))
        assert arena.used == sum(block.size for block in taken)
    for block in taken:
        arena.give(block)
    assert arena.take(64 * 256) is not None
