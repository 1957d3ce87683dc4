"""Root-mean-square norms: with the residual added first, and with a gate.

Each function has a plain torch body, which is the CPU path and the reference, and a Triton kernel
(`norm_triton`) that is taken on CUDA. RMSNorm: Zhang and Sennrich, arXiv 1910.07467.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def add_rms_norm(x: Tensor, delta: Tensor | None, scale: Tensor, eps: float) -> Tensor:
    """Add `delta` to the residual stream in place and return its norm.

    Args:
        x: residual stream [M, N]; becomes ``x + delta``, rounded to its type.
        delta: [M, N] of the same type, or None.
        scale: float32 [N]; for a zero-centred checkpoint it is 1 + w.
        eps: added to the mean square.

    Returns:
        [M, N], type of `x`.
    """
    if x.is_cuda:
        from flashrt_policies.kernels import norm_triton

        return norm_triton.add_rms_norm(x, delta, scale, eps)
    if delta is not None:
        x.add_(delta)
    return rms_norm(x, scale, eps)


def rms_norm(x: Tensor, scale: Tensor, eps: float) -> Tensor:
    """Return ``x / rms(x) * scale`` over the last dimension, computed in float32 [..., N]."""
    wide = x.float()
    inverse = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * inverse * scale).to(x.dtype)


def gated_rms_norm(o: Tensor, z: Tensor, scale: Tensor, eps: float) -> Tensor:
    """Return ``rms_norm(o) * scale * silu(z)`` per head, the norm before the gate.

    Args:
        o: output of the linear layer's heads [M, HV, V].
        z: gate [M, HV, V], may be strided.
        scale: float32 [V], plain (not zero-centred).
        eps: added to the mean square.

    Returns:
        [M, HV, V], type of `z`.
    """
    if o.is_cuda:
        from flashrt_policies.kernels import norm_triton

        return norm_triton.gated_rms_norm(o, z, scale, eps)
    wide = o.float()
    inverse = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * inverse * scale * F.silu(z.float())).to(z.dtype)
