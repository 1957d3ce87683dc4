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
def normed_parts(
    x_ptr, scale_ptr, mask, dim, half, eps, NORM: tl.constexpr, H: tl.constexpr, D: tl.constexpr
):  # fmt: skip
    """One head of some rows, x_ptr [P, 1], normed: all of it [P, D], its rotated halves [P, H].

    The halves are tiles of their own: sine and cosine then serve both, and no element that keeps
    its place meets them.
    """
    at, low = tl.arange(0, D)[None, :], tl.arange(0, H)[None, :]
    inside, turned = mask & (at < dim), mask & (low < half)
    x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    first = tl.load(x_ptr + low, mask=turned, other=0.0).to(tl.float32)
    second = tl.load(x_ptr + half + low, mask=turned, other=0.0).to(tl.float32)
    if NORM:
        inverse = tl.rsqrt(tl.sum(x * x, 1) / dim + eps)[:, None]
        x = x * inverse * tl.load(scale_ptr + at, mask=at < dim, other=0.0)
        first = first * inverse * tl.load(scale_ptr + low, mask=low < half, other=0.0)
        second = second * inverse * tl.load(scale_ptr + half + low, mask=low < half, other=0.0)
    return x, first, second


@triton.jit
def put_turned(
    out_ptr, x, first, second, cos, sin, mask, dim, half, H: tl.constexpr, D: tl.constexpr
):  # fmt: skip
    """Write what `normed_parts` made to out_ptr [P, 1], its halves rotated by `cos` and `sin`."""
    kind = out_ptr.dtype.element_ty
    at, low = tl.arange(0, D)[None, :], tl.arange(0, H)[None, :]
    turned = mask & (low < half)
    tl.store(out_ptr + at, x.to(kind), mask=mask & (at >= 2 * half) & (at < dim))
    tl.store(out_ptr + low, (first * cos - second * sin).to(kind), mask=turned)
    tl.store(out_ptr + half + low, (second * cos + first * sin).to(kind), mask=turned)


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
    low = tl.arange(0, H)[None, :]
    angle = position.to(tl.float32) * tl.load(freq_ptr + low, mask=low < half, other=0.0)
    if head < heads:
        x, first, second = normed_parts(
            q_ptr + row * row_stride + head * q_head, q_scale_ptr, real, dim, half, eps, NORM, H, D
        )
        put_turned(
            out_ptr + (row * heads + head) * dim, x, first, second, tl.cos(angle), tl.sin(angle),
            real, dim, half, H, D,
        )  # fmt: skip
    elif head < heads + kv_heads:
        kv = head - heads
        x, first, second = normed_parts(
            k_ptr + row * row_stride + kv * dim, k_scale_ptr, real, dim, half, eps, NORM, H, D
        )
        put_turned(
            keys_ptr + (kv * capacity + position) * dim, x, first, second, tl.cos(angle),
            tl.sin(angle), real, dim, half, H, D,
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
