"""Products with a weight matrix."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from flashrt_policies.kernels.activation import silu_mul
from flashrt_policies.kernels.norm import add_rms_norm


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``x @ weight.T + bias``.

    Args:
        x: [M, K].
        weight: [N, K].
        bias: [N], or None.

    Returns:
        [M, N]. On CUDA a row is summed in the same order however many rows there are, of two or
        more.
    """
    if x.is_cuda:
        from flashrt_policies.kernels import linear_triton

        return linear_triton.linear(x, weight, bias)
    return F.linear(x, weight, bias)


def gated(x: Tensor, weight: Tensor) -> Tensor:
    """Return ``silu(x @ gate.T) * (x @ up.T)``.

    Args:
        x: [M, K].
        weight: [2 N, K], the gate, then up.

    Returns:
        [M, N]; on CUDA a row keeps its bits as in `linear`.
    """
    if x.is_cuda:
        from flashrt_policies.kernels import linear_triton

        return linear_triton.gated(x, weight)
    return silu_mul(F.linear(x, weight))


def project(
    y: Tensor, weight: Tensor, bias: Tensor | None, x: Tensor, scale: Tensor, eps: float
) -> Tensor:
    """Add ``y @ weight.T + bias`` to the residual stream in place and return its norm.

    Args:
        y: [M, K].
        weight: [N, K].
        bias: [N], or None.
        x: residual stream [M, N].
        scale: float32 [N], of the norm.
        eps: of the norm.

    Returns:
        [M, N]; on CUDA a row keeps its bits as in `linear`.
    """
    if y.is_cuda:
        from flashrt_policies.kernels import linear_triton

        return linear_triton.project(y, weight, bias, x, scale, eps)
    return add_rms_norm(x, F.linear(y, weight, bias), scale, eps)


def head_logits(hidden: Tensor, head: Tensor, logits: Tensor) -> None:
    """Write the logits of a token, or of a few; each has the bits that it has alone.

    Args:
        hidden: [R, K].
        head: [vocab, K].
        logits: float32 [R, vocab], or [vocab] for one; written.
    """
    if hidden.is_cuda:
        from flashrt_policies.kernels import linear_triton

        linear_triton.row(hidden, head, out=logits.view(hidden.shape[0], -1))
        return
    for one, made in zip(hidden.split(1), logits.view(hidden.shape[0], -1), strict=True):
        made.copy_(F.linear(one, head)[0])
