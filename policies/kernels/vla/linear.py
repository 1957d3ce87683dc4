"""Products of few rows with what stands before and after them: the steps of an action expert.

Fifty rows against a weight matrix cost the reading of the matrix, so everything else is done
while it streams by: the norm in front (its scale multiplies the input, its root mean square the
output), the rotation of queries and keys, the gate, the residual, the Euler step. Whoever adds to
the residual stream may prepare the norm that reads it next: the stream times that norm's scale,
and its squares. Each function has a plain torch body, which is the CPU path and the reference, and
a Triton kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from flashrt_policies.kernels.vla.matrix import Matrix
from flashrt_policies.kernels.vla.norm import activate
from flashrt_policies.kernels.vla.rope import Heads, Rotary, split_rotate_plain


@dataclass
class Stream:
    """The residual stream of a step, and what of the norm that reads it next is prepared.

    Attributes:
        x: [M, K].
        scaled: [M, K], `x` times the scale of that norm; None where nothing is prepared.
        squares: float32 [tiles, M], sums of squares of `x` by tiles of columns.
    """

    x: Tensor
    scaled: Tensor | None = None
    squares: Tensor | None = None

    def behind(self, first: int) -> Stream:
        """Return the stream without its first rows."""
        if self.scaled is None or self.squares is None:
            return Stream(self.x[first:])
        return Stream(self.x[first:], self.scaled[first:], self.squares[:, first:])


@dataclass(frozen=True)
class Euler:
    """One Euler step of a flow, pulled towards what is left of the previous chunk.

    arXiv 2506.07339, equations 1 to 3.

    Attributes:
        x: the noisy actions [M, N], float32; written.
        target: what is left of the previous chunk [M, N], float32.
        held: how strongly each action is held to it [M, 1], float32.
        time: the flow's time, 1 at noise and 0 at actions.
        pull: guidance weight.
        length: of the step.
    """

    x: Tensor
    target: Tensor
    held: Tensor
    time: float
    pull: float
    length: float

    def advance(self, velocity: Tensor) -> None:
        """Move the actions along their velocity [M, N], float32."""
        missing = (self.target - (self.x - self.time * velocity)) * self.held
        self.x.add_(velocity - self.pull * missing, alpha=-self.length)


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


def project(x: Tensor, weight: Matrix, bias: Tensor | None = None, kind: str = '') -> Tensor:
    """Return ``act(x @ weight.T + bias)`` in the type of the weights, which are plain.

    Args:
        x: [M, K]; rounded to the type of the weights first.
        weight: [N, K].
        bias: float32 [N], or None.
        kind: an activation, or '' for none.
    """
    if not x.is_cpu:
        from flashrt_policies.kernels.vla import linear_triton

        return linear_triton.project(x, weight, bias, kind)
    plain = weight.data.dtype
    y = norm_product(x.to(plain), None, weight, bias, 0.0)
    return (activate(y, kind) if kind else y).to(plain)


def project_flow(
    stream: Stream, weight: Matrix, bias: Tensor, scale: Tensor, eps: float, step: Euler
) -> None:
    """Move the actions of `step` along the velocity ``norm(x) @ weight.T + bias``, in place.

    Args:
        stream: of [M, K].
        weight: [N, K].
        bias: float32 [N].
        scale: float32 [K] of the norm.
        eps: of the norm.
        step: of [M, N].
    """
    if not stream.x.is_cpu:
        from flashrt_policies.kernels.vla import linear_triton

        linear_triton.project_flow(stream, weight, bias, scale, eps, step)
        return
    step.advance(norm_product(stream.x, scale, weight, bias, eps))


def project_heads(
    stream: Stream,
    weight: Matrix,
    bias: Tensor | None,
    scale: Tensor,
    eps: float,
    turns: Rotary,
    heads: Heads,
    k: Tensor,
    v: Tensor,
) -> Tensor:
    """Norm, joint projection, rotation; keys and values are put in their place.

    Args:
        stream: of [M, K].
        weight: [(H + 2 KV) D, K], rows of queries and keys in pairs; [H D, K] where the keys and
            values are another's.
        bias: float32 [N], or None.
        scale: float32 [K].
        eps: of the norm.
        turns: cosines and sines of each token.
        heads: H, KV, D.
        k: [M, KV, D], written if the weights have rows for it.
        v: [M, KV, D], likewise.

    Returns:
        queries [M, H, D].
    """
    if not stream.x.is_cpu:
        from flashrt_policies.kernels.vla import linear_triton

        return linear_triton.project_heads(stream, weight, bias, scale, eps, turns, heads, k, v)
    y = norm_product(stream.x, scale, weight, bias, eps).to(stream.x.dtype)
    if y.shape[1] == heads.queries * heads.dim:
        only = Heads(heads.queries, 0, heads.dim)
        return split_rotate_plain(y, turns, only, k[:, :0], v[:, :0])
    return split_rotate_plain(y, turns, heads, k, v)


def project_gated(
    stream: Stream, weight: Matrix, bias: Tensor | None, scale: Tensor, eps: float, kind: str
) -> Tensor:
    """Return ``act(gate) * up`` of the normed input.

    Args:
        stream: of [M, K].
        weight: [2 F, K], row 2 i a gate and row 2 i + 1 what it gates.
        bias: float32 [2 F], or None.
        scale: float32 [K].
        eps: of the norm.
        kind: the activation.

    Returns:
        [M, F], type of the stream.
    """
    x = stream.x
    if not x.is_cpu:
        from flashrt_policies.kernels.vla import linear_triton

        return linear_triton.project_gated(stream, weight, bias, scale, eps, kind)
    gate, up = norm_product(x, scale, weight, bias, eps).unflatten(-1, (-1, 2)).unbind(-1)
    return (activate(gate, kind) * up).to(x.dtype)


def project_add(
    stream: Stream, y: Tensor, weight: Matrix, gate: Tensor | None, following: Tensor
) -> None:
    """Add ``gate * (y @ weight.T)`` to the residual stream, in place.

    Args:
        stream: of [M, N]; written, and what of the next norm is prepared.
        y: [M, K].
        weight: [N, K].
        gate: float32 [N], or None for 1.
        following: float32 [N], scale of the norm that reads the stream next.
    """
    if not stream.x.is_cpu:
        from flashrt_policies.kernels.vla import linear_triton

        linear_triton.project_add(stream, y, weight, gate, following)
        return
    out = F.linear(y, weight.dense(y.dtype)).float()
    stream.x.copy_(stream.x.float() + (out if gate is None else out * gate))


def pairs(gate: Tensor, up: Tensor) -> Tensor:
    """Return rows [2 F, K], each gate [F, K] before what it gates [F, K]."""
    return torch.stack((gate, up), dim=1).flatten(0, 1)
