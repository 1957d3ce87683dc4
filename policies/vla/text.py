"""The language model over the prefix: its keys and values are all that the actions need of it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from flashrt_policies.kernels.norm import add_rms_norm
from flashrt_policies.kernels.vla.attention import attend
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


class Prefix:
    """Decoder layers over the prefix tokens, every layer's keys and values kept.

    The last layer is computed as far as its keys and values: nothing reads what comes out of it.

    Args:
        source: the tensors.
        base: what their names begin with.
        sizes: of the stack.
        gemma: norms are stored as what they differ from one; GELU. Otherwise as they are; SiLU.
    """

    def __init__(self, source: Source, base: str, sizes: Stack, gemma: bool) -> None:
        self.sizes = sizes
        self.kind = 'gelu' if gemma else 'silu'
        self.eps = 1e-6 if gemma else 1e-5
        width, mlp = sizes.width, sizes.mlp
        self.layers = []
        for i in range(sizes.layers):
            layer = f'{base}layers.{i}.'
            q, k, v, out = take_attention(source, layer, sizes, width)
            norms = [
                source.take(f'{layer}{name}_layernorm.weight', width, dtype=torch.float32)
                + float(gemma)
                for name in ('input', 'post_attention')
            ]
            gate, up, down = (
                source.take(f'{layer}mlp.{name}_proj.weight', *shape)
                for name, shape in (
                    ('gate', (mlp, width)), ('up', (mlp, width)), ('down', (width, mlp)),
                )
            )  # fmt: skip
            self.layers.append(
                (norms[0], torch.cat((q, k, v)), out, norms[1], torch.cat((gate, up)), down)
            )
        source.take(f'{base}norm.weight', width)  # stored, and read by nothing here

    def __call__(
        self,
        x: Tensor,
        table: Rotary,
        positions: Tensor,
        rank: Tensor,
        keys: list[Tensor],
        values: list[Tensor],
    ) -> None:
        """Fill the keys and values of every layer.

        Args:
            x: tokens [P, W]; overwritten.
            table: cosines and sines.
            positions: int32 [P].
            rank: int32 [P], who sees whom; see `vla.attention`.
            keys: [P, KV, D] per layer, written.
            values: likewise.
        """
        delta: Tensor | None = None
        last = len(self.layers) - 1
        seeing = rank.clamp(max=1)  # padding sees what the last real token does: never nothing
        for i, (norm1, qkv, out, norm2, gate_up, down) in enumerate(self.layers):
            y = F.linear(add_rms_norm(x, delta, norm1, self.eps), qkv)
            q = split_rotate(y, table, positions, self.sizes.heads, keys[i], values[i])
            if i == last:
                return
            y = attend(q, keys[i], values[i], seeing, rank).flatten(1)
            y = add_rms_norm(x, F.linear(y, out), norm2, self.eps)
            delta = F.linear(gated(F.linear(y, gate_up), self.kind), down)
