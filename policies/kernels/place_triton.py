"""Triton kernel of `attention.place`: norm and rotary embedding; keys and values to slots."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from flashrt_policies.kernels.launch import begin, early

# Tokens that one program places.
PLACED = 4


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
def turn_rows(
    x_ptr, out_ptr, scale_ptr, freq_ptr, position, mask, dim, half, eps,
    NORM: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """`normed_rotated` of several tokens, x_ptr, out_ptr and position [P, 1], to out_ptr.

    Both halves of what is rotated are tiles of their own: sine and cosine are made once for both,
    and for no element that keeps its place.
    """
    kind = out_ptr.dtype.element_ty
    at, low = tl.arange(0, D)[None, :], tl.arange(0, H)[None, :]
    high = low + half
    inside, turned = mask & (at < dim), mask & (low < half)
    x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    first = tl.load(x_ptr + low, mask=turned, other=0.0).to(tl.float32)
    second = tl.load(x_ptr + high, mask=turned, other=0.0).to(tl.float32)
    if NORM:
        inverse = tl.rsqrt(tl.sum(x * x, 1) / dim + eps)[:, None]
        x = x * inverse * tl.load(scale_ptr + at, mask=at < dim, other=0.0)
        first = first * inverse * tl.load(scale_ptr + low, mask=low < half, other=0.0)
        second = second * inverse * tl.load(scale_ptr + high, mask=low < half, other=0.0)
    angle = position.to(tl.float32) * tl.load(freq_ptr + low, mask=low < half, other=0.0)
    cos, sin = tl.cos(angle), tl.sin(angle)
    tl.store(out_ptr + at, x.to(kind), mask=inside & (at >= 2 * half))
    tl.store(out_ptr + low, (first * cos - second * sin).to(kind), mask=turned)
    tl.store(out_ptr + high, (second * cos + first * sin).to(kind), mask=turned)


@triton.jit
def place_kernel(
    q_ptr, k_ptr, v_ptr, keys_ptr, values_ptr, out_ptr, q_scale_ptr, k_scale_ptr, freq_ptr,
    position_ptr, valid_ptr, row_stride, q_head, heads, kv_heads, capacity, dim, half, eps,
    NORM: tl.constexpr, P: tl.constexpr, H: tl.constexpr, D: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One head of P tokens: queries to the output, keys or values to their slots."""
    begin(PDL)
    row, head = tl.program_id(0) * P + tl.arange(0, P)[:, None].to(tl.int64), tl.program_id(1)
    position = tl.load(position_ptr) + row
    real = row < tl.load(valid_ptr)
    at = tl.arange(0, D)[None, :]
    mask = real & (at < dim)
    if head < heads:
        turn_rows(
            q_ptr + row * row_stride + head * q_head, out_ptr + (row * heads + head) * dim,
            q_scale_ptr, freq_ptr, position, real, dim, half, eps, NORM, H, D,
        )  # fmt: skip
    elif head < heads + kv_heads:
        kv = head - heads
        turn_rows(
            k_ptr + row * row_stride + kv * dim, keys_ptr + (kv * capacity + position) * dim,
            k_scale_ptr, freq_ptr, position, real, dim, half, eps, NORM, H, D,
        )  # fmt: skip
    else:
        kv = head - heads - kv_heads
        v = tl.load(v_ptr + row * row_stride + kv * dim + at, mask=mask, other=0.0)
        spot = values_ptr + (kv * capacity + position) * dim + at
        tl.store(spot, v.to(values_ptr.dtype.element_ty), mask=mask)


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
    place_kernel[(triton.cdiv(rows, PLACED), heads + 2 * kv)](
        q, k, v, keys, values, out, q if q_scale is None else q_scale,
        k if k_scale is None else k_scale, freq, position, valid,
        q.stride(0), q.stride(1), heads, kv, keys.shape[1], dim, freq.shape[0], eps,
        NORM=q_scale is not None, P=PLACED, H=triton.next_power_of_2(freq.shape[0]),
        D=triton.next_power_of_2(dim), num_warps=4, **early(q),
    )  # fmt: skip
    return out
