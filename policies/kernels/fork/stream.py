"""The flat stream of a round: which row belongs to which request and branch, and where it stands.

A round is one stream of rows: the states of its requests first, then their branches. Each is a
segment; `Tables` says in device memory all that the kernels need to know of them, so one captured
graph serves every round that fits. The torch bodies are the CPU path and the reference.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flashrt_policies.kernels.gated_delta import CHUNK

# Columns of a segment: first row in the stream; rows; slot of its request; position of the first
# row in its text; tokens of the trunk (for a trunk: those in the slot before this round); rows up
# to the checkpoint (0: none); first of its chunks; the trunk's segment (a trunk's: itself).
START, COUNT, SLOT, POSITION, TRUNK, MARK, FIRST, PARENT = range(8)
COLUMNS = 8
Rotary = tuple[Tensor, Tensor]  # cosines and sines [N, R]
# Entries of `counts`.
ROWS, REQUESTS, BRANCHES, CHUNKS, OPTIONS = range(5)
# Rows of `rows`: slot, branch (-1 in a trunk), position, segment (-1: unused row); behind them
# the inputs that the convolution meets one, two, ... tokens back, see `spread`.
ROW_SLOT, ROW_BRANCH, ROW_POSITION, ROW_SEGMENT, ROW_PAST = range(5)


@dataclass(frozen=True)
class Sizes:
    """How much a stream has room for.

    Attributes:
        rows: M, tokens of all segments.
        requests: R, trunks.
        branches: B, which is also the number of rows that are read.
        chunks: pieces of at most 64 rows that the segments are cut into.
        options: option tokens of all branches.
    """

    rows: int
    requests: int
    branches: int
    chunks: int
    options: int

    def fits(self, other: Sizes) -> bool:
        """Return whether a round of these sizes has room in a stream of `other`."""
        return (
            self.rows <= other.rows
            and self.requests <= other.requests
            and self.branches <= other.branches
            and self.chunks <= other.chunks
            and self.options <= other.options
        )

    def fields(self) -> list[tuple[str, tuple[int, ...]]]:
        """Name and shape of each table, in the order in which they lie in memory."""
        return [
            ('counts', (8,)),
            ('segments', (self.requests + self.branches, COLUMNS)),
            ('reads', (self.branches,)),
            ('bounds', (self.branches + 1,)),
            ('chunks', (self.chunks, 2)),
            ('options', (self.options, 2)),
            ('tokens', (self.rows,)),
        ]

    @cached_property
    def words(self) -> int:
        """int32 words of all tables."""
        return sum(prod(shape) for _, shape in self.fields())

    @cached_property
    def cleared(self) -> int:
        """Words of the first tables, in which what is not used must be zero."""
        return 8 + (self.requests + self.branches) * COLUMNS + 2 * self.branches + 1


@dataclass(frozen=True)
class Tables:
    """A round as the kernels read it; all int32.

    Attributes:
        sizes: the room there is; what is used stands in `counts`.
        counts: [8]: rows, requests, branches, chunks and options in use.
        segments: [R + B, 8], trunks first, then from R on the branches.
        reads: [B], the row that each branch is read at.
        bounds: [B + 1], the first option of each branch and, behind the last, their number.
        chunks: [chunks, 2]: segment, and which of its chunks.
        options: [options, 2]: branch, and the option's token.
        tokens: [M].
        steady: no sum may depend on what else is in the round.
    """

    sizes: Sizes
    counts: Tensor
    segments: Tensor
    reads: Tensor
    bounds: Tensor
    chunks: Tensor
    options: Tensor
    tokens: Tensor
    steady: bool = False


def views(flat: Tensor, sizes: Sizes, steady: bool = False) -> Tables:
    """Return the tables that lie one after the other in `flat`, int32 [sizes.words or more]."""
    found: dict[str, Tensor] = {}
    at = 0
    for name, shape in sizes.fields():
        count = prod(shape)
        found[name] = flat[at : at + count].view(shape)
        at += count
    return Tables(sizes, steady=steady, **found)


def arrays(flat: NDArray[np.int32], sizes: Sizes) -> dict[str, NDArray[np.int32]]:
    """Return the same as `views` over host memory, by name."""
    found, at = {}, 0
    for name, shape in sizes.fields():
        count = prod(shape)
        found[name] = flat[at : at + count].reshape(shape)
        at += count
    return found


def spread(tables: Tables, back: int) -> Tensor:
    """Return what every row is and what came before it; -1 where unused.

    Args:
        tables: the round.
        back: W - 1, how many tokens the convolution looks back.

    Returns:
        int32 [4 + back, M]: slot, branch, position, segment; then for d = 1 .. back the row d
        tokens before, which for the first ones of a branch is in its trunk; ``-2 - n`` where it
        is no row of this round but row n of all slots' windows; -1 before the text.
    """
    if tables.tokens.is_cuda:
        from flashrt_policies.kernels.fork import stream_triton

        return stream_triton.spread(tables, back)
    rows = torch.full((4 + back, tables.sizes.rows), -1, dtype=torch.int32)
    segments = tables.segments.tolist()
    for index, segment in enumerate(segments):
        start, count = segment[START], segment[COUNT]
        if not count:
            continue
        trunk = segments[segment[PARENT]]
        window = -2 - segment[SLOT] * back - torch.arange(back)
        line = window if trunk[POSITION] else torch.full((back,), -1)
        if index >= tables.sizes.requests:
            line = torch.cat((line, trunk[START] + torch.arange(trunk[COUNT])))
        line = torch.cat((line, start + torch.arange(count)))
        for d in range(1, back + 1):
            rows[ROW_PAST + d - 1, start : start + count] = line[len(line) - count - d :][:count]
        branch = index - tables.sizes.requests
        rows[ROW_SLOT, start : start + count] = segment[SLOT]
        rows[ROW_BRANCH, start : start + count] = max(branch, -1)
        rows[ROW_POSITION, start : start + count] = segment[POSITION] + torch.arange(count)
        rows[ROW_SEGMENT, start : start + count] = index
    return rows


def rotary(tables: Tables, rows: Tensor, freq: Tensor) -> tuple[Tensor, Rotary, Rotary]:
    """Return what is read, and the rotations of all rows and of those.

    Args:
        tables: the round.
        rows: from `spread`.
        freq: float32 [R], rotary frequencies.

    Returns:
        The columns of `rows` that are read, [4 + back, B]; then cosines and sines of every row's
        rotation, float32 [M, R] each, and of those of the rows that are read, [B, R]. What an
        unused row has is meaningless.
    """
    if rows.is_cuda:
        from flashrt_policies.kernels.fork import stream_triton

        return stream_triton.rotary(tables, rows, freq)
    reads = rows.index_select(1, tables.reads)
    angles = [x[ROW_POSITION].float()[:, None] * freq for x in (rows, reads)]
    turn, read_turn = ((angle.cos(), angle.sin()) for angle in angles)
    return reads, turn, read_turn


def embed(
    tables: Tables, rows: Tensor, weight: Tensor, histories: list[Tensor], apart: Tensor
) -> Tensor:
    """Look the tokens up, and note those of trunks in their slot's history.

    Args:
        tables: the round.
        rows: from `spread`.
        weight: [vocab, hidden].
        histories: per slot, int32 [1, T]; written at the trunk's positions.
        apart: int64 [slots], elements from the first history to each.

    Returns:
        [M, hidden]; unused rows are zero.
    """
    if weight.is_cuda:
        from flashrt_policies.kernels.fork import stream_triton

        return stream_triton.embed(tables, rows, weight, histories, apart)
    for segment in tables.segments[: tables.sizes.requests].tolist():
        start, count, at = segment[START], segment[COUNT], segment[POSITION]
        part = tables.tokens[start : start + count]
        histories[segment[SLOT]][0, at : at + count] = part
    used = rows[ROW_SEGMENT] >= 0
    return weight.index_select(0, tables.tokens.long()) * used[:, None].to(weight.dtype)


def chunk_count(rows: int) -> int:
    """Return how many chunks a segment of `rows` rows has."""
    return -(-rows // CHUNK)


def offsets(tensors: list[Tensor]) -> Tensor:
    """Return how far each tensor lies behind the first, in elements, int64 [n] on their device.

    Kernels reach every slot's memory from the first slot's address.
    """
    first = tensors[0]
    apart = [(x.data_ptr() - first.data_ptr()) // first.element_size() for x in tensors]
    return torch.tensor(apart, dtype=torch.int64, device=first.device)
