"""Roster: which capsules a registry has, in order of use, and which are on their way out."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from flashrt_ros.capsule.capsule import Capsule, Lineage
from flashrt_ros.capsule.memory import Memory
from flashrt_ros.capsule.segment import MEMORY, Segment
from flashrt_ros.contract.stream import Event


@dataclass
class _Leaving:
    """A capsule whose copy to another tier is under way; afterwards it leaves `tier`."""

    capsule: Capsule
    tier: str
    copied: Event


class Roster:
    """Members come and go in tiers; what they leave behind goes back to the arenas.

    Args:
        memory: the arenas' owner.
        lock: of the registry.
        keep: hold members until `remove`; otherwise those in memory alone end with their last
            reference.
    """

    def __init__(self, memory: Memory, lock: threading.RLock, keep: bool) -> None:
        self._memory = memory
        self._lock = lock
        self._keep = keep
        self._kept: dict[Lineage, Capsule] = {}
        self._order: OrderedDict[Lineage, None] = OrderedDict()  # least recently used first
        self._busy: list[Lineage] = []
        self._leaving: deque[_Leaving] = deque()
        self._garbage: deque[tuple[tuple[Segment, ...], set[str], Lineage | None]] = deque()

    @property
    def members(self) -> tuple[Capsule, ...]:
        """All capsules, least recently used first."""
        with self._lock:
            found = [place.capsule for place in self._order]
        return tuple(capsule for capsule in found if capsule is not None)

    @property
    def leaving(self) -> int:
        """How many are on their way out of a tier."""
        return len(self._leaving)

    def add(self, capsule: Capsule) -> None:
        """A new member."""
        self._order[capsule.lineage] = None
        if self._keep:
            self._kept[capsule.lineage] = capsule

    def keep(self, capsule: Capsule) -> None:
        """Hold a member until `remove`, whoever refers to it."""
        self._kept[capsule.lineage] = capsule

    def touch(self, capsule: Capsule) -> None:
        """It was used just now."""
        self._order.move_to_end(capsule.lineage)

    def remove(self, capsule: Capsule) -> None:
        """It leaves every tier, for good."""
        self.stay(capsule)
        self.gone(capsule.tips, set(capsule.tiers), None)
        capsule.tiers.clear()
        self._order.pop(capsule.lineage, None)
        self._kept.pop(capsule.lineage, None)
        capsule.lineage.end()
        self.collect()

    def busy(self, capsule: Capsule) -> bool:
        """True between `begin` and `finish`."""
        return capsule.lineage in self._busy

    @contextmanager
    def at_work(self, capsule: Capsule) -> Iterator[None]:
        """Within the block the capsule leaves no tier."""
        self.begin(capsule)
        try:
            yield
        finally:
            self.finish(capsule)

    def begin(self, capsule: Capsule) -> None:
        """Until as many `finish`, the capsule leaves no tier."""
        with self._lock:
            self._busy.append(capsule.lineage)

    def finish(self, capsule: Capsule) -> None:
        """See `begin`."""
        with self._lock:
            self._busy.remove(capsule.lineage)

    def leave(self, capsule: Capsule, tier: str) -> None:
        """Out of a tier now; waits for copies that may still read or write its blocks."""
        capsule.tiers.discard(tier)
        if tier != 'disk':
            self._memory.finish_copies()
            for tip in capsule.tips:
                tip.release(tier)

    def leave_after_copies(self, capsule: Capsule, tier: str) -> None:
        """Out of a tier once the copies under way are done."""
        self.stay(capsule, tier)
        self._leaving.append(_Leaving(capsule, tier, self._memory.mark()))

    def stay(self, capsule: Capsule, tier: str | None = None) -> None:
        """Forget that the capsule was about to leave `tier` (None: any)."""
        if self._leaving:
            for leaving in tuple(self._leaving):
                if leaving.capsule is capsule and tier in (leaving.tier, None):
                    self._leaving.remove(leaving)

    def gone(self, tips: tuple[Segment, ...], tiers: set[str], lineage: Lineage | None) -> None:
        """Somebody is gone; its blocks come back at once, or with the work that goes on now."""
        self._garbage.append((tips, tiers, lineage))
        # Python collects anywhere, also in the middle of our own work: the lock is ours then, and
        # only this says so; `threading.Condition` asks its lock alike.
        free = not self._lock._is_owned()  # type: ignore[attr-defined]
        if free and self._lock.acquire(blocking=False):
            try:
                self.collect()
            finally:
                self._lock.release()

    def collect(self) -> None:
        """Free what those who are gone left behind, and what is done leaving. Never waits."""
        # A copy under way may still read or write a block that nobody needs any more.
        while self._garbage and self._memory.quiet():
            tips, tiers, lineage = self._garbage.popleft()
            for tier in MEMORY:
                if tier in tiers:
                    for tip in tips:
                        tip.release(tier)
            if lineage is not None:
                self._order.pop(lineage, None)
                lineage.end()
        for leaving in tuple(self._leaving) if self._leaving else ():
            # One that is being written to disk leaves later.
            if leaving.copied.reached() and not self.busy(leaving.capsule):
                self._leaving.remove(leaving)
                leaving.capsule.tiers.discard(leaving.tier)
                for tip in leaving.capsule.tips:
                    tip.release(leaving.tier)
