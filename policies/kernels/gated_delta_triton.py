"""Triton kernels of `gated_delta`: a parallel pass over chunks, then the scan over them.

`prepare_kernel` does for every chunk and head at once what does not need the state: convolution,
norms, gates, and the unit lower triangular system of the UT transform. `scan_kernel` carries the
state from chunk to chunk and gives the output. The grid is fixed by the capacity of the replay;
chunks past the valid tokens return at once. A chunk starts at a multiple of C behind the start of
the replay and is computed alike wherever it stands in it, so replays that start at multiples of C
cut a text into the same chunks, and a token's bits do not depend on how many a replay holds.
Float32 operands go through the tensor cores in three TF32 products, which keeps their precision.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from flashrt_policies.kernels.gated_delta import CHUNK, L2_EPS
from flashrt_policies.kernels.launch import side, stages

# Columns of the state that one program of the scan holds, and the warps of both kernels.
SCAN_COLUMNS = 64
PREPARE_WARPS = 4
SCAN_WARPS = 4


@triton.jit
def conv_tile(
    proj_ptr, window_ptr, conv_ptr, row, channel, mask, proj_row, channels, valid,
    TAPS: tl.constexpr,
):  # fmt: skip
    """Convolution and SiLU of one tile [C, N] of channels, in float32.

    Taps are summed in the same order whether a token's past lies in the replay or in the window.
    """
    acc = tl.zeros((row.shape[0], channel.shape[0]), tl.float32)
    for tap in tl.static_range(TAPS):
        source = row + (tap - (TAPS - 1))
        inside = (source >= 0) & (source < valid)
        x = tl.load(
            proj_ptr + source[:, None].to(tl.int64) * proj_row + channel[None, :],
            mask=mask[None, :] & inside[:, None],
            other=0.0,
        ).to(tl.float32)
        if tl.program_id(0) == 0:  # the first tokens also see the window; one of the two is zero
            x += tl.load(
                window_ptr + (row + tap)[:, None] * channels + channel[None, :],
                mask=mask[None, :] & (source < 0)[:, None],
                other=0.0,
            ).to(tl.float32)
        weight = tl.load(conv_ptr + tap * channels + channel, mask=mask, other=0.0)
        acc = tl.fma(x, weight.to(tl.float32)[None, :], acc)
    return acc * tl.sigmoid(acc)


@triton.jit
def soft_plus(a):
    """log(1 + exp(a)), also where exp(a) is far below one."""
    e = tl.exp(tl.minimum(a, 20.0))
    small = e * (1.0 - 0.5 * e)
    return tl.where(a > 20.0, a, tl.where(e < 1e-3, small, tl.log(1.0 + e)))


@triton.jit
def unit_inverse(a, C: tl.constexpr):
    """Inverse of I + a, a strictly lower triangular [C, C], C a multiple of 16 up to 64.

    The diagonal blocks of 16 are inverted by (I - d)(I + d^2)(I + d^4)(I + d^8), exact since
    d^16 = 0; what is left is block-nilpotent and takes (I - x)(I + x^2).
    """
    i = tl.arange(0, C)
    eye = (i[:, None] == i[None, :]).to(tl.float32)
    near = (i[:, None] // 16) == (i[None, :] // 16)
    d = tl.where(near, a, 0.0)
    d2 = tl.dot(d, d, input_precision='tf32x3')
    d4 = tl.dot(d2, d2, input_precision='tf32x3')
    d8 = tl.dot(d4, d4, input_precision='tf32x3')
    inverse = tl.dot(eye - d, eye + d2, input_precision='tf32x3')
    inverse = tl.dot(inverse, eye + d4, input_precision='tf32x3')
    inverse = tl.dot(inverse, eye + d8, input_precision='tf32x3')
    x = tl.dot(inverse, tl.where(near, 0.0, a), input_precision='tf32x3')
    x2 = tl.dot(x, x, input_precision='tf32x3')
    outer = tl.dot(eye - x, eye + x2, input_precision='tf32x3')
    return tl.dot(outer, inverse, input_precision='tf32x3')


@triton.jit
def prepare_kernel(
    proj_ptr, window_ptr, conv_ptr, decay_ptr, bias_ptr, valid_ptr,
    told_ptr, asked_ptr, write_ptr, new_ptr, inner_ptr, last_ptr,
    proj_row, key_heads, heads, key_dim, dim, l2_eps, scale,
    TAPS: tl.constexpr, C: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
):  # fmt: skip
    """One chunk of one value head.

    Writes told [C, K] (w: what the state already predicts), asked [C, K] (decayed queries),
    write [C, K] (decayed keys), new [C, V] (u), inner [C, C] (query times key within the chunk)
    and the chunk's whole decay.
    """
    chunk, head = tl.program_id(0), tl.program_id(1)
    valid = tl.load(valid_ptr).to(tl.int32)
    if chunk * C >= valid:
        return
    kind = new_ptr.dtype.element_ty
    channels = 2 * key_heads * key_dim + heads * dim
    key_head = head // (heads // key_heads)
    i = tl.arange(0, C)
    row = chunk * C + i
    real = row < valid
    at_k, at_v = tl.arange(0, K), tl.arange(0, V)
    in_k, in_v = at_k < key_dim, at_v < dim

    gate = proj_ptr + row.to(tl.int64) * proj_row + channels + heads * dim + head
    b = tl.load(gate, mask=real, other=0.0).to(tl.float32)
    a = tl.load(gate + heads, mask=real, other=0.0).to(tl.float32) + tl.load(bias_ptr + head)
    softplus = soft_plus(a)
    beta = tl.where(real, tl.sigmoid(b), 0.0)
    g = tl.cumsum(tl.where(real, tl.load(decay_ptr + head) * softplus, 0.0), 0)  # [C]
    last = tl.sum(tl.where(i == C - 1, g, 0.0), 0)

    slot = (chunk * heads + head).to(tl.int64)
    tile = i[:, None] * K + at_k[None, :]
    # One thing after the other: each tile is stored before the next one is made.
    k = conv_tile(
        proj_ptr, window_ptr, conv_ptr, row, (key_heads + key_head) * key_dim + at_k, in_k,
        proj_row, channels, valid, TAPS,
    )  # fmt: skip
    k = k * tl.rsqrt(tl.sum(k * k, 1) + l2_eps)[:, None]
    tl.store(write_ptr + slot * C * K + tile, (k * tl.exp(last - g)[:, None]).to(kind))
    k_low = k.to(kind)

    lower = i[:, None] >= i[None, :]
    fade = tl.exp(tl.where(lower, g[:, None] - g[None, :], -float('inf')))  # [C, C]
    system = tl.dot(k_low, tl.trans(k_low), input_precision='tf32x3') * fade * beta[:, None]
    system = tl.where(i[:, None] > i[None, :], system, 0.0)
    solve = unit_inverse(system, C)
    w = tl.dot((solve * (beta * tl.exp(g))[None, :]).to(kind), k_low, input_precision='tf32x3')
    tl.store(told_ptr + slot * C * K + tile, w.to(kind))

    v = conv_tile(
        proj_ptr, window_ptr, conv_ptr, row, 2 * key_heads * key_dim + head * dim + at_v, in_v,
        proj_row, channels, valid, TAPS,
    ).to(kind)  # fmt: skip
    u = tl.dot((solve * beta[None, :]).to(kind), v, input_precision='tf32x3')
    tl.store(new_ptr + slot * C * V + i[:, None] * V + at_v[None, :], u.to(kind))

    q = conv_tile(
        proj_ptr, window_ptr, conv_ptr, row, key_head * key_dim + at_k, in_k,
        proj_row, channels, valid, TAPS,
    )  # fmt: skip
    q = q * (tl.rsqrt(tl.sum(q * q, 1) + l2_eps) * scale)[:, None]
    tl.store(asked_ptr + slot * C * K + tile, (q * tl.exp(g)[:, None]).to(kind))
    inner = tl.dot(q.to(kind), tl.trans(k_low), input_precision='tf32x3') * fade
    tl.store(inner_ptr + slot * C * C + i[:, None] * C + i[None, :], inner.to(kind))
    tl.store(last_ptr + slot, tl.exp(last))


@triton.jit
def scan_kernel(
    told_ptr, asked_ptr, write_ptr, new_ptr, inner_ptr, last_ptr, state_ptr, out_ptr,
    proj_ptr, window_ptr, valid_ptr, proj_row, channels, heads, key_dim, dim,
    TAPS: tl.constexpr, C: tl.constexpr, K: tl.constexpr, V: tl.constexpr, N: tl.constexpr,
    SHARE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One head and N columns of its state: carry it over the chunks and read it.

    Each program also moves SHARE channels of the convolution's window past the valid tokens.
    """
    head, part = tl.program_id(0), tl.program_id(1)
    valid = tl.load(valid_ptr).to(tl.int32)
    kind = new_ptr.dtype.element_ty
    i = tl.arange(0, C)
    at_k, at_v = tl.arange(0, K), part * N + tl.arange(0, N)
    spot = state_ptr + head * key_dim * dim + at_k[:, None] * dim + at_v[None, :]
    in_state = (at_k < key_dim)[:, None] & (at_v < dim)[None, :]
    state = tl.load(spot, mask=in_state, other=0.0)  # [K, N], float32
    for chunk in tl.range(0, tl.cdiv(valid, C), num_stages=STAGES):
        slot = (chunk * heads + head).to(tl.int64)
        tile = i[:, None] * K + at_k[None, :]
        low = state.to(kind)
        told = tl.dot(tl.load(told_ptr + slot * C * K + tile), low, input_precision='tf32x3')
        asked = tl.dot(tl.load(asked_ptr + slot * C * K + tile), low, input_precision='tf32x3')
        u = tl.load(new_ptr + slot * C * V + i[:, None] * V + at_v[None, :]).to(tl.float32)
        fresh = (u - told).to(kind)
        inner = tl.load(inner_ptr + slot * C * C + i[:, None] * C + i[None, :])
        out = asked + tl.dot(inner, fresh, input_precision='tf32x3')
        row = chunk * C + i
        tl.store(
            out_ptr + (row[:, None].to(tl.int64) * heads + head) * dim + at_v[None, :],
            out.to(out_ptr.dtype.element_ty),
            mask=(row < valid)[:, None] & (at_v < dim)[None, :],
        )
        keys = tl.load(write_ptr + slot * C * K + i[None, :] * K + at_k[:, None])  # [K, C]
        state = state * tl.load(last_ptr + slot)
        state += tl.dot(keys, fresh, input_precision='tf32x3')
    tl.store(spot, state, mask=in_state)

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
        tl.store(window_ptr + tap * channels + channel, tl.where(source >= 0, x, kept), mask=mask)


