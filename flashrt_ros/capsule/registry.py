"""Registry: where capsules live. Tiers gpu, host (pinned) and disk, with budgets and pins.

A full tier makes room by demoting its least recently used capsule that is not pinned. Nothing is
ever dropped to make room: when no tier below has room, the request fails and says so.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from flashrt_ros.capsule.arena import Arena, Block
from flashrt_ros.capsule.capsule import Capsule, Lineage
from flashrt_ros.capsule.digest import state_digest
from flashrt_ros.capsule.errors import BudgetError, CapsuleError, EvictedError, PinnedError
from flashrt_ros.capsule.segment import MEMORY, TIERS, Segment
from flashrt_ros.contract.context import Context
from flashrt_ros.contract.stream import Event, Stream

if TYPE_CHECKING:
    from flashrt_ros.capsule.session import Session


@dataclass(frozen=True)
class Usage:
    """What a tier holds: bytes in use (a shared segment once), its budget, its capsules."""

    used: int
    budget: int
    capsules: int


@dataclass
class _Leaving:
    """A capsule whose copy to a lower tier is under way; afterwards it leaves `tier`."""

    capsule: Capsule
    tier: str
    copied: Event


class Registry:
    """Keeps capsules; shared by the sessions of one context.

    Args:
        ctx: the device.
        gpu_bytes: budget in the device's memory, taken at once.
        host_bytes: budget in pinned host memory, taken at once.
        keep: hold capsules until `evict`; otherwise only for as long as somebody refers to them.
    """

    def __init__(
        self, ctx: Context, gpu_bytes: int, host_bytes: int = 0, keep: bool = True
    ) -> None:
        self._ctx = ctx
        self._lock = threading.RLock()
        backend = ctx.backend
        self._arenas = {
            'gpu': Arena(gpu_bytes, lambda nbytes: backend.allocate((nbytes,), torch.uint8)),
            'host': Arena(host_bytes, backend.allocate_host),
        }
        self._keep = keep
        self._kept: dict[int, Capsule] = {}
        self._order: OrderedDict[int, Lineage] = OrderedDict()  # least recently used first
        self._busy: set[int] = set()  # capsules that must stay where they are for the moment
        self._leaving: deque[_Leaving] = deque()
        self._garbage: deque[tuple[tuple[Segment, ...], set[str], Lineage]] = deque()
        self._side = ctx.stream('capsule/transfer')
        self._stream: Stream | None = None  # where sessions work
        self._arrived: Event | None = None  # the last copy into the gpu tier on the side stream

    # --- what sessions call -------------------------------------------------------------------

    @contextmanager
    def working(self, stream: Stream) -> Iterator[None]:
        """The block's copies run on `stream`, after those of earlier blocks."""
        with self._lock:
            if self._stream is not stream:
                if self._stream is not None:
                    self._after(self._stream, stream)
                self._stream = stream
            self._collect()
            yield

    def admit(self, capsule: Capsule) -> None:
        """Give a new capsule its blocks in the gpu tier, still to be filled.

        Raises:
            BudgetError: no room; nothing changed.
        """
        self._bring(capsule, 'gpu', lambda segments: None)
        capsule.tiers.add('gpu')
        self._enter(capsule)

    def ready(self, capsule: Capsule, stream: Stream) -> None:
        """All bytes of the capsule are in the gpu tier for what `stream` does next."""
        self._touch(capsule)
        if 'gpu' not in capsule.tiers:
            self.promote(capsule, 'gpu')
        if self._arrived is not None:
            stream.wait(self._arrived)
            if self._arrived.reached():
                self._arrived = None

    def unpin_all(self, session: Session) -> None:
        """Release every pin of `session`."""
        with self._lock:
            for capsule in self.capsules:
                capsule.unpin(session)

    def collect_later(self, tips: tuple[Segment, ...], tiers: set[str], lineage: Lineage) -> None:
        """A capsule was garbage collected, perhaps in the middle of our own work."""
        self._garbage.append((tips, tiers, lineage))

    def digest(self, capsule: Capsule) -> str:
        """The digest of the capsule's state; waits for the device."""
        with self._lock:
            self._require(capsule)
            self._ctx.synchronize()
            return state_digest(capsule, self.fetch)

    def fetch(self, segment: Segment) -> torch.Tensor:
        """A segment's bytes in the host's memory, uint8 [nbytes]; the device must be idle."""
        for tier in reversed(MEMORY):
            if tier in segment.blocks:
                return segment.blocks[tier].tensor.cpu()
        raise EvictedError('a segment has no bytes left: its capsule was evicted')

    # --- what users call ----------------------------------------------------------------------

    @property
    def capsules(self) -> tuple[Capsule, ...]:
        """All capsules that are there, least recently used first."""
        with self._lock:
            found = [place.capsule for place in self._order.values()]
        return tuple(capsule for capsule in found if capsule is not None)

    def latest(self, boundary: str | None = None) -> Capsule | None:
        """The newest capsule, or the newest at `boundary`."""
        fits = [c for c in self.capsules if boundary is None or c.boundary == boundary]
        return max(fits, key=lambda capsule: capsule.created, default=None)

    def usage(self, tier: str) -> Usage:
        """What `tier` holds now."""
        with self._lock:
            self._collect()
            count = sum(tier in capsule.tiers for capsule in self.capsules)
            arena = self._arenas[_memory(tier)]
            return Usage(arena.used, arena.capacity, count)

    def demote(self, capsule: Capsule, tier: str = 'host', wait: bool = False) -> None:
        """Move a capsule to a lower tier, beside the replays: the copy runs on its own stream.

        Args:
            capsule: of this registry.
            tier: 'host'.
            wait: return when its place in the tier above is free.

        Raises:
            PinnedError: it is pinned.
            BudgetError: no room there.
            EvictedError: its bytes are gone.
        """
        with self._lock:
            self._require(capsule)
            if capsule.pinned:
                raise PinnedError(f'{capsule!r} is pinned: close or unpin its session first')
            if TIERS.index(_memory(tier)) <= TIERS.index(capsule.tier or 'disk'):
                return
            if tier not in capsule.tiers:
                self._bring(capsule, tier, lambda segments: self._copy(segments, 'gpu', tier))
                capsule.tiers.add(tier)
            self._stay(capsule, tier)
            self._leave_after_copy(capsule, 'gpu')
            if wait:
                self.settle()

    def promote(self, capsule: Capsule, tier: str = 'gpu') -> None:
        """Bring a capsule into a faster tier; it leaves the slower ones of memory.

        Raises:
            BudgetError: no room there.
            EvictedError: its bytes are gone.
        """
        with self._lock:
            self._require(capsule)
            self._stay(capsule, tier)
            if tier in capsule.tiers:
                return
            source = _memory(capsule.tier or '')
            self._bring(capsule, tier, lambda segments: self._copy(segments, source, tier))
            capsule.tiers.add(tier)
            if tier == 'gpu':
                self._arrived = self._ctx.event('capsule/arrived')
                self._arrived.record(self._side)
            self._leave_after_copy(capsule, source)
            self._touch(capsule)

    def evict(self, capsule: Capsule) -> None:
        """Drop a capsule's bytes from every tier.

        Raises:
            PinnedError: it is pinned.
        """
        with self._lock:
            if capsule.pinned:
                raise PinnedError(f'{capsule!r} is pinned: close or unpin its session first')
            self._stay(capsule, None)
            for tier in tuple(capsule.tiers):
                self._leave(capsule, tier)
            self._order.pop(id(capsule.lineage), None)
            self._kept.pop(id(capsule.lineage), None)
            capsule.lineage.end()

    def settle(self) -> None:
        """The host waits until every demotion is done."""
        with self._lock:
            while self._leaving:
                self._side.synchronize()
                self._finish()

    # --- inside -------------------------------------------------------------------------------

    def _require(self, capsule: Capsule) -> None:
        capsule.require_there()
        if capsule._registry is not self:
            raise CapsuleError(f'{capsule!r} is in another registry: ask that one')

    def _enter(self, capsule: Capsule) -> None:
        self._order[id(capsule.lineage)] = capsule.lineage
        if self._keep:
            self._kept[id(capsule.lineage)] = capsule

    def _touch(self, capsule: Capsule) -> None:
        self._order.move_to_end(id(capsule.lineage))

    def _leave(self, capsule: Capsule, tier: str) -> None:
        capsule.tiers.discard(tier)
        for tip in capsule.tips:
            tip.release(tier)

    def _leave_after_copy(self, capsule: Capsule, tier: str) -> None:
        """Let go of `tier` once what the side stream does now is done."""
        self._stay(capsule, tier)
        copied = self._ctx.event('capsule/copied')
        copied.record(self._side)
        self._leaving.append(_Leaving(capsule, tier, copied))

    def _stay(self, capsule: Capsule, tier: str | None) -> None:
        """Forget that the capsule was about to leave `tier` (None: whatever it was leaving)."""
        for leaving in tuple(self._leaving):
            if leaving.capsule is capsule and tier in (leaving.tier, None):
                self._leaving.remove(leaving)

    def _collect(self) -> None:
        """Free what garbage collection left behind and what finished leaving."""
        while self._garbage:
            tips, tiers, lineage = self._garbage.popleft()
            for tier in tiers:
                for tip in tips:
                    tip.release(tier)
            self._order.pop(id(lineage), None)
            lineage.end()
        if self._leaving:
            self._finish()

    def _finish(self) -> None:
        while self._leaving and self._leaving[0].copied.reached():
            done = self._leaving.popleft()
            self._leave(done.capsule, done.tier)

    def _after(self, first: Stream, then: Stream) -> None:
        event = self._ctx.event('capsule/after')
        event.record(first)
        then.wait(event)

    def _bring(self, capsule: Capsule, tier: str, fill: Callable[[list[Segment]], None]) -> None:
        """Give every segment a block in `tier`, fill the new ones, count them; all or nothing."""
        missing = [segment for tip in capsule.tips for segment in tip.missing(tier)]
        anchors = [anchor for tip in capsule.tips if (anchor := tip.anchor(tier)) is not None]
        for anchor in anchors:  # making room must not take away what the new segments build on
            anchor.hold(tier)
        self._busy.add(id(capsule.lineage))
        blocks: list[Block] = []
        try:
            for segment in missing:
                blocks.append(self._take(tier, segment.nbytes))
            for segment, block in zip(missing, blocks, strict=True):
                segment.blocks[tier] = block
            fill(missing)
        except BaseException:
            for segment in missing:
                segment.blocks.pop(tier, None)
            for block in blocks:
                block.arena.give(block)
            raise
        else:
            for tip in capsule.tips:
                tip.hold(tier)
        finally:
            self._busy.discard(id(capsule.lineage))
            for anchor in anchors:
                anchor.release(tier)

    def _take(self, tier: str, nbytes: int) -> Block:
        arena = self._arenas[tier]
        while True:
            block = arena.take(nbytes)
            if block is not None:
                return block
            if not self._make_room(tier):
                raise BudgetError(
                    f'the {tier} tier has no {nbytes} bytes left of {arena.capacity} and nothing '
                    'in it may be demoted: evict or unpin capsules, or give it a larger budget'
                )

    def _make_room(self, tier: str) -> bool:
        """Demote one capsule out of `tier`, or finish what is leaving it; False when none can."""
        if any(leaving.tier == tier for leaving in self._leaving):
            self.settle()
            return True
        for capsule in self.capsules:
            movable = not capsule.pinned and id(capsule.lineage) not in self._busy
            if tier in capsule.tiers and movable and self._lower(capsule, tier):
                return True
        return False

    def _lower(self, capsule: Capsule, tier: str) -> bool:
        if tier != 'gpu':
            return False
        try:
            self.demote(capsule, 'host', wait=True)
        except BudgetError:
            return False
        return True

    def _copy(self, segments: Iterable[Segment], source: str, target: str) -> None:
        """Copy the segments' blocks between tiers on the side stream; neighbours in one copy."""
        pairs = sorted(
            ((segment.blocks[source], segment.blocks[target]) for segment in segments),
            key=lambda pair: pair[0].offset,
        )
        if self._stream is not None:
            self._after(self._stream, self._side)
        runs: list[list[int]] = []
        for one, other in pairs:
            last = runs[-1] if runs else [-1, -1, 0]
            if (last[0] + last[2], last[1] + last[2]) == (one.offset, other.offset):
                last[2] += one.size
            else:
                runs.append([one.offset, other.offset, one.size])
        from_, to = self._arenas[source].memory, self._arenas[target].memory
        with self._side.use():
            for start, into, count in runs:
                to[into : into + count].copy_(from_[start : start + count], non_blocking=True)


def _memory(tier: str) -> str:
    if tier not in MEMORY:
        raise CapsuleError(f'unknown tier {tier!r}: use {", ".join(MEMORY)}')
    return tier
