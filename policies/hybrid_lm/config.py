"""The architecture of a language model, read from a Hugging Face ``config.json``.

One description serves the Qwen3.5 text family (Gated DeltaNet and gated full attention in turn)
and, as the case in which every layer is full attention, Llama, Qwen2 and Qwen3.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flashrt_policies.checkpoint import CheckpointError

HYBRID = ('qwen3_5_text', 'qwen3_5')
DENSE = ('llama', 'qwen2', 'qwen3')


@dataclass(frozen=True)
class LMConfig:
    """Dimensions and switches of one model; every size is a number of elements.

    Attributes:
        model_type: name of the family in ``config.json``.
        vocab: tokens in the vocabulary.
        hidden: width of the residual stream.
        intermediate: width of the gated MLP.
        layers: 'linear' (Gated DeltaNet) or 'full' (attention), one per layer.
        heads: query heads of full attention.
        kv_heads: key and value heads of full attention.
        head_dim: width of one of those heads.
        rotary_dim: leading part of a head that is rotated.
        rope_theta: base of the rotary frequencies.
        rope_scaling: how they are stretched, `(kind, factor, low, high, original)`: kind is
            'default', 'linear' or 'llama3'; unused numbers are zero.
        eps: added to the mean square in every norm.
        tied: the head is the embedding.
        gated: full attention has an output gate (q_proj is twice as wide).
        qk_norm: queries and keys are normalised per head.
        zero_centred: norm weights are stored around zero (scale 1 + w).
        qkv_bias: q, k and v projections have a bias.
        out_bias: the attention's output projection has a bias.
        lin_k_heads: key (and query) heads of a linear layer.
        lin_v_heads: value heads of a linear layer, a multiple of lin_k_heads.
        lin_k_dim: width of a linear key head.
        lin_v_dim: width of a linear value head.
        conv_width: taps of the causal convolution.
        max_position: longest sequence the model was made for, tokens.
        eos: tokens that end a text.
        multimodal: the text model is stored under ``model.language_model.``.
        mtp_layers: layers of the multi-token prediction head in the checkpoint (0: none).
    """

    model_type: str
    vocab: int
    hidden: int
    intermediate: int
    layers: tuple[str, ...]
    heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int
    rope_theta: float
    rope_scaling: tuple[str, float, float, float, float]
    eps: float
    tied: bool
    gated: bool = False
    qk_norm: bool = False
    zero_centred: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    lin_k_heads: int = 0
    lin_v_heads: int = 0
    lin_k_dim: int = 0
    lin_v_dim: int = 0
    conv_width: int = 4
    max_position: int = 32768
    eos: tuple[int, ...] = ()
    multimodal: bool = False
    mtp_layers: int = 0

    @property
    def linear_layers(self) -> int:
        """Number of Gated DeltaNet layers."""
        return self.layers.count('linear')

    @property
    def full_layers(self) -> int:
        """Number of full-attention layers."""
        return self.layers.count('full')

    @property
    def conv_dim(self) -> int:
        """Channels of the causal convolution: queries, keys and values."""
        return 2 * self.lin_k_heads * self.lin_k_dim + self.lin_v_heads * self.lin_v_dim

    def describe(self) -> dict[str, Any]:
        """Return the fields as plain data, for a fingerprint."""
        return asdict(self)


def read_config(folder: Path) -> LMConfig:
    """Read the architecture of a checkpoint folder.

    Raises:
        CheckpointError: ``config.json`` is missing, no JSON, or of an architecture not served.
    """
    path = folder / 'config.json'
    if not path.is_file():
        raise CheckpointError(f'{path} is missing; want a Hugging Face folder with config.json')
    try:
        raw = json.loads(path.read_text('utf-8'))
    except ValueError as error:
        raise CheckpointError(f'{path} is not JSON ({error}); want a model config') from None
    if not isinstance(raw, dict):
        raise CheckpointError(f'{path} holds a {type(raw).__name__}; want a JSON object')
    try:
        return parse_config(raw)
    except CheckpointError as error:
        raise CheckpointError(f'{path}: {error}') from None


def parse_config(raw: dict[str, Any]) -> LMConfig:
    """Turn the contents of a ``config.json`` into an `LMConfig`.

    Raises:
        CheckpointError: a key is missing or of the wrong type, or the architecture is not served.
    """
    text = raw.get('text_config', raw)
    if not isinstance(text, dict):
        raise CheckpointError(f'text_config is {text!r}; want a JSON object')
    kind = text.get('model_type', raw.get('model_type'))
    if kind not in HYBRID + DENSE:
        raise CheckpointError(f'model_type {kind!r}; want one of {", ".join(HYBRID + DENSE)}')
    hybrid = kind in HYBRID
    count = _int(text, 'num_hidden_layers')
    hidden = _int(text, 'hidden_size')
    heads = _int(text, 'num_attention_heads')
    head_dim = _int(text, 'head_dim', 256 if hybrid else hidden // heads)
    if text.get('hidden_act', 'silu') != 'silu' or text.get('mlp_bias', False):
        raise CheckpointError('hidden_act or mlp_bias differs; want silu and no bias in the MLP')
    if text.get('use_sliding_window', False):
        raise CheckpointError('use_sliding_window is true; want full attention')
    bias = bool(text.get('attention_bias', kind == 'qwen2'))
    rotary, theta, scaling = _rotary(text, head_dim, 0.25 if hybrid else 1.0)
    config = LMConfig(
        model_type=kind,
        vocab=_int(text, 'vocab_size'),
        hidden=hidden,
        intermediate=_int(text, 'intermediate_size'),
        layers=_layers(text, count, hybrid),
        heads=heads,
        kv_heads=_int(text, 'num_key_value_heads', heads),
        head_dim=head_dim,
        rotary_dim=rotary,
        rope_theta=theta,
        rope_scaling=scaling,
        eps=_float(text, 'rms_norm_eps', 1e-6),
        tied=bool(raw.get('tie_word_embeddings') or text.get('tie_word_embeddings')),
        gated=hybrid,
        qk_norm=hybrid or kind == 'qwen3',
        zero_centred=hybrid,
        qkv_bias=bias,
        out_bias=bias and kind != 'qwen2',
        max_position=_int(text, 'max_position_embeddings', 32768),
        eos=_tokens(text.get('eos_token_id', raw.get('eos_token_id'))),
        multimodal='text_config' in raw,
        mtp_layers=_int(text, 'mtp_num_hidden_layers', 0, least=0) if hybrid else 0,
        **(
            {
                'lin_k_heads': _int(text, 'linear_num_key_heads', 16),
                'lin_v_heads': _int(text, 'linear_num_value_heads', 32),
                'lin_k_dim': _int(text, 'linear_key_head_dim', 128),
                'lin_v_dim': _int(text, 'linear_value_head_dim', 128),
                'conv_width': _int(text, 'linear_conv_kernel_dim', 4),
            }
            if hybrid
            else {}
        ),
    )
    if config.heads % config.kv_heads:
        raise CheckpointError(f'{heads} query heads on {config.kv_heads}; want a multiple')
    if hybrid and config.lin_v_heads % config.lin_k_heads:
        raise CheckpointError(
            f'{config.lin_v_heads} linear value heads on {config.lin_k_heads}; want a multiple'
        )
    return config


def _int(text: dict[str, Any], key: str, default: int | None = None, least: int = 1) -> int:
    value = text.get(key)
    if value is None:
        value = default
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        kind = 'a positive integer' if least else 'an integer from 0 on'
        raise CheckpointError(f'{key} is {value!r}; want {kind}')
    return value


def _float(text: dict[str, Any], key: str, default: float | None = None) -> float:
    value = default if text.get(key) is None else text[key]
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < value < float('inf'):  # type: ignore[operator]
        raise CheckpointError(f'{key} is {value!r}; want a positive number')
    return float(value)  # type: ignore[arg-type]


def _tokens(value: object) -> tuple[int, ...]:
    """Return the tokens that end a text: stored as none, one or a list."""
    found = () if value is None else tuple(value) if isinstance(value, list) else (value,)
    for token in found:
        if not isinstance(token, int) or isinstance(token, bool) or token < 0:
            raise CheckpointError(f'eos_token_id is {value!r}; want an integer or a list of them')
    return found


def _layers(text: dict[str, Any], count: int, hybrid: bool) -> tuple[str, ...]:
    names = {'linear_attention': 'linear', 'full_attention': 'full'}
    if not hybrid:
        return ('full',) * count
    types = text.get('layer_types')
    if types is None:
        every = _int(text, 'full_attention_interval', 4)
        return tuple('linear' if (i + 1) % every else 'full' for i in range(count))
    listed = isinstance(types, list) and all(isinstance(kind, str) for kind in types)
    if not listed or len(types) != count or not set(types) <= set(names):
        raise CheckpointError(f'layer_types is {types!r}; want {count} of {", ".join(names)}')
    return tuple(names[kind] for kind in types)


def _rotary(
    text: dict[str, Any], head_dim: int, partial: float
) -> tuple[int, float, tuple[str, float, float, float, float]]:
    """Return the rotated width, the base and the scaling of the rotary frequencies."""
    rope = text.get('rope_parameters') or text.get('rope_scaling') or {}
    if not isinstance(rope, dict):
        raise CheckpointError(f'rope_parameters is {rope!r}; want a JSON object')
    either = {**text, **{key: value for key, value in rope.items() if value is not None}}
    theta = _float(either, 'rope_theta', 10000.0)
    partial = _float(either, 'partial_rotary_factor', partial)
    dim = int(head_dim * partial)
    if not 2 <= dim <= head_dim or dim % 2:
        raise CheckpointError(
            f'partial_rotary_factor {partial} rotates {dim} of {head_dim} elements of a head; '
            f'want an even number from 2 to {head_dim}'
        )
    kind = rope.get('rope_type', rope.get('type', 'default'))
    try:
        if kind in ('default', 'mrope'):
            return dim, theta, ('default', 0.0, 0.0, 0.0, 0.0)
        if kind == 'linear':
            return dim, theta, ('linear', _float(rope, 'factor'), 0.0, 0.0, 0.0)
        if kind == 'llama3':
            keys = ('low_freq_factor', 'high_freq_factor', 'original_max_position_embeddings')
            low, high, original = (_float(rope, key) for key in keys)
            return dim, theta, ('llama3', _float(rope, 'factor'), low, high, original)
    except CheckpointError as error:
        raise CheckpointError(f'rope_type {kind!r}: {error}') from None
    raise CheckpointError(f'rope_type {kind!r}; want one of default, linear, llama3')
