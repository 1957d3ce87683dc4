"""Memory: the arenas of the gpu and host tiers, and the copies between them beside the replays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch

from flashrt_ros.capsule.arena import Arena, Block
from flashrt_ros.capsule.errors import BudgetError
from flashrt_ros.capsule.segment import Segment
from flashrt_ros.contract.context import Context
from flashrt_ros.contract.stream import Event, Stream


class Memory:
    """Blocks of segments in two tiers.

    Copies between tiers run on a stream of their own. They start after what the sessions' stream
    was given before them; a block is free again only when the copies out of it are done.

    Args:
        ctx: the device.
        gpu_bytes: budget in the device's memory, taken at once.
        host_bytes: budget in pinned host memory, taken at once.
        make_room: asked when a tier is full; frees something and returns True, or False.
    """

    def __init__(
        self, ctx: Context, gpu_bytes: int, host_bytes: int, make_room: Callable[[str], bool]
    ) -> None:
        backend = ctx.backend
        self.arenas = {
            'gpu': Arena(gpu_bytes, backend.reserve),
            'host': Arena(host_bytes, backend.allocate_host),
        }
        self._ctx = ctx
        self._make_room = make_room
        self._side = ctx.stream('capsule/transfer')
        self._sessions: Stream | None = None  # where sessions work
        self._under_way: Event | None = None  # the end of the last copy between tiers
        self._arrived: Event | None = None  # the end of the last copy into the gpu tier

    def work_on(self, stream: Stream) -> None:
        """What sessions do next runs on `stream`, after what they did before."""
        if self._sessions is not stream:
            if self._sessions is not None:
                self._after(self._sessions, stream)
            self._sessions = stream

    def await_arrivals(self, stream: Stream) -> None:
        """Later work of `stream` sees everything that was copied into the gpu tier."""
        if self._arrived is not None:
            stream.wait(self._arrived)
            if self._arrived.reached():
                self._arrived = None

    def mark(self) -> Event:
        """An event that is reached when the copies of now are done."""
        event = self._ctx.event('capsule/copied')
        event.record(self._side)
        return event

    def quiet(self) -> bool:
        """True when no copy between tiers is under way."""
        if self._under_way is not None and self._under_way.reached():
            self._under_way = None
        return self._under_way is None

    def finish_copies(self) -> None:
        """The host waits for the copies between tiers, if any are under way."""
        if not self.quiet():
            self._side.synchronize()
            self._under_way = None

    def bring(
        self,
        tips: Sequence[Segment],
        tier: str,
        fill: Callable[[list[Segment]], None],
    ) -> None:
        """Give every segment back from `tips` a block in `tier` and count them; all or nothing.

        Args:
            tips: what a capsule ends in.
            tier: 'gpu' or 'host'.
            fill: puts bytes into the blocks of the segments given to it.

        Raises:
            BudgetError: no room can be made; nothing changed.
        """
        missing = [segment for tip in tips for segment in tip.missing(tier)]
        # Making room must not take away what the new segments build on.
        anchors = [anchor for tip in tips if (anchor := tip.anchor(tier)) is not None]
        for anchor in anchors:
            anchor.hold(tier)
        blocks: list[Block] = []
        try:
            for segment in missing:
                blocks.append(self._take(tier, segment.nbytes))
            for segment, block in zip(missing, blocks, strict=True):
                segment.blocks[tier] = block
            if missing:
                fill(missing)
        except BaseException:
            for segment in missing:
                segment.blocks.pop(tier, None)
            self.give(blocks)
            raise
        else:
            for tip in tips:
                tip.hold(tier)
        finally:
            for anchor in anchors:
                anchor.release(tier)

    def give(self, blocks: Iterable[Block]) -> None:
        """Take blocks back."""
        for block in blocks:
            block.arena.give(block)

    def make_room(self, tier: str, nbytes: int) -> None:
        """Let something leave `tier`.

        Raises:
            BudgetError: nothing may leave it; the message asks for `nbytes`.
        """
        if not self._make_room(tier):
            capacity = self.arenas[tier].capacity
            raise BudgetError(
                f'the {tier} tier has no {nbytes} bytes left of {capacity} and nothing in it '
                'may be demoted: evict or unpin capsules, or give it a larger budget'
            )

    def _take(self, tier: str, nbytes: int) -> Block:
        while (block := self.arenas[tier].take(nbytes)) is None:
            self.make_room(tier, nbytes)
        return block

    def copy(self, segments: Iterable[Segment], source: str, target: str) -> None:
        """Copy blocks between tiers; neighbours in both go in one copy."""
        pairs = sorted(
            ((segment.blocks[source], segment.blocks[target]) for segment in segments),
            key=lambda pair: pair[0].offset,
        )
        runs: list[list[int]] = []
        for one, other in pairs:
            last = runs[-1] if runs else [-1, -1, 0]
            if (last[0] + last[2], last[1] + last[2]) == (one.offset, other.offset):
                last[2] += one.size
            else:
                runs.append([one.offset, other.offset, one.size])
        self._follow_sessions()
        from_, to = self.arenas[source].memory, self.arenas[target].memory
        with self._side.use():
            for start, into, count in runs:
                to[into : into + count].copy_(from_[start : start + count], non_blocking=True)
        self._under_way = self.mark()
        if target == 'gpu':
            self._arrived = self._under_way

    def reader(self, tier: str) -> Callable[[Segment], torch.Tensor]:
        """A function that gives a segment's bytes, uint8 [nbytes] in the host's memory.

        It sees what sessions have copied so far. It reads beside the replays; the host waits.
        """
        self._follow_sessions()
        self._side.synchronize()

        def read(segment: Segment) -> torch.Tensor:
            with self._side.use():
                return segment.blocks[tier].tensor.cpu()

        return read

    def store(self, views: dict[str, torch.Tensor], tensors: dict[str, torch.Tensor]) -> None:
        """Copy tensors from the host's memory into views of a block; the host waits."""
        self._follow_sessions()
        with self._side.use():
            for name, view in views.items():
                if view.device.type == 'cpu':
                    self._side.synchronize()  # an older copy may still read or write this memory
                view.copy_(tensors[name])
        self._side.synchronize()

    def _follow_sessions(self) -> None:
        if self._sessions is not None:
            self._after(self._sessions, self._side)

    def _after(self, first: Stream, then: Stream) -> None:
        event = self._ctx.event('capsule/after')
        event.record(first)
        then.wait(event)
