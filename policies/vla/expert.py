"""The action expert: decoder layers over the action tokens, attending to the prefix's keys.

Whatever depends on the flow's time and on nothing else is computed once, when the policy is
loaded, for each Euler step: the modulations of π0.5's adaptive norms (a scale in front of a
product, the shift as a bias behind it, a gate on the residual) and the time's part of the input.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from flashrt_policies.kernels.vla.attention import attend
from flashrt_policies.kernels.vla.linear import (
    Stream,
    pairs,
    project_add,
    project_gated,
    project_heads,
)
from flashrt_policies.kernels.vla.matrix import Matrix, quantised
from flashrt_policies.kernels.vla.rope import Rotary
from flashrt_policies.vla.sizes import Stack
from flashrt_policies.vla.tensors import Source
from flashrt_policies.vla.text import take_attention


@dataclass(frozen=True)
class Norm:
    """A norm and what its modulation does behind the product, by Euler step (or one for all).

    Attributes:
        scale: float32 [S or 1, K].
        bias: float32 [S, N], or None without modulation.
        gate: float32 [S, K], or None without modulation.
    """

    scale: Tensor
    bias: Tensor | None = None
    gate: Tensor | None = None

    def at(self, step: int) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return scale, bias and gate of a step."""
        scale = self.scale[min(step, len(self.scale) - 1)]
        bias = None if self.bias is None else self.bias[step]
        return scale, bias, None if self.gate is None else self.gate[step]


def take_norm(
    source: Source, name: str, width: int, times: Tensor | None, weight: Tensor, offset: float
) -> Norm:
    """Read a norm: a plain one, or one modulated by the flow's time.

    Args:
        source: the tensors.
        name: of the norm.
        width: K.
        times: condition of each step, float32 [S, C], or None for a plain norm.
        weight: the product behind it [N, K].
        offset: what a plain norm's stored scale differs by.
    """
    if times is None:
        scale = source.take(f'{name}.weight', width, dtype=torch.float32) + offset
        return Norm(scale[None])
    wide = torch.float32
    dense = source.take(f'{name}.dense.weight', 3 * width, times.shape[1], dtype=wide)
    bias = source.take(f'{name}.dense.bias', 3 * width, dtype=wide)
    scale, shift, gate = (times @ dense.mT + bias).chunk(3, dim=1)  # [S, K] each
    return Norm(1 + scale, shift @ weight.to(wide).mT, gate.contiguous())


@dataclass(frozen=True)
class Layer:
    """One layer: norms, projections, and whether its keys are the prefix's alone."""

    norm1: Norm
    qkv: Matrix
    out: Matrix
    norm2: Norm
    gate_up: Matrix
    down: Matrix
    crossing: bool


class Expert:
    """The stack over the action tokens.

    Args:
        source: the tensors.
        base: what their names begin with.
        sizes: of the stack.
        gemma: norms are stored as what they differ from one; GELU. Otherwise as they are; SiLU.
        times: float32 [S, C] for adaptive norms, or None.
        crossing: layers that attend to the prefix alone, by keys of their own making.
        float8: store the products in one byte a number.
    """

    def __init__(
        self,
        source: Source,
        base: str,
        sizes: Stack,
        gemma: bool,
        times: Tensor | None = None,
        crossing: frozenset[int] = frozenset(),
        float8: bool = False,
    ) -> None:
        self.sizes = sizes
        self.kind = 'gelu' if gemma else 'silu'
        self.eps = 1e-6 if gemma else 1e-5
        self.layers: list[Layer] = []
        cross: list[Tensor] = []
        width, mlp, offset = sizes.width, sizes.mlp, float(gemma)
        store = quantised if float8 else Matrix
        for i in range(sizes.layers):
            layer = f'{base}layers.{i}.'
            inner = sizes.heads.kv * sizes.heads.dim if i in crossing else width
            q, k, v, out = take_attention(source, layer, sizes, inner)
            if i in crossing:
                cross += (self._in_pairs(k), v)
            qkv = q if i in crossing else torch.cat((q, k, v))
            gate, up = (
                source.take(f'{layer}mlp.{name}_proj.weight', mlp, width)
                for name in ('gate', 'up')
            )
            gate_up = pairs(gate, up)
            down = source.take(f'{layer}mlp.down_proj.weight', width, mlp)
            first, second = (
                take_norm(source, f'{layer}{name}_layernorm', width, times, weight, offset)
                for name, weight in (('input', qkv), ('post_attention', gate_up))
            )
            self.layers.append(
                Layer(
                    first, store(qkv), store(out), second, store(gate_up), store(down),
                    i in crossing,
                )
            )  # fmt: skip

        # Crossing layers and their maps of the prefix's keys and values, [2 C, KV D, KV D].
        self.crossing = torch.tensor(sorted(crossing), device=source.device)
        self.cross = torch.stack(cross) if cross else None

    def make_cross(self, kv: Tensor, rows: int) -> None:
        """Make what crossing layers attend to of the prefix's keys and values, in place.

        Args:
            kv: [L, 2, P + T, KV, D].
            rows: how many of the prefix's tokens there are.
        """
        if self.cross is None:
            return
        kept = kv[:, :, :rows]
        found = kept.index_select(0, self.crossing)  # [C, 2, rows, KV, D]
        made = torch.bmm(found.flatten(3).flatten(0, 1), self.cross.mT)
        kept.index_copy_(0, self.crossing, made.view(found.shape))

    def _in_pairs(self, weight: Tensor) -> Tensor:
        """Return a map of keys [KV D, KV D] with its columns in the order keys have here."""
        count, dim = self.sizes.heads.kv, self.sizes.heads.dim
        return weight.unflatten(1, (count, 2, dim // 2)).transpose(2, 3).flatten(1)

    def __call__(
        self,
        x: Tensor,
        step: int,
        turns: tuple[Rotary, Rotary],
        ranks: tuple[Tensor, Tensor],
        kv: Tensor,
        following: Tensor,
    ) -> Stream:
        """Run the stack on the action tokens of one Euler step, in place.

        Args:
            x: [T, W].
            step: which one.
            turns: cosines and sines of the action tokens, by their positions among all tokens and
                among themselves.
            ranks: int32 of the action tokens [T], and of all tokens [P + T].
            kv: keys and values [L, 2, P + T, KV, D]; the last T are the tokens' own.
            following: float32 [W], scale of the norm behind the stack.

        Returns:
            the residual stream that is left in `x`.
        """
        stream, tokens, heads = Stream(x), x.shape[0], self.sizes.heads
        behind = [layer.norm1.at(step)[0] for layer in self.layers[1:]] + [following]
        for i, layer in enumerate(self.layers):
            scale, bias, gate = layer.norm1.at(step)
            turn = turns[int(layer.crossing)]
            keys, values = kv[i]
            q = project_heads(
                stream, layer.qkv, bias, scale, self.eps, turn, heads, keys[-tokens:],
                values[-tokens:],
            )  # fmt: skip
            seen = keys.shape[0] - tokens * layer.crossing
            y = attend(q, keys[:seen], values[:seen], ranks[0], ranks[1][:seen])
            scale, bias, last = layer.norm2.at(step)
            project_add(stream, y.flatten(1), layer.out, gate, scale)
            h = project_gated(stream, layer.gate_up, bias, scale, self.eps, self.kind)
            project_add(stream, h, layer.down, last, behind[i])
        return stream
