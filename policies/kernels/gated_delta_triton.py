"""Triton kernels of `gated_delta`: a parallel pass over chunks, the state's walk, the read-out.

`taps_kernel` convolves, and norms queries and keys. `prepare_kernel` makes for every chunk and
head at once what the chunk is to a state (see `delta_chunk_triton`). `carry_kernel` walks a state
over the chunks, one dependent product each, and keeps it as it was before each. `read_kernel`
answers the queries of every chunk and applies the gated norm.

The grid is fixed by the capacity of the replay; chunks past the valid tokens return at once. A
chunk starts at a multiple of C behind the start of the replay and is computed alike wherever it
stands in it, so replays that start at multiples of C cut a text into the same chunks, and a
token's bits do not depend on how many a replay holds. Float32 operands go through the tensor cores
in three TF32 products, which keeps their precision.
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
    walk,
)
from flashrt_policies.kernels.gated_delta import CHUNK, L2_EPS
from flashrt_policies.kernels.launch import Aside, begin, early, side, stages

TAPS_ROWS, TAPS_WIDTH = 8, 1024
# Longer replays are taken in stretches of so many chunks: the walk leaves most of the GPU idle, so
# it goes over one stretch while others are prepared and read. Longer stretches from so many on.
STRETCH, LONG_STRETCH = 16, 28


@triton.jit
def taps_kernel(
    proj_ptr, window_ptr, conv_ptr, valid_ptr, out_ptr,
    proj_row, key_heads, heads, key_dim, dim, channels, l2_eps, scale,
    TAPS: tl.constexpr, ROWS: tl.constexpr, H: tl.constexpr, D: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Some rows of H heads of q, k or v: convolution, SiLU, and for q and k the norm.

    Taps are summed in the same order whether a token's past lies in the replay or in the window.
    """
    begin(PDL)
    first = tl.program_id(0) * ROWS
    valid = tl.load(valid_ptr).to(tl.int32)
    if first >= valid:
        return
    head = tl.program_id(1) * H + tl.arange(0, H)
    at = tl.arange(0, D)
    normed = (head < 2 * key_heads)[:, None]
    values = 2 * key_heads * key_dim + (head - 2 * key_heads) * dim
    channel = tl.where(normed, (head * key_dim)[:, None], values[:, None]) + at[None, :]
    mask = (at[None, :] < tl.where(normed, key_dim, dim)) & (head < 2 * key_heads + heads)[:, None]
    weights = ()
    rows = ()
    for tap in tl.static_range(TAPS):
        weight = tl.load(conv_ptr + tap * channels + channel, mask=mask, other=0.0)
        weights = weights + (weight.to(tl.float32),)  # type: ignore[assignment]
    for ahead in tl.static_range(ROWS + TAPS - 1):
        source = first + (ahead - (TAPS - 1))
        inside = mask & (source >= 0) & (source < valid)
        x = tl.load(proj_ptr + source.to(tl.int64) * proj_row + channel, mask=inside, other=0.0)
        if ahead < TAPS - 1:
            # The first tokens also see the window; one of the two is zero.
            x += tl.load(
                window_ptr + ahead * channels + channel, mask=mask & (source < 0), other=0.0
            )
        rows = rows + (x,)  # type: ignore[assignment]
    unit = tl.where((head < key_heads)[:, None], scale, 1.0)
    for row in tl.static_range(ROWS):
        acc = tl.zeros((H, D), tl.float32)
        for tap in tl.static_range(TAPS):
            acc = tl.fma(rows[row + tap].to(tl.float32), weights[tap], acc)
        y = settled(acc, normed, unit, l2_eps)
        spot = out_ptr + (first + row).to(tl.int64) * channels + channel
        tl.store(spot, y.to(out_ptr.dtype.element_ty), mask=mask & (first + row < valid))


