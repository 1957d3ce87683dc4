"""The model over a round's flat stream: read this file to know how a round is computed.

The layers are those of `hybrid_lm.layers`; what differs is where a row's past stands. The last
layer runs its query side, its MLP and the head only on the rows that are read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from flashrt_policies.hybrid_lm.config import LMConfig
from flashrt_policies.hybrid_lm.fork.slots import Slots
from flashrt_policies.hybrid_lm.weights import FullLayer, LinearLayer, Weights
from flashrt_policies.kernels import fork_attention, fork_delta, fork_head, fork_stream
from flashrt_policies.kernels.activation import silu_mul
from flashrt_policies.kernels.fork_attention import KeySlots
from flashrt_policies.kernels.fork_delta import DeltaSlots
from flashrt_policies.kernels.fork_stream import Tables
from flashrt_policies.kernels.linear import linear
from flashrt_policies.kernels.norm import add_rms_norm, gated_rms_norm

Product = Callable[[Tensor, Tensor, 'Tensor | None'], Tensor]
ROWS = 64  # on the CPU, rows of one product whose bits must not depend on the others


def quick(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``x @ weight.T + bias`` by the library, whatever order of sums it likes."""
    return F.linear(x, weight, bias)


def steady(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``x @ weight.T + bias``; a row's bits do not depend on how many there are.

    On CUDA the kernel promises that. On the CPU the library rounds products of other heights
    otherwise, so every product has the same height.
    """
    if x.is_cuda:
        return linear(x, weight, bias)
    padded = F.pad(x, (0, 0, 0, -x.shape[0] % ROWS))
    return torch.cat([F.linear(part, weight, bias) for part in padded.split(ROWS)])[: x.shape[0]]


@dataclass(frozen=True)
class Stage:
    """A model with the places where its rounds' states stand.

    Attributes:
        config: dimensions.
        weights: parameters.
        freq: float32 [R], rotary frequencies.
        histories: per slot int32 [1, T].
        delta: per linear layer, its states.
        keys: per full layer (keys, values, and where they lie), without the branches' part.
        product: how rows are multiplied with weights.
    """

    config: LMConfig
    weights: Weights
    freq: Tensor
    histories: list[Tensor]
    delta: list[DeltaSlots]
    keys: list[tuple[list[Tensor], list[Tensor], Tensor, Tensor]]
    product: Product


def stage(
    config: LMConfig, weights: Weights, slots: Slots, freq: Tensor, product: Product
) -> Stage:
    """Collect what a pass reads; made once, since the slots never move."""
    delta, keys = [], []
    for layer in range(config.linear_layers):
        window = [s.window.tensor[layer] for s in slots.all if s.window is not None]
        recurrent = [s.recurrent.tensor[layer] for s in slots.all if s.recurrent is not None]
        apart = (fork_stream.offsets(window), fork_stream.offsets(recurrent))
        delta.append(DeltaSlots(window, recurrent, *apart))
    for layer in range(config.full_layers):
        k, v = slots.keys_values(layer, config.kv_heads)
        keys.append((k, v, fork_stream.offsets(k), fork_stream.offsets(v)))
    histories = [slot.history.tensor for slot in slots.all]
    return Stage(config, weights, freq, histories, delta, keys, product)


@dataclass(frozen=True)
class Work:
    """One round's tables with what was derived from them on the device.

    Attributes:
        tables: the round.
        rows: int32 [4, M], from `fork_stream.spread`.
        read_rows: int32 [4, B], those of the rows that are read.
        tiles: work lists of attention, from `fork_attention.plan`.
        fresh: [2, KV, M, D], keys and values of branches; one layer's at a time.
    """

    tables: Tables
    rows: Tensor
    read_rows: Tensor
    tiles: tuple[Tensor, Tensor]
    fresh: Tensor


def mix_linear(
    on: Stage, layer: LinearLayer, h: Tensor, work: Work, index: int, read: bool
) -> Tensor:
    """Return a linear layer's heads before the output projection, [M or B, HV * V]."""
    c = on.config
    proj = on.product(h, layer.w_in, None)  # [M, C + HV * V + 2 HV]
    z = proj[:, c.conv_dim : c.conv_dim + c.lin_v_heads * c.lin_v_dim]
    o = fork_delta.mix(
        proj, work.tables, work.rows, on.delta[index], layer.conv, layer.decay, layer.dt_bias,
        (c.lin_k_heads, c.lin_v_heads, c.lin_k_dim, c.lin_v_dim),
    )  # [M, HV, V]  # fmt: skip
    if read:
        o, z = fork_head.read_rows(o, work.tables), fork_head.read_rows(z, work.tables)
    y = gated_rms_norm(o, z.unflatten(1, (c.lin_v_heads, -1)), layer.norm, c.eps)
    return y.reshape(y.shape[0], -1)


def mix_full(on: Stage, layer: FullLayer, h: Tensor, work: Work, index: int, read: bool) -> Tensor:
    """Return a full layer's heads before the output projection, [M or B, H * D]."""
    c, dim = on.config, on.config.head_dim
    width = 2 * dim if c.gated else dim
    cut = c.heads * width
    if read:  # keys of all rows, queries of those that are read
        bias = (None, None) if layer.b_in is None else (layer.b_in[:cut], layer.b_in[cut:])
        kv = on.product(h, layer.w_in[cut:], bias[1])
        q = on.product(fork_head.read_rows(h, work.tables), layer.w_in[:cut], bias[0])
        rows, tiles = work.read_rows, work.tiles[1]
    else:
        q, kv = on.product(h, layer.w_in, layer.b_in).split((cut, 2 * c.kv_heads * dim), dim=1)
        rows, tiles = work.rows, work.tiles[0]
    k, v = kv.unflatten(1, (2 * c.kv_heads, dim)).split(c.kv_heads, dim=1)
    keys, values, apart, values_apart = on.keys[index]
    slots = KeySlots(keys, values, apart, values_apart, work.fresh)
    fork_attention.place_keys(k, v, work.rows, slots, on.freq, layer.k_norm, c.eps)
    q = q.unflatten(1, (c.heads, width))
    gate = q[..., dim:] if c.gated else None
    turned = fork_attention.place_queries(q[..., :dim], rows, on.freq, layer.q_norm, c.eps)
    o = fork_attention.attend(turned, work.tables, slots, gate, tiles, read)
    return o.reshape(o.shape[0], -1)


def run(on: Stage, tables: Tables, logits: Tensor) -> None:
    """Run a round: move its trunks' states to their marks, and write its options' logits.

    Args:
        on: the model and its slots.
        tables: the round.
        logits: float32 [options], written.
    """
    c, weights = on.config, on.weights
    rows = fork_stream.spread(tables)
    fresh = weights.embed.new_empty((2, c.kv_heads, tables.sizes.rows, c.head_dim))
    tiles = fork_attention.plan(tables, c.heads, c.kv_heads)
    work = Work(tables, rows, rows.index_select(1, tables.reads.long()), tiles, fresh)
    x = fork_stream.embed(tables, rows, weights.embed, on.histories)
    delta: Tensor | None = None
    linears = fulls = 0
    for number, layer in enumerate(weights.layers):
        read = number == len(weights.layers) - 1
        h = add_rms_norm(x, delta, layer.norm_in, c.eps)
        if isinstance(layer, LinearLayer):
            mixed = mix_linear(on, layer, h, work, linears, read)
            delta = on.product(mixed, layer.w_out, None)
            linears += 1
        else:
            mixed = mix_full(on, layer, h, work, fulls, read)
            delta = on.product(mixed, layer.w_out, layer.b_out)
            fulls += 1
        if read:
            x = fork_head.read_rows(x, tables)
        h = add_rms_norm(x, delta, layer.norm_mlp, c.eps)
        delta = on.product(silu_mul(on.product(h, layer.w_gate_up, None)), layer.w_down, None)
    hidden = add_rms_norm(x, delta, weights.norm, c.eps)
    fork_head.option_logits(hidden, weights.head, tables, logits)
