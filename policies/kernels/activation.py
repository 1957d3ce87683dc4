"""The activation of the gated MLP."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def silu_mul(gate_up: Tensor) -> Tensor:
    """Return ``silu(gate) * up`` for a fused projection.

    Args:
        gate_up: [M, 2 I], the gate in the first half, up in the second.

    Returns:
        [M, I], computed in float32 and rounded once.
    """
    if gate_up.is_cuda:
        from flashrt_policies.kernels import activation_triton

        return activation_triton.silu_mul(gate_up)
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (F.silu(gate) * up).to(gate_up.dtype)
