"""Triton kernel of `activation`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from flashrt_policies.kernels.launch import begin, early

BLOCK = 1024


@triton.jit
def silu_mul_kernel(x_ptr, out_ptr, width, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """Out = silu(gate) * up for one block of one row."""
    begin(PDL)
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = at < width
    gate = tl.load(x_ptr + row * 2 * width + at, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + row * 2 * width + width + at, mask=mask, other=0.0).to(tl.float32)
    y = gate * tl.sigmoid(gate) * up
    tl.store(out_ptr + row * width + at, y.to(out_ptr.dtype.element_ty), mask=mask)


def silu_mul(gate_up: Tensor) -> Tensor:
    """Launch `activation.silu_mul` on CUDA."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((rows, width), dtype=gate_up.dtype, device=gate_up.device)
    grid = (rows, triton.cdiv(width, BLOCK))
    silu_mul_kernel[grid](gate_up, out, width, BLOCK=BLOCK, num_warps=4, **early(gate_up))
    return out
