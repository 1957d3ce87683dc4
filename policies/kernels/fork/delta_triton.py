"""Triton kernels of `fork.delta`: those of `gated_delta_triton` over the segments of a round.

What a chunk does to the state is made for all chunks at once, trunks' and branches' alike; the
walk over the chunks comes twice. The first takes each trunk from its slot (or from nothing), keeps
the state before each chunk, leaves the checkpoint in the slot and the end where branches find it.
The second takes those branches that have more than one chunk from their trunk's end. The read-out
then looks up the state before each chunk: a branch's first chunk reads its trunk's end itself.

A walk leaves most of the GPU idle, so a long stream's chunks are taken in stretches: trunks walk
over one while the next, and the branches behind them, are prepared.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from flashrt_policies.kernels.delta_chunk_triton import (
    PREPARE_WARPS,
    READ_WARPS,
    WALK_COLUMNS,
    WALK_WARPS,
    inverse_precision,
    prepare,
    read,
    settled,
)
from flashrt_policies.kernels.fork.delta import DeltaSlots
from flashrt_policies.kernels.fork.stream import COLUMNS, Tables
from flashrt_policies.kernels.fork.walk_triton import branch_kernel, trunk_kernel
from flashrt_policies.kernels.gated_delta import CHUNK, L2_EPS
from flashrt_policies.kernels.launch import Aside, begin, early, side, stages

TAPS_ROWS, TAPS_WIDTH = 8, 1024
# From this many rows on, chunks are taken in stretches.
LONG, STRETCHES = 1024, 4


@triton.jit
def taps_kernel(
    proj_ptr, rows_ptr, window_ptr, apart_ptr, conv_ptr, out_ptr, count,
    proj_row, key_heads, heads, key_dim, dim, channels, l2_eps, scale,
    TAPS: tl.constexpr, R: tl.constexpr, H: tl.constexpr, D: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """R rows of H heads of q, k or v: convolution, SiLU, and for q and k the norm.

    Taps are summed in the same order whether a row's past lies in the stream or in a window.
    """
    begin(PDL)
    head, at = tl.program_id(1) * H + tl.arange(0, H), tl.arange(0, D)
    normed = (head < 2 * key_heads)[:, None]
    values = 2 * key_heads * key_dim + (head - 2 * key_heads) * dim
    channel = tl.where(normed, (head * key_dim)[:, None], values[:, None]) + at[None, :]
    mask = (at[None, :] < tl.where(normed, key_dim, dim)) & (head < 2 * key_heads + heads)[:, None]
    weights = ()
    for tap in tl.static_range(TAPS):
        weight = tl.load(conv_ptr + tap * channels + channel, mask=mask, other=0.0)
        weights = weights + (weight.to(tl.float32),)  # type: ignore[assignment]
    unit = tl.where((head < key_heads)[:, None], scale, 1.0)
    for ahead in tl.static_range(R):
        row = tl.program_id(0) * R + ahead
        used = tl.load(rows_ptr + 3 * count + row, mask=row < count, other=-1) >= 0
        acc = tl.zeros((H, D), tl.float32)
        for tap in tl.static_range(TAPS):
            # A row of the stream; below -1 a row of a slot's window; -1 nothing, before the text.
            if tap == TAPS - 1:
                source = row
            else:
                past = rows_ptr + (4 + TAPS - 2 - tap) * count + row
                source = tl.load(past, mask=row < count, other=-1)
            spot = proj_ptr + source.to(tl.int64) * proj_row + channel
            x = tl.load(spot, mask=mask & used & (source >= 0), other=0.0)
            if tap < TAPS - 1:
                code = -2 - tl.minimum(source, -2)
                kept = used & (source < -1)
                away = tl.load(apart_ptr + code // (TAPS - 1), mask=kept, other=0)
                spot = window_ptr + away + code % (TAPS - 1) * channels + channel
                x += tl.load(spot, mask=mask & kept, other=0.0)  # one of the two is zero
            acc = tl.fma(x.to(tl.float32), weights[tap], acc)
        y = settled(acc, normed, unit, l2_eps)
        spot = out_ptr + row.to(tl.int64) * channels + channel
        tl.store(spot, y.to(out_ptr.dtype.element_ty), mask=mask & used)


@triton.jit(do_not_specialize=['begin_at'])
def prepare_kernel(
    mixed_ptr, proj_ptr, counts_ptr, chunks_ptr, segments_ptr, decay_ptr, bias_ptr,
    turn_ptr, keys_ptr, new_ptr, ask_ptr, own_ptr, last_ptr,
    proj_row, requests, channels, key_heads, heads, key_dim, dim, begin_at,
    COLUMNS: tl.constexpr, C: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One chunk of one value head; behind the last chunk of a branch no state goes on."""
    begin(PDL)
    chunk, head = begin_at + tl.program_id(0), tl.program_id(1)
    if chunk >= tl.load(counts_ptr + 3):
        return
    segment, order = tl.load(chunks_ptr + 2 * chunk), tl.load(chunks_ptr + 2 * chunk + 1)
    spot = segments_ptr + segment * COLUMNS
    start, count = tl.load(spot), tl.load(spot + 1)
    place = order * C + tl.arange(0, C)
    slot = (chunk * heads + head).to(tl.int64)
    goes_on = (segment < requests) | ((order + 1) * C < count)
    prepare(
        mixed_ptr, proj_ptr, decay_ptr, bias_ptr, (start + place).to(tl.int64), place < count,
        slot, goes_on, turn_ptr, keys_ptr, new_ptr, ask_ptr, own_ptr, last_ptr,
        proj_row, channels, key_heads, heads, key_dim, dim, head, C, K, V, PRECISION,
    )  # fmt: skip


