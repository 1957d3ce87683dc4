r"""Segments: immutable bytes that capsules share, each kept once per tier.

A capsule has one segment for its fixed part, and for every rope a node: the newest piece of a
chain that leads back to the beginning. A node says from which position on it replaces what its
ancestors hold, so a chain reads like a text with its edits:

    A [0, 100)  <-  B [100, 164)  <-  C [164, 228)
                 \- D [40, 52)            D's text is A's first 40 positions, then its own 12

Two capsules with a common node share its bytes. A node is counted in a tier once for every
capsule that is kept there and ends in it, and once for every node there that continues it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from flashrt_ros.capsule.arena import Block

MEMORY = ('gpu', 'host')  # tiers with an address, fastest first; on the CPU both are its memory
TIERS = (*MEMORY, 'disk')


class Segment:
    """Immutable bytes.

    Attributes:
        nbytes: how many.
        blocks: tier to the block that holds them.
        holders: tier to how many capsules and nodes there need them.
        parent: what it continues; None for a beginning and for a fixed part.
    """

    __slots__ = ('__weakref__', 'blocks', 'holders', 'nbytes', 'parent')

    def __init__(self, nbytes: int, parent: Node | None = None) -> None:
        self.nbytes = nbytes
        self.blocks: dict[str, Block] = {}
        self.holders = {'gpu': 0, 'host': 0}
        self.parent = parent

    def missing(self, tier: str) -> Iterator[Segment]:
        """The segments that `hold` would count for the first time: self first, then back."""
        segment: Segment | None = self
        while segment is not None and not segment.holders[tier]:
            yield segment
            segment = segment.parent

    def anchor(self, tier: str) -> Segment | None:
        """The nearest segment, self or back, that is in `tier` already."""
        segment: Segment | None = self
        while segment is not None and not segment.holders[tier]:
            segment = segment.parent
        return segment

    def hold(self, tier: str) -> None:
        """One more capsule in `tier` ends here. Every missing segment must have its block."""
        segment: Segment | None = self
        while segment is not None:
            segment.holders[tier] += 1
            if segment.holders[tier] > 1:
                return
            segment = segment.parent

    def release(self, tier: str) -> None:
        """One capsule less; blocks nobody needs go back to their arena."""
        segment: Segment | None = self
        while segment is not None:
            segment.holders[tier] -= 1
            if segment.holders[tier]:
                return
            block = segment.blocks.pop(tier)
            block.arena.give(block)
            segment = segment.parent


class Node(Segment):
    """Positions [begin, end) of one rope; below `begin` its parent's text holds.

    Attributes:
        rope: which of the closure's ropes.
        depth: how many nodes precede it.
        file: name of its file on disk, once it has one.
        chunks: digests of the complete chunks of [0, end), filled when first asked for.
    """

    __slots__ = ('begin', 'chunks', 'depth', 'end', 'file', 'rope')

    def __init__(self, parent: Node | None, begin: int, end: int, stride: int, rope: int) -> None:
        super().__init__((end - begin) * stride, parent)
        self.rope = rope
        self.begin = begin
        self.end = end
        self.depth: int = parent.depth + 1 if parent is not None else 0
        self.file: str | None = None
        self.chunks: list[bytes] | None = None


class Text(NamedTuple):
    """The first `length` positions of a node's chain; what a rope held at one moment."""

    node: Node | None
    length: int

    def cut(self, length: int) -> Text:
        """The first `length` positions, ending in the oldest node that has the last of them."""
        if length == self.length:
            return self
        node = self.node
        while node is not None and node.begin >= length:
            node = node.parent
        return Text(node, length)

    def common(self, other: Text) -> int:
        """How many positions both surely share: what comes from the same nodes."""
        mine, theirs = self.node, other.node
        length, limit = self.length, other.length
        while mine is not theirs:
            if theirs is None or (mine is not None and mine.depth >= theirs.depth):
                assert mine is not None
                length, mine = min(length, mine.begin), mine.parent
            else:
                limit, theirs = min(limit, theirs.begin), theirs.parent
        return min(length, limit)

    def pieces(self, start: int = 0) -> list[tuple[Node, int, int]]:
        """(node, a, b) that tile [start, length): positions a..b stand in node. Oldest first."""
        found: list[tuple[Node, int, int]] = []
        node, end = self.node, self.length
        while node is not None and end > start:
            if node.begin < end:
                found.append((node, max(node.begin, start), end))
                end = node.begin
            node = node.parent
        return found[::-1]
