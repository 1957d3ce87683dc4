"""Triton kernels of `fork.stream`: what each row is, and its embedding."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from flashrt_policies.kernels.fork.stream import COLUMNS, Rotary, Tables

BLOCK = 1024
TURNED = 16  # rows of one program that makes rotations


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
def rotary_kernel(
    rows_ptr, reads_ptr, freq_ptr, picked_ptr, cos_ptr, sin_ptr, capacity, branches, half,
    LINES: tl.constexpr, N: tl.constexpr, L: tl.constexpr, H: tl.constexpr,
):  # fmt: skip
    """N rows' rotations; behind all rows those that are read, with their column of rows."""
    n, at, line = tl.program_id(0) * N + tl.arange(0, N), tl.arange(0, H), tl.arange(0, L)
    inside, picked = n < capacity + branches, n >= capacity
    read = tl.load(reads_ptr + n - capacity, mask=picked & inside, other=0)
    row = tl.where(picked, read, n)
    position = tl.load(rows_ptr + 2 * capacity + row, mask=inside, other=0).to(tl.float32)
    freq = tl.load(freq_ptr + at, mask=at < half, other=0.0)
    angle = position[:, None] * freq[None, :]
    mask = inside[:, None] & (at < half)[None, :]
    tl.store(cos_ptr + n[:, None] * half + at[None, :], tl.cos(angle), mask=mask)
    tl.store(sin_ptr + n[:, None] * half + at[None, :], tl.sin(angle), mask=mask)
    mask = (picked & inside)[:, None] & (line < LINES)[None, :]
    column = tl.load(rows_ptr + line[None, :] * capacity + row[:, None], mask=mask, other=0)
    spot = picked_ptr + line[None, :] * branches + (n - capacity)[:, None]
    tl.store(spot, column, mask=mask)


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


def rotary(tables: Tables, rows: Tensor, freq: Tensor) -> tuple[Tensor, Rotary, Rotary]:
    """Launch `fork.stream.rotary` on CUDA."""
    lines, count = rows.shape
    branches, half = tables.sizes.branches, freq.shape[0]
    picked = torch.empty((lines, branches), dtype=torch.int32, device=rows.device)
    cos, sin = torch.empty((2, count + branches, half), dtype=torch.float32, device=rows.device)
    rotary_kernel[(triton.cdiv(count + branches, TURNED),)](
        rows, tables.reads, freq, picked, cos, sin, count, branches, half,
        LINES=lines, N=TURNED, L=triton.next_power_of_2(lines), H=triton.next_power_of_2(half),
        num_warps=4,
    )  # fmt: skip
    return picked, (cos[:count], sin[:count]), (cos[count:], sin[count:])


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
