"""Triton kernels of `fork.delta`: the state's walk over the chunks of trunks, then of branches."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl

from flashrt_policies.kernels.delta_chunk_triton import walk
from flashrt_policies.kernels.launch import begin


@triton.jit(do_not_specialize=['begin_at', 'end_at'])
def trunk_kernel(
    turn_ptr, keys_ptr, new_ptr, last_ptr, before_ptr, ends_ptr, segments_ptr, state_ptr,
    state_apart_ptr, proj_ptr, window_ptr, window_apart_ptr, proj_row, channels, heads, key_dim,
    dim, begin_at, end_at,
    COLUMNS: tl.constexpr, TAPS: tl.constexpr, C: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    N: tl.constexpr, SHARE: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One trunk's head and N columns of its state [N, K], over the chunks of one stretch.

    At the mark the state goes to the slot, and SHARE channels of the window before it.
    """
    begin(PDL)
    request, head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    spot = segments_ptr + request * COLUMNS
    start, count, slot = tl.load(spot), tl.load(spot + 1), tl.load(spot + 2)
    position, mark, first = tl.load(spot + 3), tl.load(spot + 5) // C, tl.load(spot + 6)
    low, high = tl.maximum(begin_at - first, 0), tl.minimum(tl.cdiv(count, C), end_at - first)
    # A trunk that is wholly in its slot has no chunk, but branches still look for its end.
    whole = (count == 0) & (position > 0) & (begin_at == 0)
    if (low >= high) & (whole == 0):
        return
    at_k, at_v = tl.arange(0, K), part * N + tl.arange(0, N)
    in_state = (at_k < key_dim)[None, :] & (at_v < dim)[:, None]
    live = state_ptr + tl.multiple_of(tl.load(state_apart_ptr + slot), 16)
    live += head * key_dim * dim + at_k[None, :] * dim + at_v[:, None]
    end = ends_ptr + (request * heads + head).to(tl.int64) * V * K
    end += at_v[:, None] * K + at_k[None, :]
    fresh = low == 0
    state = tl.load(live, mask=in_state & fresh & (position > 0), other=0.0)  # float32
    state += tl.load(end, mask=(low > 0) & in_state, other=0.0)
    middle = tl.minimum(tl.maximum(mark, low), high)
    state = walk(
        state, turn_ptr, keys_ptr, new_ptr, last_ptr, before_ptr, first, low, middle, heads, head,
        at_v, C, K, V, STAGES,
    )  # fmt: skip
    if (mark > low) & (mark <= high):
        tl.store(live, state, mask=in_state)
        channel = (head * tl.num_programs(2) + part) * SHARE + tl.arange(0, SHARE)
        window = window_ptr + tl.load(window_apart_ptr + slot)
        for tap in tl.static_range(TAPS - 1):
            source = (start + mark * C - (TAPS - 1) + tap).to(tl.int64) * proj_row
            x = tl.load(proj_ptr + source + channel, mask=channel < channels, other=0.0)
            tl.store(window + tap * channels + channel, x, mask=channel < channels)
    state = walk(
        state, turn_ptr, keys_ptr, new_ptr, last_ptr, before_ptr, first, middle, high, heads, head,
        at_v, C, K, V, STAGES,
    )  # fmt: skip
    tl.store(end, state)


@triton.jit
def branch_kernel(
    turn_ptr, keys_ptr, new_ptr, last_ptr, before_ptr, ends_ptr, segments_ptr, counts_ptr,
    requests, heads,
    COLUMNS: tl.constexpr, C: tl.constexpr, K: tl.constexpr, V: tl.constexpr, N: tl.constexpr,
    STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A branch's head and N columns of its state, from its trunk's end to its last chunk.

    A program takes every so-manieth branch.
    """
    begin(PDL)
    head, part = tl.program_id(1), tl.program_id(2)
    at_k, at_v = tl.arange(0, K), part * N + tl.arange(0, N)
    tile = at_v[:, None] * K + at_k[None, :]
    branches = tl.load(counts_ptr + 2)
    for branch in tl.range(tl.program_id(0), branches, tl.num_programs(0), num_stages=1):
        spot = segments_ptr + (requests + branch) * COLUMNS
        count, first, trunk = tl.load(spot + 1), tl.load(spot + 6), tl.load(spot + 7)
        chunks = tl.cdiv(count, C)
        if chunks > 1:
            state = tl.load(ends_ptr + (trunk * heads + head).to(tl.int64) * V * K + tile)
            state = walk(
                state, turn_ptr, keys_ptr, new_ptr, last_ptr, before_ptr, first, 0, chunks - 1,
                heads, head, at_v, C, K, V, STAGES,
            )  # fmt: skip
            slot = ((first + chunks - 1) * heads + head).to(tl.int64)
            tl.store(before_ptr + slot * V * K + tile, state.to(before_ptr.dtype.element_ty))
