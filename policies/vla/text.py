"""The language model over the prefix: its keys and values are all that the actions need of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from flashrt_policies.kernels.norm import add_rms_norm
from flashrt_policies.kernels.vla.attention import attend
from flashrt_policies.kernels.vla.linear import (
    Stream,
    pairs,
    project_add,
    project_gated,
    project_heads,
)
from flashrt_policies.kernels.vla.matrix import Matrix
from flashrt_policies.kernels.vla.norm import gated
from flashrt_policies.kernels.vla.rope import Rotary, pair_rows, split_rotate
from flashrt_policies.vla.sizes import Stack
from flashrt_policies.vla.tensors import Source


def take_attention(
    source: Source, base: str, sizes: Stack, width: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the q, k (rows in pairs), v and output projections of a layer."""
    count, kv, dim = sizes.heads
    q = source.take(f'{base}self_attn.q_proj.weight', count * dim, sizes.width)
    k = source.take(f'{base}self_attn.k_proj.weight', kv * dim, width)
    v = source.take(f'{base}self_attn.v_proj.weight', kv * dim, width)
    out = source.take(f'{base}self_attn.o_proj.weight', sizes.width, count * dim)
    return pair_rows(q, count), pair_rows(k, kv), v, out


def take_layer(
    source: Source, base: str, sizes: Stack, offset: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return a layer's norm, joint projection, output, second norm, gate, up and down."""
    width, mlp = sizes.width, sizes.mlp
    q, k, v, out = take_attention(source, base, sizes, width)
    first, second = (
        source.take(f'{base}{name}_layernorm.weight', width, dtype=torch.float32) + offset
        for name in ('input', 'post_attention')
    )
    gate, up, down = (
        source.take(f'{base}mlp.{name}_proj.weight', *shape)
        for name, shape in (('gate', (mlp, width)), ('up', (mlp, width)), ('down', (width, mlp)))
    )
    return first, torch.cat((q, k, v)), out, second, gate, up, down


def take_layers(
    source: Source, base: str, sizes: Stack, offset: float
) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]]:
    """Take every layer of a stack; see `take_layer`."""
    for i in range(sizes.layers):
        yield take_layer(source, f'{base}layers.{i}.', sizes, offset)
    source.take(f'{base}norm.weight', sizes.width)  # stored, and read by nothing here


class Prefix(Protocol):
    """Decoder layers over the prefix tokens, every layer's keys and values kept.

    The last layer is computed as far as its keys and values: nothing reads what comes out of it.
    """

    def __call__(
        self,
        x: Tensor,
        turns: Rotary,
        rank: Tensor,
        keys: list[Tensor],
        values: list[Tensor],
    ) -> None:
        """Fill the keys and values of every layer.

        Args:
            x: tokens [P, W]; overwritten.
            turns: cosines and sines of each token.
            rank: int32 [P], who sees whom; see `vla.attention`.
            keys: [P, KV, D] per layer, written.
            values: likewise.
        """


def seeing(rank: Tensor) -> Tensor:
    """Return whom the prefix's tokens see: padding what the last token does, so never none."""
    return rank.clamp(max=1)


class LongPrefix:
    """Gemma's prefix: enough tokens to keep a library's products busy.

    Args:
        source: the tensors.
        base: what their names begin with.
        sizes: of the stack.
    """

    def __init__(self, source: Source, base: str, sizes: Stack) -> None:
        self.sizes = sizes
        self.layers = []
        for layer in take_layers(source, base, sizes, 1.0):
            first, qkv, out, second, gate, up, down = layer
            self.layers.append((first, qkv, out, second, torch.cat((gate, up)), down))

    def __call__(
        self,
        x: Tensor,
        turns: Rotary,
        rank: Tensor,
        keys: list[Tensor],
        values: list[Tensor],
    ) -> None:
        """See `Prefix`."""
        delta: Tensor | None = None
        last, eps, seen = len(self.layers) - 1, 1e-6, seeing(rank)
        for i, (norm1, qkv, out, norm2, gate_up, down) in enumerate(self.layers):
            y = F.linear(add_rms_norm(x, delta, norm1, eps), qkv)
            q = split_rotate(y, turns, self.sizes.heads, keys[i], values[i])
            if i == last:
                return
            y = attend(q, keys[i], values[i], seen, rank).flatten(1)
            y = add_rms_norm(x, F.linear(y, out), norm2, eps)
            delta = F.linear(gated(F.linear(y, gate_up), 'gelu'), down)


class ShortPrefix:
    """SmolVLA's prefix: so few tokens that its layers are launched as the expert's are.

    Args:
        source: the tensors.
        base: what their names begin with.
        sizes: of the stack.
    """

    def __init__(self, source: Source, base: str, sizes: Stack) -> None:
        self.sizes = sizes
        self.layers = []
        for layer in take_layers(source, base, sizes, 0.0):
            first, qkv, out, second, gate, up, down = layer
            matrices = Matrix(qkv), Matrix(out), Matrix(pairs(gate, up)), Matrix(down)
            self.layers.append((first, second, *matrices))

    def __call__(
        self,
        x: Tensor,
        turns: Rotary,
        rank: Tensor,
        keys: list[Tensor],
        values: list[Tensor],
    ) -> None:
        """See `Prefix`."""
        stream, heads, eps, seen = Stream(x), self.sizes.heads, 1e-5, seeing(rank)
        behind = [layer[0] for layer in self.layers[1:]]  # the norm that reads a layer's stream
        for i, (norm1, norm2, qkv, out, gate_up, down) in enumerate(self.layers):
            q = project_heads(stream, qkv, None, norm1, eps, turns, heads, keys[i], values[i])
            if i == len(behind):
                return
            y = attend(q, keys[i], values[i], seen, rank).flatten(1)
            project_add(stream, y, out, None, norm2)
            h = project_gated(stream, gate_up, None, norm2, eps, 'silu')
            project_add(stream, h, down, None, behind[i])
