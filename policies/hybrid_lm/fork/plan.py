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
    START,
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
    lengths = asked.lengths
    rows = trunk + len(asked.questions)
    if align > 1:
        rows += sum(-count % align for count in (trunk, *lengths))
    return Sizes(
        rows=rows,
        requests=1,
        branches=len(lengths),
        chunks=chunk_count(trunk) + sum([chunk_count(count) for count in lengths]),
        options=len(asked.options),
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
        flat: int32 [sizes.words], overwritten; options and tokens that are not used keep what
            stood there, as nobody looks at them.
        align: segments start at multiples of it.

    Returns:
        The first option of each branch, and behind the last one their number.
    """
    table = arrays(flat, sizes)
    segments, chunks, options = table['segments'], table['chunks'], table['options']
    tokens, reads, bounds = table['tokens'], table['reads'], table['bounds']
    flat[: sizes.cleared].fill(0)
    if align > 1:
        tokens.fill(0)  # there are holes, which are computed too
    row = piece = branch = option = 0
    for index, x in enumerate(placed):
        count = len(x.asked.state) - x.resumed
        end = piece + chunk_count(count)
        segments[index] = row, count, x.slot, x.resumed, x.resumed, x.mark, piece, index
        tokens[row : row + count] = x.asked.state[x.resumed :]
        chunks[piece:end, 0] = index
        chunks[piece:end, 1] = np.arange(end - piece)
        row, piece = row + count + -count % align, end
    for index, x in enumerate(placed):
        asked, here = x.asked, len(x.asked.state)
        counts, choices = np.array(asked.lengths), np.array(asked.choices)
        first, end = sizes.requests + branch, branch + len(counts)
        room = counts + -counts % align if align > 1 else counts
        starts = row + room.cumsum() - room
        own = segments[first : first + len(counts)]
        own[:] = 0, 0, x.slot, here, here, 0, 0, index
        own[:, START], own[:, COUNT] = starts, counts
        reads[branch:end] = starts + counts - 1
        pieces = -(-counts // CHUNK)
        own[:, FIRST] = firsts = piece + pieces.cumsum() - pieces
        total = int(firsts[-1] + pieces[-1])
        chunks[piece:total, 0] = np.arange(first, first + len(counts)).repeat(pieces)
        chunks[piece:total, 1] = np.arange(piece, total) - firsts.repeat(pieces)
        last = option + len(asked.options)
        bounds[branch + 1 : end + 1] = option + choices.cumsum()
        options[option:last, 0] = np.arange(branch, end).repeat(choices)
        options[option:last, 1] = asked.options
        if align == 1:
            tokens[row : row + len(asked.questions)] = asked.questions
        else:
            parts = np.split(asked.questions, counts.cumsum()[:-1])
            for start, part in zip(starts, parts, strict=True):
                tokens[start : start + len(part)] = part
        row, piece, branch, option = int(starts[-1] + room[-1]), total, end, last
    table['counts'][:5] = row, len(placed), branch, piece, option
    found: list[int] = bounds[: branch + 1].tolist()
    return found
