"""The model over a round's flat stream: read this file to know how a round is computed.

The layers are those of `hybrid_lm.layers`; what differs is where a row's past stands. The last
layer runs its query side, its MLP and the head only on the rows that are read.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from flashrt_policies.hybrid_lm.config import LMConfig
from flashrt_policies.hybrid_lm.fork.slots import Slots
from flashrt_policies.hybrid_lm.weights import FullLayer, LinearLayer, Weights
from flashrt_policies.kernels.activation import silu_mul
from flashrt_policies.kernels.fork import attention as fork_attention
from flashrt_policies.kernels.fork import delta as fork_delta
from flashrt_policies.kernels.fork import head as fork_head
from flashrt_policies.kernels.fork import stream as fork_stream
from flashrt_policies.kernels.fork.attention import KeySlots, Lists
from flashrt_policies.kernels.fork.delta import DeltaSlots
from flashrt_policies.kernels.fork.stream import Rotary, Tables
from flashrt_policies.kernels.linear import gated, linear, project
from flashrt_policies.kernels.norm import add_rms_norm

STEADY_ROWS = 16  # height of the products whose bits depend on no other row, on the CPU


class Products:
    """How rows are multiplied with weights: as `kernels.linear` does it.

    On CUDA its kernels promise a row's bits whatever else there is.
    """

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return ``x @ weight.T + bias``."""
        return linear(x, weight, bias)

    def gated(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return ``silu(x @ gate.T) * (x @ up.T)``."""
        return gated(x, weight)

    def project(
        self, y: Tensor, weight: Tensor, bias: Tensor | None, x: Tensor, scale: Tensor, eps: float
    ) -> Tensor:
        """Add ``y @ weight.T + bias`` to `x` in place and return its norm."""
        return project(y, weight, bias, x, scale, eps)


class SteadyProducts(Products):
    """The same on the CPU, where a row's bits depend on its place in a product and its height.

    Args:
        height: rows of every product; segments start at multiples of it.
    """

    def __init__(self, height: int) -> None:
        self.height = height

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return ``x @ weight.T + bias``."""
        return torch.cat([F.linear(part, weight, bias) for part in x.split(self.height)])

    def gated(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return ``silu(x @ gate.T) * (x @ up.T)``."""
        return silu_mul(self.linear(x, weight))

    def project(
        self, y: Tensor, weight: Tensor, bias: Tensor | None, x: Tensor, scale: Tensor, eps: float
    ) -> Tensor:
        """Add ``y @ weight.T + bias`` to `x` in place and return its norm."""
        return add_rms_norm(x, self.linear(y, weight, bias), scale, eps)


@dataclass(frozen=True)
class Stage:
    """A model with the places where its rounds' states stand.

    Attributes:
        config: dimensions.
        weights: parameters.
        freq: float32 [R], rotary frequencies.
        histories: per slot int32 [1, T].
        histories_apart: int64 [slots], elements from the first to each.
        delta: per linear layer, its states.
        keys: per full layer (keys, values, and where they lie), without the branches' part.
        products: how rows are multiplied with weights.
        read_products: likewise, the rows that are read.
    """

    config: LMConfig
    weights: Weights
    freq: Tensor
    histories: list[Tensor]
    histories_apart: Tensor
    delta: list[DeltaSlots]
    keys: list[tuple[list[Tensor], list[Tensor], Tensor, Tensor]]
    products: Products
    read_products: Products


def stage(
    config: LMConfig, weights: Weights, slots: Slots, freq: Tensor, deterministic: bool
) -> Stage:
    """Collect what a pass reads; made once, since the slots never move."""
    delta, keys = [], []
    for layer in range(config.linear_layers):
        window = [s.window.tensor[layer] for s in slots.all if s.window is not None]
        recurrent = [s.recurrent.tensor[layer] for s in slots.all if s.recurrent is not None]
        away = (fork_stream.offsets(window), fork_stream.offsets(recurrent))
        delta.append(DeltaSlots(window, recurrent, *away))
    for layer in range(config.full_layers):
        k, v = slots.keys_values(layer, config.kv_heads)
        keys.append((k, v, fork_stream.offsets(k), fork_stream.offsets(v)))
    steady = deterministic and freq.device.type == 'cpu'
    products = SteadyProducts(STEADY_ROWS) if steady else Products()
    reading = SteadyProducts(1) if steady else Products()
    histories = [slot.history.tensor for slot in slots.all]
    apart = fork_stream.offsets(histories)
    return Stage(config, weights, freq, histories, apart, delta, keys, products, reading)


@dataclass(frozen=True)
class Work:
    """One round's tables with what was derived from them on the device.

    Attributes:
        tables: the round.
        rows: int32 [4 + W - 1, M], from `fork.stream.spread`.
        read_rows: int32 [4 + W - 1, B], those of the rows that are read.
        lists: work lists of attention.
        fresh: [2, KV, M, D], keys and values of branches; one layer's at a time.
        turn: cosines and sines of the rows' rotations.
        read_turn: those of the rows that are read.
    """

    tables: Tables
    rows: Tensor
    read_rows: Tensor
    lists: Lists
    fresh: Tensor
    turn: Rotary
    read_turn: Rotary


def mix_linear(
    on: Stage, layer: LinearLayer, h: Tensor, work: Work, index: int, read: bool
) -> Tensor:
    """Return a linear layer's heads before the output projection, [M or B, HV * V]."""
    c = on.config
    proj = on.products.linear(h, layer.w_in)  # [M, C + HV * V + 2 HV]
    y = fork_delta.mix(
        proj, work.tables, work.rows, on.delta[index], layer.conv, layer.decay, layer.dt_bias,
        layer.norm, c.eps, (c.lin_k_heads, c.lin_v_heads, c.lin_k_dim, c.lin_v_dim),
    )  # [M, HV * V]  # fmt: skip
    return fork_head.read_rows(y, work.tables) if read else y


def mix_full(on: Stage, layer: FullLayer, h: Tensor, work: Work, index: int, read: bool) -> Tensor:
    """Return a full layer's heads before the output projection, [M or B, H * D]."""
    c, dim = on.config, on.config.head_dim
    width = 2 * dim if c.gated else dim
    cut = c.heads * width
    if read:  # keys of all rows, queries of those that are read
        bias = (None, None) if layer.b_in is None else (layer.b_in[:cut], layer.b_in[cut:])
        kv = on.products.linear(h, layer.w_in[cut:], bias[1])
        q = on.read_products.linear(fork_head.read_rows(h, work.tables), layer.w_in[:cut], bias[0])
        rows = work.read_rows
    else:
        q, kv = on.products.linear(h, layer.w_in, layer.b_in).split(
            (cut, 2 * c.kv_heads * dim), dim=1
        )
        rows = work.rows
    k, v = kv.unflatten(1, (2 * c.kv_heads, dim)).split(c.kv_heads, dim=1)
    keys, values, apart, values_apart = on.keys[index]
    slots = KeySlots(keys, values, apart, values_apart, work.fresh)
    q = q.unflatten(1, (c.heads, width))
    gate = q[..., dim:] if c.gated else None
    q = q[..., :dim]
    turned = fork_attention.place(
        k, v, work.rows, slots, work.turn, layer.k_norm, c.eps, None if read else q, layer.q_norm
    )
    if turned is None:
        turned = fork_attention.turned_queries(q, rows, work.read_turn, layer.q_norm, c.eps)
    o = fork_attention.attend(turned, work.tables, rows, slots, gate, work.lists, read)
    return o.reshape(o.shape[0], -1)


def run(on: Stage, tables: Tables, logits: Tensor) -> None:
    """Run a round: move its trunks' states to their marks, and write its options' logits.

    Args:
        on: the model and its slots.
        tables: the round.
        logits: float32 [options], written.
    """
    c, weights = on.config, on.weights
    rows = fork_stream.spread(tables, c.conv_width - 1 if c.linear_layers else 0)
    fresh = weights.embed.new_empty((2, c.kv_heads, tables.sizes.rows, c.head_dim))
    lists = fork_attention.plan(
        tables, c.heads, c.kv_heads, on.histories[0].shape[1], fresh.element_size()
    )
    read_rows, *turns = fork_stream.rotary(tables, rows, on.freq)
    work = Work(tables, rows, read_rows, lists, fresh, *turns)
    x = fork_stream.embed(tables, rows, weights.embed, on.histories, on.histories_apart)
    scales = [layer.norm_in for layer in weights.layers] + [weights.norm]
    h = add_rms_norm(x, None, scales[0], c.eps)
    linears = fulls = 0
    for number, layer in enumerate(weights.layers):
        read, bias = number == len(weights.layers) - 1, None
        if isinstance(layer, LinearLayer):
            mixed = mix_linear(on, layer, h, work, linears, read)
            linears += 1
        else:
            mixed, bias = mix_full(on, layer, h, work, fulls, read), layer.b_out
            fulls += 1
        if read:
            x = fork_head.read_rows(x, tables)
        many = on.read_products if read else on.products
        h = many.project(mixed, layer.w_out, bias, x, layer.norm_mlp, c.eps)
        act = many.gated(h, layer.w_gate_up)
        h = many.project(act, layer.w_down, None, x, scales[number + 1], c.eps)
    fork_head.option_logits(h, weights.head, tables, logits)
