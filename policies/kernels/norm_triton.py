"""Triton kernels of `norm`: one program per row, everything between load and store in float32."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from flashrt_policies.kernels.launch import begin, early


@triton.jit
def add_rms_norm_kernel(
    x_ptr, delta_ptr, bias_ptr, scale_ptr, out_ptr, rows, width, eps,
    PARTS: tl.constexpr, BIAS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Row of x += the sum of PARTS deltas (rounded to the stream's type), then its norm."""
    at = tl.arange(0, BLOCK)
    mask = at < width
    scale = tl.load(scale_ptr + at, mask=mask, other=0.0)
    begin(PDL)
    row = tl.program_id(0).to(tl.int64)
    x = tl.load(x_ptr + row * width + at, mask=mask, other=0.0)
    if PARTS > 0:
        total = tl.load(delta_ptr + row * width + at, mask=mask, other=0.0).to(tl.float32)
        for part in tl.static_range(1, PARTS):
            spot = delta_ptr + (part * rows + row) * width + at
            total += tl.load(spot, mask=mask, other=0.0).to(tl.float32)
        if BIAS:
            total += tl.load(bias_ptr + at, mask=mask, other=0.0).to(tl.float32)
        x = (x.to(tl.float32) + total).to(x_ptr.dtype.element_ty)
        tl.store(x_ptr + row * width + at, x, mask=mask)
    wide = x.to(tl.float32)
    inverse = tl.rsqrt(tl.sum(wide * wide, 0) / width + eps)
    tl.store(out_ptr + row * width + at, (wide * inverse * scale).to(x.dtype), mask=mask)


@triton.jit
def gated_rms_norm_kernel(
    o_ptr, z_ptr, scale_ptr, out_ptr, z_row, heads, dim, eps,
    HEADS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Per head: norm(o) * scale * silu(z)."""
    begin(PDL)
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    at = tl.arange(0, BLOCK)
    mask = (head < heads)[:, None] & (at < dim)[None, :]
    flat = head[:, None] * dim + at[None, :]  # [HEADS, BLOCK]
    o = tl.load(o_ptr + row * heads * dim + flat, mask=mask, other=0.0).to(tl.float32)
    z = tl.load(z_ptr + row * z_row + flat, mask=mask, other=0.0).to(tl.float32)
    scale = tl.load(scale_ptr + at, mask=at < dim, other=0.0)
    inverse = tl.rsqrt(tl.sum(o * o, 1) / dim + eps)
    y = o * inverse[:, None] * scale[None, :] * (z * tl.sigmoid(z))
    tl.store(out_ptr + row * heads * dim + flat, y.to(out_ptr.dtype.element_ty), mask=mask)


def add_rms_norm(
    x: Tensor, delta: Tensor | None, scale: Tensor, eps: float, bias: Tensor | None = None
) -> Tensor:
    """Launch `norm.add_rms_norm` on CUDA; `delta` may also be [parts, M, N], to be summed.

    A `bias` [N] is added to the sum.
    """
    rows, width = x.shape
    parts = 0 if delta is None else delta.shape[0] if delta.dim() == 3 else 1
    out = torch.empty_like(x)
    add_rms_norm_kernel[(rows,)](
        x, x if delta is None else delta, x if bias is None else bias, scale, out, rows, width,
        eps, PARTS=parts, BIAS=bias is not None, BLOCK=triton.next_power_of_2(width),
        num_warps=4, **early(x),
    )  # fmt: skip
    return out


def gated_rms_norm(o: Tensor, z: Tensor, scale: Tensor, eps: float) -> Tensor:
    """Launch `norm.gated_rms_norm` on CUDA."""
    rows, heads, dim = o.shape
    out = torch.empty((rows, heads, dim), dtype=z.dtype, device=z.device)
    block = triton.next_power_of_2(dim)
    group = max(1, min(triton.next_power_of_2(heads), 2048 // block))
    gated_rms_norm_kernel[(rows, triton.cdiv(heads, group))](
        o, z, scale, out, z.stride(0), heads, dim, eps, HEADS=group, BLOCK=block, num_warps=4,
        **early(z),
    )  # fmt: skip
    return out
