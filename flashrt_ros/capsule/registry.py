"""Registry: where capsules live. Tiers gpu, host (pinned) and disk, with budgets and pins.

A full tier makes room by demoting its least recently used capsule that is not pinned. Nothing is
ever dropped to make room: when no tier below has room, the request fails and says so.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flashrt_ros.capsule.arena import Block
from flashrt_ros.capsule.capsule import Capsule, Lineage
from flashrt_ros.capsule.digest import state_digest
from flashrt_ros.capsule.disk import Disk
from flashrt_ros.capsule.errors import CapsuleError, PinnedError, StoreError
from flashrt_ros.capsule.fingerprint import Fingerprint
from flashrt_ros.capsule.layout import Layout
from flashrt_ros.capsule.memory import Memory
from flashrt_ros.capsule.room import Room
from flashrt_ros.capsule.roster import Roster
from flashrt_ros.capsule.segment import MEMORY, TIERS, Segment
from flashrt_ros.capsule.store import DiskStore, Hold
from flashrt_ros.capsule.writer import Writer
from flashrt_ros.contract.context import Context
from flashrt_ros.contract.stream import Stream

if TYPE_CHECKING:
    from flashrt_ros.capsule.live import Live


@dataclass(frozen=True)
class Usage:
    """What a tier holds: bytes in use (a shared segment once), its budget, its capsules."""

    used: int
    budget: int | None
    capsules: int


class Registry:
    """Keeps capsules; shared by the sessions of one context.

    Args:
        ctx: the device.
        gpu_bytes: budget in the device's memory, taken at once.
        host_bytes: budget in pinned host memory, taken at once.
        store: the folder of the disk tier; sessions find what it holds for their deployment.
        keep: hold capsules until `evict`; otherwise those in memory live only for as long as
            somebody refers to them.
    """

    def __init__(
        self,
        ctx: Context,
        gpu_bytes: int,
        host_bytes: int = 0,
        store: DiskStore | None = None,
        keep: bool = True,
    ) -> None:
        self._ctx = ctx
        self.lock = threading.RLock()  # held by sessions while they work
        self._memory = Memory(ctx, gpu_bytes, host_bytes, lambda tier: self._room.make(tier))
        self.store = store
        self._disk = Disk(store) if store is not None else None
        self._roster = Roster(self._memory, self.lock, keep)
        self._writer = (
            Writer(self._disk, self._memory, self._roster, self.lock) if self._disk else None
        )
        self._room = Room(self, self._memory, self._roster, self._writer)
        self.stream: Stream | None = None  # where sessions work
        # For sessions, with the lock; as short as they are long on the way of every call:
        self.take = self._memory.arenas['gpu'].take_all  # blocks for a new capsule
        self.collect = self._roster.collect  # free what is not needed, while the device works
        self.lives: weakref.WeakSet[Live] = weakref.WeakSet()  # live states that share segments
        self._stamp = 0.0
        self.refused: dict[str, str] = {}  # stored capsules that no session may have, and why

    def work_on(self, stream: Stream) -> None:
        """Copies run on `stream` from now on, after the earlier ones; call it with the lock."""
        self._memory.work_on(stream)
        self.stream = stream

    def give(self, blocks: Sequence[Block]) -> None:
        """No capsule came of these blocks."""
        self._memory.give(blocks)

    def make_room(self, nbytes: int) -> None:
        """Let something leave the gpu tier, so that `take` may find room.

        Raises:
            BudgetError: nothing may leave it.
        """
        self._memory.make_room('gpu', nbytes)

    def admit(self, capsule: Capsule) -> None:
        """A new capsule, whose blocks are in the gpu tier."""
        for tip in capsule.tips:
            tip.hold('gpu')
        capsule.tiers.add('gpu')
        self._roster.add(capsule)

    def ready(self, capsule: Capsule, stream: Stream) -> None:
        """All bytes of the capsule are in the gpu tier for what `stream` does next."""
        if 'gpu' not in capsule.tiers:
            self.promote(capsule, 'gpu')
        self._memory.await_arrivals(stream)

    def used(self, capsule: Capsule) -> None:
        """It was restored: it leaves the gpu tier after all others."""
        self._stay(capsule, 'gpu')
        self._roster.touch(capsule)

    def gone(self, tips: tuple[Segment, ...], tiers: set[str], lineage: Lineage | None) -> None:
        """Somebody was garbage collected, perhaps in the middle of our own work."""
        self._roster.gone(tips, tiers, lineage)

    def adopt(self, layout: Layout, fingerprint: Fingerprint) -> None:
        """Open every stored capsule of this deployment; `refused` says why others were not.

        Reads headers alone; the bytes of a capsule are checked when it is promoted.
        """
        if self._disk is None:
            return
        with self.lock:
            known = {capsule.file: capsule for capsule in self.capsules if capsule.file}
            found, refused = self._disk.open_all(known, self, layout, fingerprint)
            for capsule in found:
                self._add_stored(capsule)
            there = {capsule.file for capsule in self.capsules}
            earlier = {name: why for name, why in self.refused.items() if name not in there}
            self.refused = earlier | refused

    def open(self, name: str, layout: Layout, fingerprint: Fingerprint) -> Capsule:
        """One stored capsule, by its digest.

        Raises:
            StoreError: the file is not what it must be.
            FingerprintError: it belongs to another deployment.
        """
        self._to_disk()
        assert self._disk is not None
        with self.lock:
            capsule, _ = self._disk.open(name, self, layout, fingerprint)
            self._add_stored(capsule)
            return capsule

    def _add_stored(self, capsule: Capsule) -> None:
        capsule.tiers.add('disk')
        self._roster.add(capsule)
        self._roster.keep(capsule)

    @property
    def capsules(self) -> tuple[Capsule, ...]:
        """All capsules that are there, least recently used first."""
        return self._roster.members

    def latest(self, boundary: str | None = None) -> Capsule | None:
        """The newest capsule, or the newest at `boundary`."""
        fits = [c for c in self.capsules if boundary is None or c.boundary == boundary]
        return max(fits, key=lambda capsule: capsule.created, default=None)

    def usage(self, tier: str) -> Usage:
        """What `tier` holds now."""
        with self.lock:
            self._roster.collect()
            count = sum(tier in capsule.tiers for capsule in self.capsules)
            if _known(tier) != 'disk':
                arena = self._memory.arenas[tier]
                return Usage(arena.used, arena.capacity, count)
            if self._disk is None:
                return Usage(0, 0, 0)
            return Usage(self._disk.store.used(), self._disk.store.quota, count)

    def demote(self, capsule: Capsule, tier: str = 'host', wait: bool = False) -> None:
        """Move a capsule to a lower tier, behind the caller and beside the replays.

        It stays in the tiers above until all of it has arrived below: in the host tier by copies
        on a stream of their own, on disk when a thread of its own has made its file safe.

        Args:
            capsule: of this registry.
            tier: 'host' or 'disk'.
            wait: return only when its place in the tiers above is free.

        Raises:
            PinnedError: it is pinned.
            BudgetError: no room there; it stays where it is. (Without `wait`, the quota of the
                disk is only found behind the caller, and told by the next `settle`.)
            EvictedError, StoreError: its bytes are gone; there is no disk tier.
        """
        with self.lock:
            self._require(capsule)
            if capsule.pinned:
                raise PinnedError(f'{capsule!r} is pinned: close or unpin its session first')
            if _known(tier) == 'disk' and 'disk' not in capsule.tiers and not wait:
                self._to_disk().submit(capsule)
                return
        if tier == 'disk':
            self.commit(capsule)
        with self.lock:
            self._require(capsule)
            if tier == 'host' and capsule.tier == 'gpu':
                if 'host' not in capsule.tiers:
                    with self._roster.at_work(capsule):
                        self._memory.bring(
                            capsule.tips, 'host', lambda new: self._fill(capsule, new, 'host')
                        )
                    capsule.tiers.add('host')
                self._roster.stay(capsule, 'host')
            for above in MEMORY[: TIERS.index(tier)]:
                if above in capsule.tiers:
                    self._roster.leave_after_copies(capsule, above)
            if wait:
                self._finish_copies()

    def commit(self, capsule: Capsule) -> str:
        """Write a capsule to disk; it stays in its other tiers too.

        Returns its digest when the file is safe, come what may.

        Raises:
            BudgetError: the quota does not allow it.
            EvictedError, StoreError: its bytes are gone; there is no disk tier.
        """
        writer = self._to_disk()
        self._require(capsule)
        return writer.commit(capsule)

    def promote(self, capsule: Capsule, tier: str = 'gpu') -> None:
        """Bring a capsule into a faster tier; it leaves the slower one of memory.

        Raises:
            BudgetError: no room there; it stays where it is.
            StoreError: its file is not what it must be.
            EvictedError: its bytes are gone.
        """
        if _known(tier) == 'disk':
            raise CapsuleError('no tier is slower than disk: promote to gpu or host')
        with self.lock:
            self._require(capsule)
            self._roster.touch(capsule)
            self._stay(capsule, tier)
            if tier in capsule.tiers or capsule.tier == 'gpu':
                return
            with self._roster.at_work(capsule):
                self._memory.bring(capsule.tips, tier, lambda new: self._fill(capsule, new, tier))
            capsule.tiers.add(tier)
            if tier == 'gpu' and 'host' in capsule.tiers:
                self._roster.leave_after_copies(capsule, 'host')

    def evict(self, capsule: Capsule) -> None:
        """Drop a capsule's bytes from every tier, its file included.

        Raises:
            PinnedError: it is pinned.
            CapsuleError: it is being written to disk at this moment.
        """
        with self.lock:
            if capsule.pinned:
                raise PinnedError(f'{capsule!r} is pinned: close or unpin its session first')
            if self._roster.busy(capsule):
                raise CapsuleError(f'{capsule!r} is being copied: evict it when that is done')
            if 'disk' in capsule.tiers and self._disk is not None and capsule.file is not None:
                self._disk.store.remove(capsule.file)
            self._roster.remove(capsule)

    def settle(self) -> None:
        """The host waits until every capsule that is leaving a tier has left it.

        Raises:
            BudgetError, StoreError, OSError: one could not be written to disk behind the caller;
                it stays where it is. The next call tells of the next one.
        """
        with self.lock:
            if self._writer is not None:
                self._writer.wait()
            self._finish_copies()
            if self._writer is not None:
                self._writer.tell()

    def _finish_copies(self) -> None:
        self._memory.finish_copies()
        self._roster.collect()

    def digest(self, capsule: Capsule) -> str:
        """The digest of the capsule's state; waits for the device."""
        self._require(capsule)
        with self._roster.at_work(capsule):
            return state_digest(capsule, self._memory.reader(str(capsule.tier)))

    def hold(self, capsule: Capsule) -> Hold | None:
        """Keeps the capsule's file, if it has one, from being removed by other processes."""
        if self._disk is None or capsule.file is None or 'disk' not in capsule.tiers:
            return None
        return self._disk.store.hold(capsule.file)

    def stamp(self) -> float:
        """Seconds since the epoch, later than every stamp before."""
        now = time.time()
        self._stamp = now if now > self._stamp else self._stamp + 1e-6
        return self._stamp

    @property
    def leaving(self) -> int:
        """How many capsules are on their way out of a tier."""
        with self.lock:
            self._roster.collect()
            return self._roster.leaving + (len(self._writer.pending) if self._writer else 0)

    def _require(self, capsule: Capsule) -> None:
        capsule.require_there()
        if capsule._registry is not self:
            raise CapsuleError(f'{capsule!r} is in another registry: ask that one')

    def _to_disk(self) -> Writer:
        if self._writer is None:
            raise StoreError('this registry has no disk tier: give it a DiskStore')
        return self._writer

    def _stay(self, capsule: Capsule, tier: str) -> None:
        """Forget that it was about to leave `tier`."""
        self._roster.stay(capsule, tier)
        if self._writer is not None:
            self._writer.stay(capsule)

    def _fill(self, capsule: Capsule, segments: list[Segment], tier: str) -> None:
        """Put bytes into new blocks: from the other memory tier where it has them, or disk."""
        other = 'host' if tier == 'gpu' else 'gpu'
        self._memory.copy([s for s in segments if other in s.blocks], other, tier)
        for segment in segments:
            if other not in segment.blocks:
                assert self._disk is not None
                views = capsule.layout.views(segment, segment.blocks[tier].tensor)
                self._memory.store(views, self._disk.load(capsule, segment))


def _known(tier: str) -> str:
    if tier not in TIERS:
        raise CapsuleError(f'unknown tier {tier!r}: use {", ".join(TIERS)}')
    return tier
