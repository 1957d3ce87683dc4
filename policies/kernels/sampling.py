"""Choosing the next token, greedily or by a seeded draw, inside the captured graph.

The draw is the Gumbel-max trick: the largest of ``logits / temperature + noise`` is a sample of
the softmax. The noise comes from the counter-based generator of `noise`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from flashrt_policies.kernels.noise import words_


def greedy(logits: Tensor, token: Tensor) -> None:
    """Write the index of the largest logit; the first one on a tie.

    Args:
        logits: float32 [vocab].
        token: int32 [1].
    """
    if logits.is_cuda:
        from flashrt_policies.kernels import sampling_triton

        sampling_triton.greedy(logits, token)
        return
    token.copy_(logits.argmax().view(1))


def draw(
    logits: Tensor,
    token: Tensor,
    temperature: Tensor,
    min_p: Tensor,
    seed: Tensor,
    counter: Tensor,
) -> None:
    """Draw a token from the softmax of the logits and advance the counter.

    Args:
        logits: float32 [vocab].
        token: int32 [1], written.
        temperature: float32 [1], above zero.
        min_p: float32 [1]; tokens less likely than this share of the likeliest are left out.
        seed: int64 [1].
        counter: int64 [1], advanced by ceil(vocab / 4) blocks.
    """
    if logits.is_cuda:
        from flashrt_policies.kernels import sampling_triton

        sampling_triton.draw(logits, token, temperature, min_p, seed, counter)
        return
    words = words_(logits.shape[0], seed, counter)
    uniform = ((words >> 9) + 0.5) * 2.0**-23  # in (0, 1), exact in float32
    scaled = (logits - logits.max()) / temperature
    noisy = scaled - torch.log(-torch.log(uniform.float()))
    token.copy_(noisy.masked_fill(scaled < min_p.log(), float('-inf')).argmax().view(1))
