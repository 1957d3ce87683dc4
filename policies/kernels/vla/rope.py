"""Rotary positions over adjacent pairs, and the split of a joint projection into q, k and v.

Checkpoints rotate number i of a head with number i + D/2. Here the rows of the projections are
reordered once, when they are loaded, so that the two stand side by side: then one thread has both
(`pair_rows`). Queries and keys are reordered alike, so their products are unchanged. Rotary
embedding: Su et al., arXiv 2104.09864.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Rotary(NamedTuple):
    """Cosines and sines by position, or of each token: float32 [positions or M, D/2] each."""

    cos: Tensor
    sin: Tensor

    def at(self, positions: Tensor) -> Rotary:
        """Return those of tokens at `positions`, int32 [M]: once for all layers and steps."""
        return Rotary(self.cos.index_select(0, positions), self.sin.index_select(0, positions))

    def first(self, count: int) -> Rotary:
        """Return those of tokens at positions 0 to `count` - 1, without a copy."""
        return Rotary(self.cos[:count], self.sin[:count])


class Heads(NamedTuple):
    """Shape of an attention: query heads H, key and value heads KV, numbers in a head D."""

    queries: int
    kv: int
    dim: int


def rotary(positions: int, dim: int, theta: float, device: torch.device) -> Rotary:
    """Return the tables for positions 0 to `positions` - 1 of heads of `dim` numbers."""
    rate = theta ** -(torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    angle = torch.arange(positions, dtype=torch.float32)[:, None] * rate  # [P, D/2]
    return Rotary(angle.cos().to(device), angle.sin().to(device))


def pair_rows(weight: Tensor, heads: int) -> Tensor:
    """Return rows [heads * D, ...] with row i of a head beside row i + D/2."""
    parts = weight.unflatten(0, (heads, 2, -1))  # [heads, 2, D/2, ...]
    return parts.transpose(1, 2).reshape(weight.shape)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate adjacent pairs of [M, H, D] by angles [M, D/2]; type of `x`, computed in float32."""
    first, second = x.float().unflatten(-1, (-1, 2)).unbind(-1)  # [M, H, D/2]
    cos, sin = cos[:, None], sin[:, None]
    turned = torch.stack((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return turned.flatten(-2).to(x.dtype)


def split_rotate(qkv: Tensor, turns: Rotary, heads: Heads, k: Tensor, v: Tensor) -> Tensor:
    """Split a joint projection, rotate queries and keys, and put keys and values in their place.

    Args:
        qkv: [M, (H + 2 KV) D].
        turns: cosines and sines of each token.
        heads: H, KV, D.
        k: [M, KV, D], written; its rows may be part of a larger cache.
        v: [M, KV, D], written.

    Returns:
        queries [M, H, D].
    """
    if not qkv.is_cpu:
        from flashrt_policies.kernels.vla import rope_triton

        return rope_triton.split_rotate(qkv, turns, heads, k, v)
    return split_rotate_plain(qkv, turns, heads, k, v)


def split_rotate_plain(qkv: Tensor, turns: Rotary, heads: Heads, k: Tensor, v: Tensor) -> Tensor:
    """`split_rotate` in plain torch: the reference."""
    parts = qkv.unflatten(-1, (-1, heads.dim)).split((heads.queries, heads.kv, heads.kv), dim=1)
    k.copy_(rotate(parts[1], *turns))
    v.copy_(parts[2])
    return rotate(parts[0], *turns)
