"""Triton kernels of `attention`: a prefill's tiles, cut along the keys at fixed places.

Keys are cut every SPLIT slots of the buffer, whatever the length and the replay: each split's
softmax is computed apart and the splits are merged in order. So a short replay on a long context
fills the GPU, and every query meets the same blocks of keys in the same order in any replay. Where
a block needs no mask depends on the tile that the query stands in, so both forms must round alike:
products that are summed are fused explicitly, which the compiler would else do in one form only.
Online softmax: Milakov and Gimelshein, arXiv 1805.02867; tiling: Dao, arXiv 2307.08691.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from flashrt_policies.kernels.launch import shared_bytes, side

SPLIT = 4096
LOG2_E = 1.4426950408889634


@triton.jit
def normed_rotated(
    x_ptr, scale_ptr, freq_ptr, position, dim, half, eps, NORM: tl.constexpr, D: tl.constexpr
):  # fmt: skip
    """One head: normalise, then rotate the leading 2 * half elements by halves; float32 [D]."""
    at = tl.arange(0, D)
    mask = at < dim
    # The element each one is rotated with: its partner in the other half.
    turned = at < 2 * half
    partner = tl.where(at < half, at + half, at - half)
    x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(x_ptr + partner, mask=mask & turned, other=0.0).to(tl.float32)
    if NORM:
        inverse = tl.rsqrt(tl.sum(x * x, 0) / dim + eps)
        x = x * inverse * tl.load(scale_ptr + at, mask=mask, other=0.0)
        y = y * inverse * tl.load(scale_ptr + partner, mask=mask & turned, other=0.0)
    freq = tl.load(freq_ptr + at % half, mask=turned, other=0.0)
    angle = position.to(tl.float32) * freq
    sign = tl.where(at < half, -1.0, 1.0)
    return tl.where(turned, x * tl.cos(angle) + sign * y * tl.sin(angle), x)


@triton.jit
def place_kernel(
    q_ptr, k_ptr, v_ptr, keys_ptr, values_ptr, out_ptr, q_scale_ptr, k_scale_ptr, freq_ptr,
    position_ptr, valid_ptr, row_stride, q_head, heads, kv_heads, capacity, dim, half, eps,
    NORM: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """One head of one token: a query to the output, a key or a value to its slot."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    position = tl.load(position_ptr) + row
    real = row < tl.load(valid_ptr)
    at = tl.arange(0, D)
    mask = at < dim
    if head < heads:
        x = normed_rotated(
            q_ptr + row * row_stride + head * q_head, q_scale_ptr, freq_ptr, position, dim, half,
            eps, NORM, D,
        )  # fmt: skip
        spot = out_ptr + (row * heads + head) * dim + at
        tl.store(spot, x.to(out_ptr.dtype.element_ty), mask=mask)
    elif head < heads + kv_heads:
        kv = head - heads
        x = normed_rotated(
            k_ptr + row * row_stride + kv * dim, k_scale_ptr, freq_ptr, position, dim, half,
            eps, NORM, D,
        )  # fmt: skip
        spot = keys_ptr + (kv * capacity + position) * dim + at
        tl.store(spot, x.to(keys_ptr.dtype.element_ty), mask=mask & real)
    else:
        kv = head - heads - kv_heads
        v = tl.load(v_ptr + row * row_stride + kv * dim + at, mask=mask, other=0.0)
        spot = values_ptr + (kv * capacity + position) * dim + at
        tl.store(spot, v.to(values_ptr.dtype.element_ty), mask=mask & real)