def mix(
    proj: Tensor,
    window: Tensor,
    state: Tensor,
    conv: Tensor,
    decay: Tensor,
    bias: Tensor,
    valid: Tensor,
    dims: tuple[int, int, int, int],
) -> Tensor:
    """Launch `gated_delta.mix` on CUDA."""
    key_heads, heads, key_dim, dim = dims
    taps, channels = conv.shape
    rows = proj.shape[0]
    chunks = triton.cdiv(rows, CHUNK)
    k, v = side(key_dim), side(dim)

    def scratch(*shape: int, dtype: torch.dtype = proj.dtype) -> Tensor:
        return torch.empty((chunks, heads, *shape), dtype=dtype, device=proj.device)

    told, asked, write = scratch(CHUNK, k), scratch(CHUNK, k), scratch(CHUNK, k)
    new, inner = scratch(CHUNK, v), scratch(CHUNK, CHUNK)
    last = scratch(dtype=torch.float32)
    prepare_kernel[(chunks, heads)](
        proj, window, conv, decay, bias, valid, told, asked, write, new, inner, last,
        proj.stride(0), key_heads, heads, key_dim, dim, L2_EPS, key_dim**-0.5,
        TAPS=taps, C=CHUNK, K=k, V=v,
        num_warps=PREPARE_WARPS, num_stages=1,
    )  # fmt: skip
    out = torch.empty((rows, heads, dim), dtype=proj.dtype, device=proj.device)
    columns = min(v, SCAN_COLUMNS)
    parts = v // columns
    scan_kernel[(heads, parts)](
        told, asked, write, new, inner, last, state, out, proj, window, valid,
        proj.stride(0), channels, heads, key_dim, dim,
        TAPS=taps, C=CHUNK, K=k, V=v, N=columns,
        SHARE=triton.next_power_of_2(triton.cdiv(channels, heads * parts)),
        STAGES=stages(proj, CHUNK * (3 * k + CHUNK + columns), 3),
        num_warps=SCAN_WARPS,
    )  # fmt: skip
    return out