@triton.jit(do_not_specialize=['start'])
def prepare_kernel(
    mixed_ptr, proj_ptr, decay_ptr, bias_ptr, valid_ptr,
    turn_ptr, keys_ptr, new_ptr, ask_ptr, own_ptr, last_ptr,
    proj_row, channels, key_heads, heads, key_dim, dim,
    start, C: tl.constexpr, K: tl.constexpr, V: tl.constexpr, PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """One chunk, from `start` on, of one value head."""
    begin(PDL)
    chunk, head = start + tl.program_id(0), tl.program_id(1)
    valid = tl.load(valid_ptr).to(tl.int32)
    if chunk * C >= valid:
        return
    row = chunk * C + tl.arange(0, C)
    slot = (tl.program_id(0) * heads + head).to(tl.int64)
    mixed_ptr -= (start * C).to(tl.int64) * channels
    prepare(
        mixed_ptr, proj_ptr, decay_ptr, bias_ptr, row, row < valid, slot, True,
        turn_ptr, keys_ptr, new_ptr, ask_ptr, own_ptr, last_ptr,
        proj_row, channels, key_heads, heads, key_dim, dim, head, C, K, V, PRECISION,
    )  # fmt: skip


@triton.jit(do_not_specialize=['start', 'stop'])
def carry_kernel(
    turn_ptr, keys_ptr, new_ptr, last_ptr, state_ptr, before_ptr, proj_ptr, window_ptr, valid_ptr,
    proj_row, channels, heads, key_dim, dim, start, stop,
    TAPS: tl.constexpr, C: tl.constexpr, K: tl.constexpr, V: tl.constexpr, N: tl.constexpr,
    SHARE: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One head and N columns of its state over some chunks.

    Each program also moves SHARE channels, if any, of the convolution's window past the valid
    tokens.
    """
    begin(PDL)
    head, part = tl.program_id(0), tl.program_id(1)
    valid = tl.load(valid_ptr).to(tl.int32)
    at_k, at_v = tl.arange(0, K), part * N + tl.arange(0, N)
    spot = state_ptr + head * key_dim * dim + at_k[None, :] * dim + at_v[:, None]
    in_state = (at_k < key_dim)[None, :] & (at_v < dim)[:, None]
    state = tl.load(spot, mask=in_state, other=0.0)  # [N, K], float32
    state = walk(
        state, turn_ptr, keys_ptr, new_ptr, last_ptr, before_ptr, 0, 0,
        tl.minimum(tl.cdiv(valid, C), stop) - start, heads, head, at_v, C, K, V, STAGES,
    )  # fmt: skip
    tl.store(spot, state, mask=in_state)

    if SHARE > 0:
        channel = (head * tl.num_programs(1) + part) * SHARE + tl.arange(0, SHARE)
        mask = channel < channels
        for tap in tl.static_range(TAPS - 1):
            # Rows are moved in ascending order, so a row is read before it is overwritten.
            source = valid - (TAPS - 1) + tap
            x = tl.load(
                proj_ptr + source.to(tl.int64) * proj_row + channel,
                mask=mask & (source >= 0),
                other=0.0,
            )
            kept = tl.load(
                window_ptr + (source + TAPS - 1) * channels + channel,
                mask=mask & (source < 0),
                other=0.0,
            )
            moved = tl.where(source >= 0, x, kept)
            tl.store(window_ptr + tap * channels + channel, moved, mask=mask)


@triton.jit(do_not_specialize=['start'])
def read_kernel(
    before_ptr, ask_ptr, own_ptr, proj_ptr, norm_ptr, valid_ptr, out_ptr,
    proj_row, channels, heads, dim, eps, start,
    C: tl.constexpr, K: tl.constexpr, V: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One chunk of one head, from chunk `start` on."""
    begin(PDL)
    chunk, head = start + tl.program_id(0), tl.program_id(1)
    valid = tl.load(valid_ptr).to(tl.int32)
    if chunk * C >= valid:
        return
    row = chunk * C + tl.arange(0, C)
    slot = (tl.program_id(0) * heads + head).to(tl.int64)
    at_k, at_v = tl.arange(0, K)[:, None], tl.arange(0, V)[None, :]
    state = tl.load(before_ptr + slot * V * K + at_v * K + at_k)
    read(
        state, ask_ptr, own_ptr, proj_ptr, norm_ptr, out_ptr, row, row < valid, slot,
        proj_row, channels, heads, dim, head, eps, C, K, V,
    )  # fmt: skip


def mix(
    proj: Tensor,
    window: Tensor,
    state: Tensor,
    conv: Tensor,
    decay: Tensor,
    bias: Tensor,
    norm: Tensor,
    eps: float,
    valid: Tensor,
    dims: tuple[int, int, int, int],
) -> Tensor:
    """Launch `gated_delta.mix` on CUDA."""
    key_heads, heads, key_dim, dim = dims
    taps, channels = conv.shape
    rows = proj.shape[0]
    chunks = triton.cdiv(rows, CHUNK)
    k, v = side(key_dim), side(dim)

    stretch = min(STRETCH if chunks <= 2 * STRETCH else LONG_STRETCH, chunks)
    cuts = [(start, min(start + stretch, chunks)) for start in range(0, chunks, stretch)]
    how = early(proj) if len(cuts) == 1 else {'PDL': 0}

    def scratch(*shape: int, dtype: torch.dtype = proj.dtype) -> Tensor:
        return torch.empty((len(cuts), stretch, *shape), dtype=dtype, device=proj.device)

    mixed, last = scratch(CHUNK, channels), scratch(heads, dtype=torch.float32)
    turn, before = scratch(heads, k, k), scratch(heads, v, k)
    keys, new, ask, own = (scratch(heads, CHUNK, width) for width in (k, v, k, v))
    out = torch.empty((rows, heads * dim), dtype=proj.dtype, device=proj.device)
    width = triton.next_power_of_2(max(key_dim, dim))
    together = max(1, TAPS_WIDTH // width)
    columns = min(v, WALK_COLUMNS)
    parts = v // columns
    share = triton.next_power_of_2(triton.cdiv(channels, heads * parts))
    deep = stages(proj, k * k + CHUNK * (k + columns), 3)

    taps_kernel[(triton.cdiv(rows, TAPS_ROWS), triton.cdiv(2 * key_heads + heads, together))](
        proj, window, conv, valid, mixed,
        proj.stride(0), key_heads, heads, key_dim, dim, channels, L2_EPS, key_dim**-0.5,
        TAPS=taps, ROWS=TAPS_ROWS, H=together, D=width, num_warps=4, **how,
    )  # fmt: skip

    def prepared(i: int, start: int, stop: int) -> None:
        prepare_kernel[(stop - start, heads)](
            mixed[i], proj, decay, bias, valid, turn[i], keys[i], new[i], ask[i], own[i], last[i],
            proj.stride(0), channels, key_heads, heads, key_dim, dim, start,
            C=CHUNK, K=k, V=v, PRECISION=inverse_precision(proj.dtype),
            num_warps=PREPARE_WARPS, num_stages=1, **how,
        )  # fmt: skip

    def carried(i: int, start: int, stop: int) -> None:
        carry_kernel[(heads, parts)](
            turn[i], keys[i], new[i], last[i], state, before[i], proj, window, valid,
            proj.stride(0), channels, heads, key_dim, dim, start, stop,
            TAPS=taps, C=CHUNK, K=k, V=v, N=columns, SHARE=share if stop == chunks else 0,
            STAGES=deep, num_warps=WALK_WARPS, **how,
        )  # fmt: skip

    def answered(i: int, start: int, stop: int) -> None:
        read_kernel[(stop - start, heads)](
            before[i], ask[i], own[i], proj, norm, valid, out,
            proj.stride(0), channels, heads, dim, eps, start,
            C=CHUNK, K=k, V=v, num_warps=READ_WARPS, num_stages=1, **how,
        )  # fmt: skip

    with Aside(proj.device, proj.is_cuda and len(cuts) > 1) as aside:
        walked = []
        for index, cut in enumerate(cuts):
            prepared(index, *cut)
            walked.append(aside.run(carried, index, *cut))
        for index, cut in enumerate(cuts):
            aside.wait(walked[index])
            answered(index, *cut)
    return out
