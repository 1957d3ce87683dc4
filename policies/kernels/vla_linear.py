"""Products of few rows with what stands before and after them: the steps of an action expert.

Fifty rows against a weight matrix cost the reading of the matrix, so everything else is done
while it streams by: the norm in front (its scale multiplies the input, its root mean square the
output), the rotation of queries and keys, the gate, the residual. Each function has a plain torch
body, which is the CPU path and the reference, and a Triton kernel.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from flashrt_policies.kernels.vla_matrix import Matrix
from flashrt_policies.kernels.vla_norm import activate
from flashrt_policies.kernels.vla_rope import Heads, Rotary, split_rotate_plain


def norm_product(
    x: Tensor, scale: Tensor | None, weight: Matrix, bias: Tensor | None, eps: float
) -> Tensor:
    """Return ``rms_norm(x) * scale @ weight.T + bias``, float32 [M, N]; the reference's middle.

    Args:
        x: [M, K].
        scale: float32 [K], or None where there is no norm.
        weight: [N, K].
        bias: float32 [N], or None. A norm's shift, times the weights, is part of it.
        eps: added to the mean square.
    """
    if scale is not None:
        wide = x.float()
        inverse = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        x = (wide * inverse * scale).to(x.dtype)
    y = F.linear(x, weight.dense(x.dtype)).float()
    return y if bias is None else y + bias


def project(
    x: Tensor,
    weight: Matrix,
    bias: Tensor | None = None,
    scale: Tensor | None = None,
    eps: float = 0.0,
    kind: str = '',
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Return ``act(norm(x) @ weight.T + bias)``.

    Args:
        x: [M, K]; rounded to the type of plain weights first.
        weight: [N, K].
        bias: float32 [N], or None.
        scale: float32 [K] of the norm, or None for none.
        eps: of the norm.
        kind: an activation, or '' for none.
        dtype: of the result; by default that of plain weights, or of `x` for float8.
    """
    if x.is_cuda:
        from flashrt_policies.kernels import vla_linear_triton

        return vla_linear_triton.project(x, weight, bias, scale, eps, kind, dtype)
    plain = x.dtype if weight.scale is not None else weight.data.dtype
    y = norm_product(x.to(plain), scale, weight, bias, eps)
    return (activate(y, kind) if kind else y).to(dtype or plain)


def project_heads(
    x: Tensor,
    weight: Matrix,
    bias: Tensor | None,
    scale: Tensor,
    eps: float,
    table: Rotary,
    positions: Tensor,
    heads: Heads,
    k: Tensor,
    v: Tensor,
) -> Tensor:
    """Norm, joint projection, rotation; keys and values are put in their place.

    Args:
        x: [M, K].
        weight: [(H + 2 KV) D, K], rows of queries and keys in pairs; [H D, K] where the keys and
            values are another's.
        bias: float32 [N], or None.
        scale: float32 [K].
        eps: of the norm.
        table: cosines and sines.
        positions: int32 [M].
        heads: H, KV, D.
        k: [M, KV, D], written if the weights have rows for it.
        v: [M, KV, D], likewise.

    Returns:
        queries [M, H, D].
    """
    if x.is_cuda:
        from flashrt_policies.kernels import vla_linear_triton

        return vla_linear_triton.project_heads(
            x, weight, bias, scale, eps, table, positions, heads, k, v
        )
    y = norm_product(x, scale, weight, bias, eps).to(x.dtype)
    if y.shape[1] == heads.queries * heads.dim:
        only = Heads(heads.queries, 0, heads.dim)
        return split_rotate_plain(y, table, positions, only, k[:, :0], v[:, :0])
    return split_rotate_plain(y, table, positions, heads, k, v)


def project_gated(
    x: Tensor, weight: Matrix, bias: Tensor | None, scale: Tensor, eps: float, kind: str
) -> Tensor:
    """Return ``act(gate) * up`` of the normed input.

    Args:
        x: [M, K].
        weight: [2 F, K], row 2 i a gate and row 2 i + 1 what it gates.
        bias: float32 [2 F], or None.
        scale: float32 [K].
        eps: of the norm.
        kind: the activation.

    Returns:
        [M, F], type of `x`.
    """
    if x.is_cuda:
        from flashrt_policies.kernels import vla_linear_triton

        return vla_linear_triton.project_gated(x, weight, bias, scale, eps, kind)
    gate, up = norm_product(x, scale, weight, bias, eps).unflatten(-1, (-1, 2)).unbind(-1)
    return (activate(gate, kind) * up).to(x.dtype)


def project_add(x: Tensor, y: Tensor, weight: Matrix, gate: Tensor | None = None) -> None:
    """Add ``gate * (y @ weight.T)`` to the residual stream, in place.

    Args:
        x: [M, N], written.
        y: [M, K].
        weight: [N, K].
        gate: float32 [N], or None for 1.
    """
    if x.is_cuda:
        from flashrt_policies.kernels import vla_linear_triton

        vla_linear_triton.project_add(x, y, weight, gate)
        return
    out = F.linear(y, weight.dense(y.dtype)).float()
    x.copy_(x.float() + (out if gate is None else out * gate))


def pairs(gate: Tensor, up: Tensor) -> Tensor:
    """Return rows [2 F, K], each gate [F, K] before what it gates [F, K]."""
    return torch.stack((gate, up), dim=1).flatten(0, 1)
