"""Triton kernels of `fork.stream`: what each row is, and its embedding."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from flashrt_policies.kernels.fork.stream import COLUMNS, Tables

BLOCK = 1024


@triton.jit
def spread_kernel(
    counts_ptr, segments_ptr, rows_ptr, capacity, segments, requests,
    BACK: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One segment's rows; the last program, those that are unused."""
    index = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    used = tl.load(counts_ptr)
    live = index < segments
    spot = segments_ptr + tl.minimum(index, segments - 1) * COLUMNS
    start = tl.where(live, tl.load(spot), used)
    count = tl.where(live, tl.load(spot + 1), capacity - used)
    slot, position = tl.load(spot + 2), tl.load(spot + 3)
    branch = tl.maximum(index - requests, -1)
    trunk = segments_ptr + tl.load(spot + 7) * COLUMNS
    lead = tl.where(branch < 0, 0, tl.load(trunk + 1))  # rows of the trunk before the branch
    lead_start, resumed = tl.load(trunk), tl.load(trunk + 3) > 0
    for first in range(0, count, BLOCK):
        row = first + at
        mask = row < count
        place = rows_ptr + start + row
        tl.store(place, tl.where(live, slot, -1) + row * 0, mask=mask)
        tl.store(place + capacity, tl.where(live, branch, -1) + row * 0, mask=mask)
        tl.store(place + 2 * capacity, tl.where(live, position + row, -1), mask=mask)
        tl.store(place + 3 * capacity, tl.where(live, index, -1) + row * 0, mask=mask)
        for d in tl.static_range(1, BACK + 1):
            before = lead + row - d  # in the trunk's rows, or behind them in the branch's own
            past = tl.where(row >= d, start + row - d, lead_start + before)
            code = tl.where(resumed, -2 - slot * BACK - (BACK + before), -1)
            past = tl.where((row < d) & (before < 0), code, past)
            tl.store(place + (3 + d) * capacity, tl.where(live, past, -1), mask=mask)


@triton.jit
def embed_kernel(
    tokens_ptr, rows_ptr, weight_ptr, history_ptr, apart_ptr, out_ptr, capacity, width,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """One row; a trunk's token goes to its history too."""
    row = tl.program_id(0)
    used = tl.load(rows_ptr + 3 * capacity + row) >= 0
    token = tl.load(tokens_ptr + row)
    for first in range(0, width, BLOCK):
        at = first + tl.arange(0, BLOCK)
        mask = at < width
        x = tl.load(
            weight_ptr + token.to(tl.int64) * width + at, mask=mask & used, other=0.0
        )  # fmt: skip
        tl.store(out_ptr + row.to(tl.int64) * width + at, x, mask=mask)
    if used & (tl.load(rows_ptr + capacity + row) < 0):
        slot = tl.load(rows_ptr + row)
        position = tl.load(rows_ptr + 2 * capacity + row)
        tl.store(history_ptr + tl.load(apart_ptr + slot) + position, token)


def spread(tables: Tables, back: int) -> Tensor:
    """Launch `fork.stream.spread` on CUDA."""
    sizes = tables.sizes
    rows = torch.empty((4 + back, sizes.rows), dtype=torch.int32, device=tables.tokens.device)
    segments = sizes.requests + sizes.branches
    spread_kernel[(segments + 1,)](
        tables.counts, tables.segments, rows, sizes.rows, segments, sizes.requests,
        BACK=back, COLUMNS=COLUMNS, BLOCK=BLOCK, num_warps=4,
    )  # fmt: skip
    return rows


def embed(
    tables: Tables, rows: Tensor, weight: Tensor, histories: list[Tensor], apart: Tensor
) -> Tensor:
    """Launch `fork.stream.embed` on CUDA."""
    count, width = tables.sizes.rows, weight.shape[1]
    out = torch.empty((count, width), dtype=weight.dtype, device=weight.device)
    embed_kernel[(count,)](
        tables.tokens, rows, weight, histories[0], apart, out, count, width,
        BLOCK=min(BLOCK, triton.next_power_of_2(width)), num_warps=4,
    )  # fmt: skip
    return out
