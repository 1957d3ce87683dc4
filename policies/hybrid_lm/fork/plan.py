"""A round as one flat stream: states first, then branches, with everything the kernels look up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flashrt_policies.hybrid_lm.fork.request import Checked
from flashrt_policies.kernels.fork.stream import (
    COUNT,
    FIRST,
    MARK,
    PARENT,
    POSITION,
    SLOT,
    START,
    TRUNK,
    Sizes,
    arrays,
    chunk_count,
)
from flashrt_policies.kernels.gated_delta import CHUNK


@dataclass(frozen=True)
class Placed:
    """A request with a place to run in.

    Attributes:
        asked: its tokens.
        slot: index of its slot.
        resumed: tokens of the state that the slot holds already, a multiple of the chunk.
    """

    asked: Checked
    slot: int
    resumed: int

    @property
    def mark(self) -> int:
        """Rows of the trunk up to the checkpoint; 0 where none is left."""
        length = len(self.asked.state)
        return length - length % CHUNK - self.resumed if self.asked.keep else 0


def sizes_of(asked: Checked, resumed: int, align: int = 1) -> Sizes:
    """Return what one request takes of a stream whose segments start at multiples of `align`."""
    trunk = len(asked.state) - resumed
    lengths = [len(branch) for branch in asked.branches]
    return Sizes(
        rows=sum(count + -count % align for count in (trunk, *lengths)),
        requests=1,
        branches=len(lengths),
        chunks=chunk_count(trunk) + sum(map(chunk_count, lengths)),
        options=sum(map(len, asked.options)),
    )


def joined(one: Sizes, other: Sizes) -> Sizes:
    """Return what two rounds in one take."""
    return Sizes(
        one.rows + other.rows, one.requests + other.requests, one.branches + other.branches,
        one.chunks + other.chunks, one.options + other.options,
    )  # fmt: skip


def lay_out(
    placed: Sequence[Placed], sizes: Sizes, flat: NDArray[np.int32], align: int = 1
) -> list[int]:
    """Write the tables of a round.

    Args:
        placed: the requests.
        sizes: of the stream it runs in; it fits.
        flat: int32 [sizes.words], overwritten.
        align: segments start at multiples of it.

    Returns:
        The first option of each branch, and behind the last one their number.
    """
    table = arrays(flat, sizes)
    for name in ('counts', 'segments', 'reads', 'bounds'):
        table[name].fill(0)
    trunks = [len(x.asked.state) - x.resumed for x in placed]
    owner = np.repeat(np.arange(len(placed)), [len(x.asked.branches) for x in placed])
    branches = [branch for x in placed for branch in x.asked.branches]
    count = np.array(trunks + [len(branch) for branch in branches])
    start = np.concatenate(([0], (count + -count % align).cumsum()))
    chunks = -(-count // CHUNK)
    first = np.concatenate(([0], chunks.cumsum()))
    length = np.array([len(x.asked.state) for x in placed])
    slot = np.array([x.slot for x in placed])
    r, n = len(placed), len(branches)
    resumed = np.array([x.resumed for x in placed])

    # Trunks stand at 0 .. R - 1 of the segments, branches from the room for trunks on.
    place = np.concatenate((np.arange(r), sizes.requests + np.arange(n)))
    segments = table['segments']
    segments[place, START], segments[place, COUNT] = start[:-1], count
    segments[place, SLOT] = np.concatenate((slot, slot[owner]))
    segments[place, POSITION] = np.concatenate((resumed, length[owner]))
    segments[place, TRUNK] = np.concatenate((resumed, length[owner]))
    segments[:r, MARK] = [x.mark for x in placed]
    segments[place, FIRST] = first[:-1]
    segments[place, PARENT] = np.concatenate((np.arange(r), owner))
    total = int(first[-1])
    table['chunks'][:total, 0] = np.repeat(place, chunks)
    table['chunks'][:total, 1] = np.arange(total) - np.repeat(first[:-1], chunks)
    table['reads'][:n] = start[r:-1] + count[r:] - 1
    options = [tokens for x in placed for tokens in x.asked.options]
    bounds = [0, *np.cumsum([len(tokens) for tokens in options]).tolist()]
    table['bounds'][: n + 1] = bounds
    table['options'][: bounds[-1], 0] = np.repeat(np.arange(n), np.diff(bounds))
    table['options'][: bounds[-1], 1] = np.concatenate(options)
    table['options'][bounds[-1] :] = 0
    texts = [x.asked.state[x.resumed :] for x in placed] + branches
    if align == 1:
        table['tokens'][: start[-1]] = np.concatenate(texts)
        table['tokens'][start[-1] :] = 0
    else:
        table['tokens'].fill(0)
        for first, text in zip(start, texts, strict=False):
            table['tokens'][first : first + len(text)] = text
    table['counts'][:5] = start[-1], r, n, total, bounds[-1]
    return bounds
