"""Elementwise work between the large products: layer norm with its residual, and gating."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

ACTIVATIONS = ('gelu', 'silu')  # GELU in its tanh form


def add_layer_norm(
    x: Tensor, delta: Tensor | None, weight: Tensor, bias: Tensor, eps: float
) -> Tensor:
    """Add `delta` to the residual stream in place and return its layer norm.

    Args:
        x: residual stream [M, N]; becomes ``x + delta``.
        delta: [M, N], or None.
        weight: [N].
        bias: [N].
        eps: added to the variance.

    Returns:
        [M, N], type of `x`.
    """
    if not x.is_cpu:
        from flashrt_policies.kernels.vla import norm_triton

        return norm_triton.add_layer_norm(x, delta, weight, bias, eps)
    if delta is not None:
        x.add_(delta)
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


def gated(gate_up: Tensor, kind: str) -> Tensor:
    """Return ``act(gate) * up`` of [M, 2 F], gates first: [M, F]."""
    if not gate_up.is_cpu:
        from flashrt_policies.kernels.vla import norm_triton

        return norm_triton.gated(gate_up, kind)
    gate, up = gate_up.chunk(2, dim=-1)
    return activate(gate, kind) * up


def activate(x: Tensor, kind: str) -> Tensor:
    """Return the activation of this name."""
    return F.silu(x) if kind == 'silu' else F.gelu(x, approximate='tanh')
