"""The first step of a replay: take the next tokens of the prompt and look them up.

Also keeps the history of consumed tokens and its digest, a polynomial hash modulo the Mersenne
prime 2**31 - 1, so that both travel with the state they belong to.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

import flashrt_policies.kernels.attention  # noqa: F401  defines the operator `write`

PRIME = 2**31 - 1
BASE = 1_000_003


def digest(tokens: Iterable[int], start: int = 0) -> int:
    """Return the hash of tokens, continuing from the hash `start` of what went before."""
    for token in tokens:
        start = (start * BASE + token + 1) % PRIME
    return start


def powers(count: int) -> Tensor:
    """Return BASE ** i modulo PRIME for i from 0 to count, int64 [count + 1]."""
    made = [1]
    for _ in range(count):
        made.append(made[-1] * BASE % PRIME)
    return torch.tensor(made, dtype=torch.int64)


def take(
    rows: int,
    prompt: Tensor,
    span: Tensor,
    embed: Tensor,
    history: Tensor,
    position: Tensor,
    valid: Tensor,
    hashed: Tensor,
    power: Tensor,
) -> Tensor:
    """Take up to `rows` tokens from the prompt: embed them, remember them, hash them.

    Args:
        rows: M, tokens of one replay.
        prompt: int32 [P], tokens to consume.
        span: int64 [2], the first token not yet consumed and the end of the prompt.
        embed: [vocab, hidden].
        history: int32 [T], consumed tokens; written behind `position`.
        position: int64 [1], tokens consumed before.
        valid: int64 [1], set to how many of the M rows are tokens.
        hashed: int64 [1], digest of the history; updated.
        power: int64 [>= M + 1], from `powers`.

    Returns:
        [M, hidden]; rows at and past `valid` are zero.
    """
    if embed.is_cuda:
        from flashrt_policies.kernels import embed_triton

        return embed_triton.take(
            rows, prompt, span, embed, history, position, valid, hashed, power
        )
    index = torch.arange(rows, device=embed.device)
    valid.copy_((span[1:] - span[:1]).clamp(0, rows))
    real = index < valid
    source = (span[:1] + index).clamp(max=prompt.shape[0] - 1)
    token = prompt.index_select(0, source).long() * real  # [M]
    weight = power.index_select(0, (valid - 1 - index).clamp(min=0))
    terms = (token + 1) * weight % PRIME * real
    hashed.copy_((hashed * power.index_select(0, valid) + terms.sum()) % PRIME)
    torch.ops.flashrt_lm.write(token.int().view(-1, 1, 1), history.view(1, -1, 1), position, valid)
    return embed.index_select(0, token) * real[:, None].to(embed.dtype)


def advance(span: Tensor, position: Tensor, valid: Tensor) -> None:
    """Count the tokens of this replay as consumed; the last step of a replay."""
    span[:1] += valid
    position += valid
