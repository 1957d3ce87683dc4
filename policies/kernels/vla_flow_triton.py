"""Triton kernel of `vla_flow`."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from flashrt_policies.kernels.launch import begin, early

BLOCK = 256


@triton.jit
def advance_kernel(
    x_ptr, velocity_ptr, target_ptr, held_ptr, count, width, time, pull, length,
    BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One block of numbers."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < count
    begin(PDL)
    x = tl.load(x_ptr + at, mask=mask, other=0.0)
    velocity = tl.load(velocity_ptr + at, mask=mask, other=0.0)
    target = tl.load(target_ptr + at, mask=mask, other=0.0)
    held = tl.load(held_ptr + at // width, mask=mask, other=0.0)
    missing = (target - (x - time * velocity)) * held
    tl.store(x_ptr + at, x - length * (velocity - pull * missing), mask=mask)


def advance(
    x: Tensor,
    velocity: Tensor,
    target: Tensor,
    held: Tensor,
    time: float,
    pull: float,
    length: float,
) -> None:
    """Launch `vla_flow.advance` on CUDA."""
    advance_kernel[(triton.cdiv(x.numel(), BLOCK),)](
        x, velocity, target, held, x.numel(), x.shape[1], time, pull, length,
        BLOCK=BLOCK, num_warps=4, **early(x, step=True),
    )  # fmt: skip
