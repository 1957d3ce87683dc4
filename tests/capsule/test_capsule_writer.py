"""Writing behind the caller, who goes on at once; a capsule leaves when its file is safe."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from flashrt_ros.capsule.disk import Disk
from flashrt_ros.capsule.errors import BudgetError, CapsuleError
from flashrt_ros.capsule.registry import Registry
from flashrt_ros.capsule.store import DiskStore


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Nothing is written before this is set."""
    go = threading.Event()
    write = Disk.write

    def later(self: Disk, *args: Any) -> None:
        assert go.wait(60)
        write(self, *args)

    monkeypatch.setattr(Disk, 'write', later)
    return go


def test_the_caller_goes_on_while_the_file_is_written(
    brain: Any, tmp_path: Path, slow: threading.Event
) -> None:
    """Steps, snapshots and restores meanwhile; the capsule stays until its file is safe."""
    registry = Registry(brain.ctx, gpu_bytes=1 << 16, store=DiskStore(tmp_path / 's'))
    session = brain.session(registry)
    capsule, then = session.snapshot('s', tier='disk'), brain.bytes()
    registry.demote(capsule, 'disk')  # asked for twice, written once
    assert (capsule.tier, registry.leaving) == ('gpu', 1)
    brain.step()
    other, later = session.snapshot('other'), brain.bytes()
    with pytest.raises(CapsuleError, match='is being copied'):
        registry.evict(capsule)
    slow.set()
    registry.settle()
    assert (capsule.tier, other.tier, registry.leaving) == ('disk', 'gpu', 0)
    session.restore(capsule)
    assert brain.bytes() == then
    session.restore(other)
    assert brain.bytes() == later


def test_a_capsule_that_is_used_meanwhile_stays(
    brain: Any, tmp_path: Path, slow: threading.Event
) -> None:
    """A restore or a pin while it is being written: it is on disk then, and in its place too."""
    registry = Registry(brain.ctx, gpu_bytes=1 << 16, store=DiskStore(tmp_path / 's'))
    session = brain.session(registry)
    used, pinned = session.snapshot('used'), session.snapshot('pinned')
    for capsule in (used, pinned):
        registry.demote(capsule, 'disk')
    session.restore(used)
    pinned.pin(session)
    slow.set()
    registry.settle()
    assert used.tiers == pinned.tiers == {'gpu', 'disk'}


def test_a_failure_behind_is_told_once_and_nothing_is_lost(brain: Any, tmp_path: Path) -> None:
    """Planted fault: no room on disk. The capsule stays where it is."""
    store = DiskStore(tmp_path / 's', quota=10)
    registry = Registry(brain.ctx, gpu_bytes=1 << 16, store=store)
    session = brain.session(registry)
    capsule, then = session.snapshot('s', tier='disk'), brain.bytes()
    with pytest.raises(BudgetError, match='quota 10'):
        registry.settle()
    registry.settle()
    assert capsule.tiers == {'gpu'}
    brain.step()
    session.restore(capsule)
    assert brain.bytes() == then


def test_a_full_tier_waits_for_what_is_being_written(
    brain: Any, tmp_path: Path, slow: threading.Event
) -> None:
    """Room comes when the file is safe; until then the snapshot waits instead of failing."""
    brain.cursor.truncate(0)
    registry = Registry(brain.ctx, gpu_bytes=64, store=DiskStore(tmp_path / 's'))
    session = brain.session(registry)
    capsule = session.snapshot('s', tier='disk')
    helper = threading.Thread(target=slow.set)
    helper.start()
    session.snapshot('next')
    helper.join()
    assert capsule.tier == 'disk'
