"""The parameters of a language model, laid out as its kernels read them.

Projections that share an input stand in one matrix, so that a layer needs one product for them.
`slots` says where each tensor of a checkpoint goes and how it is transformed on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from flashrt_policies.hybrid_lm.config import LMConfig


@dataclass
class Layer:
    """What both kinds of layer have.

    Attributes:
        norm_in: float32 [hidden], scale of the norm before the mixer.
        norm_mlp: float32 [hidden], scale of the norm before the MLP.
        w_in: [P, hidden], every projection into the mixer.
        w_out: [hidden, O], the mixer's output projection.
        w_gate_up: [2 I, hidden], the MLP's gate, then up.
        w_down: [hidden, I].
    """

    norm_in: Tensor
    norm_mlp: Tensor
    w_in: Tensor
    w_out: Tensor
    w_gate_up: Tensor
    w_down: Tensor


@dataclass
class LinearLayer(Layer):
    """Gated DeltaNet; rows of `w_in`: q, k, v, z (gate), b (step size), a (time step).

    Attributes:
        conv: [W, C], causal convolution over q, k, v channels.
        decay: float32 [HV], ``-exp(A_log)``.
        dt_bias: float32 [HV].
        norm: float32 [V], scale of the gated norm, plain.
    """

    conv: Tensor
    decay: Tensor
    dt_bias: Tensor
    norm: Tensor


@dataclass
class FullLayer(Layer):
    """Full attention; rows of `w_in`: q (per head query, then gate, where gated), k, v.

    Attributes:
        q_norm: float32 [D], or None.
        k_norm: float32 [D], or None.
        b_in: [P], bias of `w_in`, or None.
        b_out: [hidden], bias of `w_out`, or None.
    """

    q_norm: Tensor | None
    k_norm: Tensor | None
    b_in: Tensor | None
    b_out: Tensor | None


@dataclass
class DraftHead:
    """The multi-token prediction head (``mtp.*``): one full layer that drafts a token ahead.

    Attributes:
        norm_embedding: float32 [hidden], scale of the next token's embedding.
        norm_hidden: float32 [hidden], scale of the last hidden state.
        fc: [hidden, 2 hidden], from both, the embedding first.
        layer: full attention and MLP.
        norm: float32 [hidden], scale of the last norm; the model's own head reads its result.
    """

    norm_embedding: Tensor
    norm_hidden: Tensor
    fc: Tensor
    layer: FullLayer
    norm: Tensor


@dataclass
class Weights:
    """Every parameter of one model, on one device.

    Attributes:
        embed: [vocab, hidden].
        head: [vocab, hidden]; the embedding itself when tied.
        norm: float32 [hidden], scale of the last norm.
        layers: one per layer.
        digest: of the stored tensors, for a capsule's fingerprint.
        drafts: the multi-token prediction head, or None.
    """

    embed: Tensor
    head: Tensor
    norm: Tensor
    layers: list[LinearLayer | FullLayer] = field(default_factory=list)
    digest: str = ''
    drafts: DraftHead | None = None


def _same(stored: Tensor) -> Tensor:
    return stored


def _plus_one(stored: Tensor) -> Tensor:
    return 1.0 + stored.float()


def _taps(stored: Tensor) -> Tensor:
    return stored[:, 0].T


def _decay(stored: Tensor) -> Tensor:
    return -stored.float().exp()


@dataclass(frozen=True)
class Slot:
    """Where one stored tensor goes.

    Attributes:
        shape: the shape it must have in the file.
        place: the live tensor, or a part of one, written in place.
        change: maps the stored tensor to what `place` holds; shapes then agree.
    """

    shape: tuple[int, ...]
    place: Tensor
    change: Callable[[Tensor], Tensor] = _same


def allocate(
    config: LMConfig, device: torch.device, dtype: torch.dtype, drafts: bool = False
) -> Weights:
    """Make room for every parameter, and with `drafts` for the head that drafts.

    The contents are undefined.
    """

    def new(*shape: int) -> Tensor:
        return torch.empty(shape, device=device, dtype=dtype)

    def wide(*shape: int) -> Tensor:
        return torch.empty(shape, device=device, dtype=torch.float32)

    c, hid = config, config.hidden
    embed = new(c.vocab, hid)
    made = Weights(embed, embed if c.tied else new(c.vocab, hid), wide(hid))
    for kind in c.layers:
        if kind == 'linear':
            mlp = (new(2 * c.intermediate, hid), new(hid, c.intermediate))
            value = c.lin_v_heads * c.lin_v_dim
            rows = c.conv_dim + value + 2 * c.lin_v_heads
            made.layers.append(
                LinearLayer(
                    wide(hid), wide(hid), new(rows, hid), new(hid, value), *mlp,
                    new(c.conv_width, c.conv_dim), wide(c.lin_v_heads), wide(c.lin_v_heads),
                    wide(c.lin_v_dim),
                )
            )  # fmt: skip
        else:
            made.layers.append(_full_layer(c, new, wide))
    if drafts:
        scales = (wide(hid), wide(hid))
        made.drafts = DraftHead(*scales, new(hid, 2 * hid), _full_layer(c, new, wide), wide(hid))
    return made


def _full_layer(c: LMConfig, new: Callable[..., Tensor], wide: Callable[..., Tensor]) -> FullLayer:
    hid, query = c.hidden, c.heads * c.head_dim * (2 if c.gated else 1)
    rows = query + 2 * c.kv_heads * c.head_dim
    return FullLayer(
        wide(hid), wide(hid), new(rows, hid), new(hid, c.heads * c.head_dim),
        new(2 * c.intermediate, hid), new(hid, c.intermediate),
        wide(c.head_dim) if c.qk_norm else None,
        wide(c.head_dim) if c.qk_norm else None,
        new(rows) if c.qkv_bias else None,
        new(hid) if c.out_bias else None,
    )  # fmt: skip


def slots(config: LMConfig, weights: Weights) -> dict[str, Slot]:
    """Return the tensors a checkpoint must hold: its name for each -> where it goes.

    The names are those of a text-only checkpoint (``model.``); the head stands as
    ``lm_head.weight`` unless it is tied.
    """
    named = {
        'model.embed_tokens.weight': Slot(tuple(weights.embed.shape), weights.embed),
        'model.norm.weight': _norm(config, weights.norm),
    }
    if not config.tied:
        named['lm_head.weight'] = Slot(tuple(weights.head.shape), weights.head)
    for index, layer in enumerate(weights.layers):
        for name, slot in layer_slots(config, layer):
            named[f'model.layers.{index}.{name}'] = slot
    if weights.drafts is not None:
        named.update(draft_slots(config, weights.drafts))
    return named


def draft_slots(config: LMConfig, head: DraftHead) -> dict[str, Slot]:
    """Return the tensors of the head that drafts, as `slots`."""
    named = {
        'mtp.pre_fc_norm_embedding.weight': _norm(config, head.norm_embedding),
        'mtp.pre_fc_norm_hidden.weight': _norm(config, head.norm_hidden),
        'mtp.fc.weight': Slot(tuple(head.fc.shape), head.fc),
        'mtp.norm.weight': _norm(config, head.norm),
    }
    for name, slot in layer_slots(config, head.layer):
        named[f'mtp.layers.0.{name}'] = slot
    return named


def layer_slots(config: LMConfig, layer: LinearLayer | FullLayer) -> Iterator[tuple[str, Slot]]:
    """Yield the stored names of one layer, relative to it, and their slots."""
    c, hid = config, config.hidden
    yield 'input_layernorm.weight', _norm(c, layer.norm_in)
    yield 'post_attention_layernorm.weight', _norm(c, layer.norm_mlp)
    gate, up = layer.w_gate_up.split(c.intermediate)
    yield 'mlp.gate_proj.weight', Slot((c.intermediate, hid), gate)
    yield 'mlp.up_proj.weight', Slot((c.intermediate, hid), up)
    yield 'mlp.down_proj.weight', Slot((hid, c.intermediate), layer.w_down)
    if isinstance(layer, LinearLayer):
        value = c.lin_v_heads * c.lin_v_dim
        sizes = [c.conv_dim, value, c.lin_v_heads, c.lin_v_heads]
        for name, part in zip(('qkv', 'z', 'b', 'a'), layer.w_in.split(sizes), strict=True):
            yield f'linear_attn.in_proj_{name}.weight', Slot(tuple(part.shape), part)
        yield 'linear_attn.out_proj.weight', Slot((hid, value), layer.w_out)
        yield (
            'linear_attn.conv1d.weight',
            Slot((c.conv_dim, 1, c.conv_width), layer.conv, _taps),
        )
        yield 'linear_attn.A_log', Slot((c.lin_v_heads,), layer.decay, _decay)
        yield 'linear_attn.dt_bias', Slot((c.lin_v_heads,), layer.dt_bias)
        yield 'linear_attn.norm.weight', Slot((c.lin_v_dim,), layer.norm)
        return
    query = c.heads * c.head_dim * (2 if c.gated else 1)
    sizes = [query, c.kv_heads * c.head_dim, c.kv_heads * c.head_dim]
    for name, part in zip('qkv', layer.w_in.split(sizes), strict=True):
        yield f'self_attn.{name}_proj.weight', Slot(tuple(part.shape), part)
    if layer.b_in is not None:
        for name, part in zip('qkv', layer.b_in.split(sizes), strict=True):
            yield f'self_attn.{name}_proj.bias', Slot(tuple(part.shape), part)
    yield 'self_attn.o_proj.weight', Slot((hid, c.heads * c.head_dim), layer.w_out)
    if layer.b_out is not None:
        yield 'self_attn.o_proj.bias', Slot((hid,), layer.b_out)
    if layer.q_norm is not None and layer.k_norm is not None:
        yield 'self_attn.q_norm.weight', _norm(c, layer.q_norm)
        yield 'self_attn.k_norm.weight', _norm(c, layer.k_norm)


def _norm(config: LMConfig, place: Tensor) -> Slot:
    return Slot(tuple(place.shape), place, _plus_one if config.zero_centred else _same)


def randomise(config: LMConfig, weights: Weights, seed: int, std: float = 0.02) -> None:
    """Fill every parameter as a fresh checkpoint would be, for benchmarks and tests."""
    device = weights.embed.device
    generator = torch.Generator(device=device).manual_seed(seed)
    for name, slot in slots(config, weights).items():
        if 'norm' in name:
            slot.place.fill_(1.0)
        elif name.endswith('A_log'):
            slot.place.uniform_(0.01, 16, generator=generator).neg_()
        elif name.endswith('dt_bias'):
            slot.place.fill_(1.0)
        else:
            slot.place.normal_(0.0, std, generator=generator)
    weights.digest = f'random-{seed}'