@triton.jit
def attend_block(
    q, m, total, acc, keys_ptr, values_ptr, start, own, end, dim, scale,
    MASK: tl.constexpr, N: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Take N more keys into the running softmax (m, total, acc) of a tile of queries."""
    n, at = start + tl.arange(0, N), tl.arange(0, D)
    inside = (at < dim)[None, :]
    if MASK:
        inside = inside & (n < end)[:, None]
    tile = n[:, None].to(tl.int64) * dim + at[None, :]
    k = tl.load(keys_ptr + tile, mask=inside, other=0.0)
    v = tl.load(values_ptr + tile, mask=inside, other=0.0)
    score = tl.dot(q, tl.trans(k), input_precision='tf32x3')  # [R, N], to be scaled
    if MASK:
        score = tl.where(n[None, :] <= own[:, None], score, -float('inf'))
    peak = tl.maximum(m, tl.max(score, 1) * scale)
    # A row that has seen no key yet keeps -inf; exponents are taken from zero then, not from NaN.
    base = tl.where(peak == -float('inf'), 0.0, peak)
    p = tl.exp2(tl.fma(score, scale, -base[:, None]))
    fade = tl.exp2(m - base)
    total = tl.fma(total, fade, tl.sum(p, 1))
    acc = acc * fade[:, None]
    acc = tl.dot(p.to(v.dtype), v, acc, input_precision='tf32x3')
    return peak, total, acc


@triton.jit
def attend_kernel(
    q_ptr, keys_ptr, values_ptr, gate_ptr, out_ptr, part_ptr, mass_ptr, position_ptr, valid_ptr,
    rows, gate_row, gate_head, heads, kv_heads, capacity, dim, scale,
    GATE: tl.constexpr, SPLIT: tl.constexpr, R: tl.constexpr, N: tl.constexpr, D: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """R queries of one head against one split of the keys."""
    # Late tiles have most to do: they start first.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    head, split = tl.program_id(1), tl.program_id(2)
    valid = tl.load(valid_ptr).to(tl.int32)
    position = tl.load(position_ptr).to(tl.int32)
    first = position + tile * R
    low = split * SPLIT
    end = tl.minimum(tl.minimum(first + R, position + valid), low + SPLIT)  # keys [low, end)
    if (tile * R >= valid) | (low >= end):
        return
    i, at = tl.arange(0, R), tl.arange(0, D)
    row = tile * R + i
    own = position + row
    inside = (row < valid)[:, None] & (at < dim)[None, :]
    spot = (row[:, None].to(tl.int64) * heads + head) * dim + at[None, :]
    q = tl.load(q_ptr + spot, mask=inside, other=0.0)
    kv = (head // (heads // kv_heads)).to(tl.int64)
    keys_ptr += kv * capacity * dim
    values_ptr += kv * capacity * dim
    m = tl.full((R,), -float('inf'), tl.float32)
    total = tl.zeros((R,), tl.float32)
    acc = tl.zeros((R, D), tl.float32)
    # Keys that every query of the tile sees need no mask.
    seen = low + tl.maximum(tl.minimum(first + 1, end) - low, 0) // N * N
    for start in tl.range(low, seen, N, num_stages=STAGES):
        m, total, acc = attend_block(
            q, m, total, acc, keys_ptr, values_ptr, start, own, end, dim, scale, False, N, D
        )
    for start in tl.range(seen, end, N, num_stages=STAGES):
        m, total, acc = attend_block(
            q, m, total, acc, keys_ptr, values_ptr, start, own, end, dim, scale, True, N, D
        )
    if position + valid <= SPLIT:
        y = acc / total[:, None]
        if GATE:
            g = tl.load(
                gate_ptr + row[:, None].to(tl.int64) * gate_row + head * gate_head + at[None, :],
                mask=inside,
                other=0.0,
            ).to(tl.float32)
            y = y * tl.sigmoid(g)
        tl.store(out_ptr + spot, y.to(out_ptr.dtype.element_ty), mask=inside)
    else:
        place = (split * rows + row).to(tl.int64) * heads + head
        tl.store(part_ptr + place[:, None] * dim + at[None, :], acc, mask=inside)
        tl.store(mass_ptr + place * 2, m, mask=row < valid)
        tl.store(mass_ptr + place * 2 + 1, total, mask=row < valid)


@triton.jit
def merge_kernel(
    part_ptr, mass_ptr, gate_ptr, out_ptr, position_ptr, valid_ptr, rows, gate_row, gate_head,
    heads, dim, GATE: tl.constexpr, SPLIT: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Merge the splits of one query of one head, in order; nothing to do when there is one."""
    row, head = tl.program_id(0), tl.program_id(1)
    valid, position = tl.load(valid_ptr).to(tl.int32), tl.load(position_ptr).to(tl.int32)
    if (row >= valid) | (position + valid <= SPLIT):
        return
    at = tl.arange(0, D)
    mask = at < dim
    place = row.to(tl.int64) * heads + head
    m = tl.load(mass_ptr + place * 2)
    total = tl.load(mass_ptr + place * 2 + 1)
    acc = tl.load(part_ptr + place * dim + at, mask=mask, other=0.0)
    for split in range(1, (position + row) // SPLIT + 1):
        place = (split * rows + row).to(tl.int64) * heads + head
        m_new = tl.load(mass_ptr + place * 2)
        more = tl.load(mass_ptr + place * 2 + 1)
        part = tl.load(part_ptr + place * dim + at, mask=mask, other=0.0)
        peak = tl.maximum(m, m_new)
        fade, weight = tl.exp2(m - peak), tl.exp2(m_new - peak)
        total = tl.fma(total, fade, more * weight)
        acc = tl.fma(acc, fade, part * weight)
        m = peak
    y = acc / total
    if GATE:
        spot = row.to(tl.int64) * gate_row + head * gate_head + at
        y = y * tl.sigmoid(tl.load(gate_ptr + spot, mask=mask, other=0.0).to(tl.float32))
    spot = (row.to(tl.int64) * heads + head) * dim + at
    tl.store(out_ptr + spot, y.to(out_ptr.dtype.element_ty), mask=mask)


def place(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    values: Tensor,
    position: Tensor,
    valid: Tensor,
    freq: Tensor,
    q_scale: Tensor | None,
    k_scale: Tensor | None,
    eps: float,
) -> Tensor:
    """Launch `attention.place` on CUDA; q, k and v are parts of one projection."""
    rows, heads, dim = q.shape
    kv = k.shape[1]
    out = torch.empty((rows, heads, dim), dtype=q.dtype, device=q.device)
    place_kernel[(rows, heads + 2 * kv)](
        q, k, v, keys, values, out, q if q_scale is None else q_scale,
        k if k_scale is None else k_scale, freq, position, valid,
        q.stride(0), q.stride(1), heads, kv, keys.shape[1], dim, freq.shape[0], eps,
        NORM=q_scale is not None, D=triton.next_power_of_2(dim), num_warps=2,
    )  # fmt: skip
    return out


def tile_sizes(device: torch.device, dim: int, width: int) -> tuple[int, int]:
    """Return how many keys one turn takes and how deep the loads are pipelined.

    The same for every replay on a device, so that the order of sums is the same.

    Args:
        device: where it runs.
        dim: padded width D of a head.
        width: bytes of an element.
    """
    room = shared_bytes(device)
    for keys, deep in ((64, 3), (64, 2), (32, 2), (32, 1)):
        if dim * width * (128 + 2 * keys * deep) <= 0.9 * room and (dim <= 128 or deep < 3):
            return keys, deep
    return 16, 1


def attend(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    position: Tensor,
    valid: Tensor,
    gate: Tensor | None,
) -> Tensor:
    """Launch `attention.attend` on CUDA."""
    rows, heads, dim = q.shape
    kv, capacity = keys.shape[:2]
    width = side(dim)
    size, deep = tile_sizes(q.device, width, q.element_size())
    tile = 128 if rows > 64 and q.element_size() == 2 else 64
    splits = triton.cdiv(capacity, SPLIT)
    out = torch.empty_like(q)
    count = splits * rows * heads if splits > 1 else 1
    part = torch.empty((count, dim), dtype=torch.float32, device=q.device)
    mass = torch.empty((count, 2), dtype=torch.float32, device=q.device)
    gates = (0, 0) if gate is None else (gate.stride(0), gate.stride(1))
    attend_kernel[(triton.cdiv(rows, tile), heads, splits)](
        q, keys, values, q if gate is None else gate, out, part, mass, position, valid,
        rows, *gates, heads, kv, capacity, dim, dim**-0.5 * LOG2_E,
        GATE=gate is not None, SPLIT=SPLIT, R=tile, N=size, D=width, STAGES=deep,
        num_warps=8 if tile == 128 else 4,
    )  # fmt: skip
    if splits > 1:
        merge_kernel[(rows, heads)](
            part, mass, q if gate is None else gate, out, position, valid, rows, *gates,
            heads, dim, GATE=gate is not None, SPLIT=SPLIT, D=triton.next_power_of_2(dim),
            num_warps=2,
        )  # fmt: skip
    return out
