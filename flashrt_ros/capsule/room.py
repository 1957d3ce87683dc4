"""Room: how a full tier makes room. Nothing is ever dropped for it, and no pin is broken."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashrt_ros.capsule.capsule import Capsule
from flashrt_ros.capsule.errors import BudgetError
from flashrt_ros.capsule.memory import Memory
from flashrt_ros.capsule.roster import Roster
from flashrt_ros.capsule.segment import TIERS
from flashrt_ros.capsule.writer import Writer

if TYPE_CHECKING:
    from flashrt_ros.capsule.registry import Registry


class Room:
    """Demotes the least recently used capsule of a tier; call it with the registry's lock."""

    def __init__(
        self, registry: Registry, memory: Memory, roster: Roster, writer: Writer | None
    ) -> None:
        self._registry = registry
        self._memory = memory
        self._roster = roster
        self._writer = writer

    def make(self, tier: str) -> bool:
        """Finish what is leaving `tier`, or demote a capsule out of it; False when none can be."""
        used = self._memory.arenas[tier].used
        self._memory.finish_copies()
        self._roster.collect()
        if self._memory.arenas[tier].used < used:
            return True
        for capsule in self._roster.members:
            movable = not capsule.pinned and not self._roster.busy(capsule)
            if tier in capsule.tiers and movable and self._lower(capsule, tier):
                return True
        if self._writer is not None and self._writer.pending:
            self._writer.wait_for_next()
            return True
        return tier == 'gpu' and any(live.let_go() for live in self._registry.lives)

    def _lower(self, capsule: Capsule, tier: str) -> bool:
        """Demote by one tier, or further where the next has no room."""
        if tier == 'host' and 'gpu' in capsule.tiers:  # a second copy, kept while there was room
            self._roster.stay(capsule, 'gpu')
            self._roster.leave(capsule, 'host')
            return True
        below = [t for t in TIERS[TIERS.index(tier) + 1 :] if t != 'disk' or self._writer]
        for target in below:
            try:
                self._registry.demote(capsule, target, wait=True)
            except BudgetError:
                continue
            return True
        return False
