"""`noise.normal_` for a chunk of actions: one launch where the plain form takes two hundred."""

from __future__ import annotations

from torch import Tensor

from flashrt_policies.kernels import noise

KERNEL = f'{noise.KERNEL}+vla/1'


def normal_(out: Tensor, seed: Tensor, counter: Tensor) -> Tensor:
    """Fill `out` with the standard normal numbers that `noise.normal_` draws, in place.

    Args:
        out: float32, contiguous.
        seed: int64 [1].
        counter: int64 [1]; advanced in place, one block per four numbers.
    """
    if not out.is_cpu:
        from flashrt_policies.kernels.vla import noise_triton

        return noise_triton.normal_(out, seed, counter)
    return noise.normal_(out, seed, counter)
