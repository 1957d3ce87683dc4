"""Products with a weight matrix."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


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


def head_logits(hidden: Tensor, head: Tensor, logits: Tensor) -> None:
    """Write the logits of one token.

    Args:
        hidden: [1, K].
        head: [vocab, K].
        logits: float32 [vocab], written.
    """
    if hidden.is_cuda:
        from flashrt_policies.kernels import linear_triton

        linear_triton.row(hidden, head, out=logits.view(1, -1))
        return
    logits.copy_(F.linear(hidden, head)[0])