@triton.jit
def read_kernel(
    before_ptr, ends_ptr, ask_ptr, own_ptr, proj_ptr, norm_ptr, counts_ptr, chunks_ptr,
    segments_ptr, out_ptr, proj_row, requests, channels, heads, dim, eps,
    COLUMNS: tl.constexpr, C: tl.constexpr, K: tl.constexpr, V: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One chunk of one head; a branch's first chunk reads the state at its trunk's end."""
    begin(PDL)
    chunk, head = tl.program_id(0), tl.program_id(1)
    if chunk >= tl.load(counts_ptr + 3):
        return
    segment, order = tl.load(chunks_ptr + 2 * chunk), tl.load(chunks_ptr + 2 * chunk + 1)
    spot = segments_ptr + segment * COLUMNS
    start, count, trunk = tl.load(spot), tl.load(spot + 1), tl.load(spot + 7)
    place = order * C + tl.arange(0, C)
    slot = (chunk * heads + head).to(tl.int64)
    tile = tl.arange(0, V)[None, :] * K + tl.arange(0, K)[:, None]
    if (segment >= requests) & (order == 0):
        end = ends_ptr + (trunk * heads + head).to(tl.int64) * V * K
        state = tl.load(end + tile).to(before_ptr.dtype.element_ty)  # [K, V]
    else:
        state = tl.load(before_ptr + slot * V * K + tile)
    read(
        state, ask_ptr, own_ptr, proj_ptr, norm_ptr, out_ptr, start + place, place < count, slot,
        proj_row, channels, heads, dim, head, eps, C, K, V,
    )  # fmt: skip


def mix(
    proj: Tensor,
    tables: Tables,
    rows: Tensor,
    slots: DeltaSlots,
    conv: Tensor,
    decay: Tensor,
    bias: Tensor,
    norm: Tensor,
    eps: float,
    dims: tuple[int, int, int, int],
) -> Tensor:
    """Launch `fork.delta.mix` on CUDA."""
    key_heads, heads, key_dim, dim = dims
    taps, channels = conv.shape
    sizes, count = tables.sizes, proj.shape[0]
    k, v = side(key_dim), side(dim)

    def scratch(chunks: int, *shape: int, dtype: torch.dtype = proj.dtype) -> Tensor:
        return torch.empty((chunks, heads, *shape), dtype=dtype, device=proj.device)

    mixed = torch.empty((count, channels), dtype=proj.dtype, device=proj.device)
    width = triton.next_power_of_2(max(key_dim, dim))
    together = max(1, TAPS_WIDTH // width)
    taps_kernel[(triton.cdiv(count, TAPS_ROWS), triton.cdiv(2 * key_heads + heads, together))](
        proj, rows, slots.window[0], slots.window_apart, conv, mixed, count,
        proj.stride(0), key_heads, heads, key_dim, dim, channels, L2_EPS, key_dim**-0.5,
        TAPS=taps, R=TAPS_ROWS, H=together, D=width, num_warps=4, **early(proj),
    )  # fmt: skip
    n = sizes.chunks
    turn, before = scratch(n, k, k), scratch(n, v, k)
    keys, new, ask, own = (scratch(n, CHUNK, side_) for side_ in (k, v, k, v))
    last = scratch(n, dtype=torch.float32)
    ends = scratch(sizes.requests, v, k, dtype=torch.float32)
    columns = min(v, WALK_COLUMNS)
    parts = v // columns
    deep = stages(proj, k * k + CHUNK * (k + columns), 3)
    share = triton.next_power_of_2(triton.cdiv(channels, heads * parts))
    # As many chunks as rows fill; the last stretch takes what segments of few rows add to them.
    stretch = triton.cdiv(count // CHUNK, STRETCHES) if count >= LONG else n
    lows = range(0, n, stretch)[:STRETCHES]
    cuts = list(zip(lows, [*lows[1:], n], strict=True))
    how = early(proj) if len(cuts) == 1 else {'PDL': 0}

    def prepared(low: int, high: int) -> None:
        prepare_kernel[(high - low, heads)](
            mixed, proj, tables.counts, tables.chunks, tables.segments, decay, bias,
            turn, keys, new, ask, own, last,
            proj.stride(0), sizes.requests, channels, key_heads, heads, key_dim, dim, low,
            COLUMNS=COLUMNS, C=CHUNK, K=k, V=v, PRECISION=inverse_precision(proj.dtype),
            num_warps=PREPARE_WARPS, num_stages=1, **how,
        )  # fmt: skip

    def trunks(low: int, high: int) -> None:
        trunk_kernel[(sizes.requests, heads, parts)](
            turn, keys, new, last, before, ends, tables.segments, slots.recurrent[0],
            slots.recurrent_apart, proj, slots.window[0], slots.window_apart,
            proj.stride(0), channels, heads, key_dim, dim, low, high,
            COLUMNS=COLUMNS, TAPS=taps, C=CHUNK, K=k, V=v, N=columns, SHARE=share,
            STAGES=deep, num_warps=WALK_WARPS, **how,
        )  # fmt: skip

    with Aside(proj.device, proj.is_cuda and len(cuts) > 1) as aside:
        for cut in cuts:
            prepared(*cut)
            aside.run(trunks, *cut)
    walking = min(sizes.branches, count // (CHUNK + 1))  # those with more than one chunk
    if walking:
        branch_kernel[(walking, heads, parts)](
            turn, keys, new, last, before, ends, tables.segments, tables.counts, sizes.requests,
            heads, COLUMNS=COLUMNS, C=CHUNK, K=k, V=v, N=columns, STAGES=min(deep, 2),
            num_warps=WALK_WARPS, **how,
        )  # fmt: skip
    out = torch.empty((count, heads * dim), dtype=proj.dtype, device=proj.device)
    read_kernel[(n, heads)](
        before, ends, ask, own, proj, norm, tables.counts, tables.chunks, tables.segments, out,
        proj.stride(0), sizes.requests, channels, heads, dim, eps,
        COLUMNS=COLUMNS, C=CHUNK, K=k, V=v, num_warps=READ_WARPS, num_stages=1, **how,
    )  # fmt: skip
    return out
