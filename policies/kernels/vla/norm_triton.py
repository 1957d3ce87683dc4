"""Triton kernels of `vla.norm`: one pass over each row, everything in between in float32."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def act(x, KIND: tl.constexpr):
    """Return silu(x), or gelu(x) in its tanh form."""
    if KIND == 'silu':
        y = x * tl.sigmoid(x)
    else:  # tanh(u) = 2 sigmoid(2 u) - 1
        y = x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    return y


@triton.jit
def add_layer_norm_kernel(
    x_ptr, delta_ptr, weight_ptr, bias_ptr, out_ptr, width, eps,
    ADD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Row of x += delta (rounded to the stream's type), then its layer norm."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    mask = at < width
    x = tl.load(x_ptr + row * width + at, mask=mask, other=0.0)
    if ADD:
        delta = tl.load(delta_ptr + row * width + at, mask=mask, other=0.0)
        x = (x.to(tl.float32) + delta.to(tl.float32)).to(x_ptr.dtype.element_ty)
        tl.store(x_ptr + row * width + at, x, mask=mask)
    wide = x.to(tl.float32)
    mean = tl.sum(wide, 0) / width
    centred = tl.where(mask, wide - mean, 0.0)
    inverse = tl.rsqrt(tl.sum(centred * centred, 0) / width + eps)
    weight = tl.load(weight_ptr + at, mask=mask, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + at, mask=mask, other=0.0).to(tl.float32)
    y = centred * inverse * weight + bias
    tl.store(out_ptr + row * width + at, y.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def gated_kernel(x_ptr, out_ptr, width, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """One block of one row of act(gate) * up."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = at < width
    gate = tl.load(x_ptr + row * 2 * width + at, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + row * 2 * width + width + at, mask=mask, other=0.0).to(tl.float32)
    y = act(gate, KIND) * up
    tl.store(out_ptr + row * width + at, y.to(out_ptr.dtype.element_ty), mask=mask)


def add_layer_norm(
    x: Tensor, delta: Tensor | None, weight: Tensor, bias: Tensor, eps: float
) -> Tensor:
    """Launch `vla.norm.add_layer_norm` on CUDA."""
    rows, width = x.shape
    out = torch.empty_like(x)
    add_layer_norm_kernel[(rows,)](
        x, x if delta is None else delta, weight, bias, out, width, eps,
        ADD=delta is not None, BLOCK=triton.next_power_of_2(width), num_warps=4,
    )  # fmt: skip
    return out


def gated(gate_up: Tensor, kind: str) -> Tensor:
    """Launch `vla.norm.gated` on CUDA."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((rows, width), dtype=gate_up.dtype, device=gate_up.device)
    block = min(BLOCK, triton.next_power_of_2(width))
    gated_kernel[(rows, triton.cdiv(width, block))](
        gate_up, out, width, KIND=kind, BLOCK=block, num_warps=4
    )
    return out
