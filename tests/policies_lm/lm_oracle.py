"""Random tiny checkpoints saved by transformers, the oracle of the language model's tests."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch

from flashrt_policies.hybrid_lm.config import LMConfig, parse_config
from flashrt_policies.hybrid_lm.loader import load
from flashrt_policies.hybrid_lm.model import HybridLM
from flashrt_policies.hybrid_lm.weights import LinearLayer, Weights, allocate, randomise
from flashrt_ros.contract.context import Context


def hybrid(seed: int) -> dict[str, Any]:
    """Return random small dimensions of a Qwen3.5 text model."""
    rng = random.Random(seed)
    kv, key_heads = rng.choice([1, 2, 3]), rng.choice([1, 2, 3])
    layers = rng.choice([2, 3, 4, 5])
    kinds = [rng.choice(['linear_attention', 'full_attention']) for _ in range(layers)]
    # transformers' cache wants a layer of each kind.
    kinds[:2] = rng.sample(['linear_attention', 'full_attention'], 2)
    return {
        'vocab_size': rng.choice([61, 97, 130, 257]),
        'hidden_size': rng.choice([32, 48, 72]),
        'intermediate_size': rng.choice([40, 96]),
        'num_hidden_layers': layers,
        'layer_types': kinds,
        'num_attention_heads': kv * rng.choice([1, 2, 4]),
        'num_key_value_heads': kv,
        'head_dim': rng.choice([16, 24, 32]),
        'linear_num_key_heads': key_heads,
        'linear_num_value_heads': key_heads * rng.choice([1, 2, 3]),
        'linear_key_head_dim': rng.choice([8, 16, 24]),
        'linear_value_head_dim': rng.choice([8, 16, 20]),
        'linear_conv_kernel_dim': rng.choice([2, 3, 4]),
        'tie_word_embeddings': rng.random() < 0.5,
        'max_position_embeddings': 4096,
    }


def build(dims: dict[str, Any], seed: int, family: str = 'qwen3_5') -> Any:
    """Return a transformers model in float32 whose weights are drawn from `seed`."""
    import transformers

    names = {
        'qwen3_5': ('Qwen3_5TextConfig', 'Qwen3_5ForCausalLM'),
        'llama': ('LlamaConfig', 'LlamaForCausalLM'),
        'qwen2': ('Qwen2Config', 'Qwen2ForCausalLM'),
        'qwen3': ('Qwen3Config', 'Qwen3ForCausalLM'),
    }[family]
    config = getattr(transformers, names[0])(**dims)
    config._attn_implementation = 'eager'
    model = getattr(transformers, names[1])(config).eval().float()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name.endswith('A_log'):
                value.uniform_(-5.0, 1.0, generator=generator)  # states that last
            elif value.dim() > 1:
                value.normal_(0.0, 0.08, generator=generator)
            elif 'norm' in name:
                value.add_(torch.empty_like(value).normal_(0.0, 0.1, generator=generator))
            elif name.endswith('bias'):
                value.add_(torch.empty_like(value).normal_(0.0, 0.05, generator=generator))
    return model


def plain_torch() -> None:
    """Make the oracle take its torch reference even where flash-linear-attention is installed."""
    from transformers.models.qwen3_5 import modeling_qwen3_5 as module

    for name in (
        'torch_chunk_gated_delta_rule', 'torch_recurrent_gated_delta_rule',
        'causal_conv1d_fn', 'causal_conv1d_update',
    ):  # fmt: skip
        function = getattr(module, name)
        setattr(module, name, getattr(function, '__wrapped__', function))


def served(model: Any, folder: Path, capacity: int = 512, **more: Any) -> HybridLM:
    """Save `model` as users have it and load it here."""
    model.save_pretrained(folder, **more)
    config, weights = load(folder, 'cpu')
    return HybridLM(Context('cpu'), config, weights, capacity=capacity)


def tiny_weights(seed: int = 0, vocab: int = 61, drafts: bool = False) -> tuple[LMConfig, Weights]:
    """Return a small hybrid model's dimensions and random weights, made without transformers."""
    raw = {
        'model_type': 'qwen3_5_text', 'vocab_size': vocab, 'hidden_size': 32,
        'intermediate_size': 48, 'num_hidden_layers': 3, 'num_attention_heads': 4,
        'num_key_value_heads': 2, 'head_dim': 16, 'linear_num_key_heads': 2,
        'linear_num_value_heads': 4, 'linear_key_head_dim': 8, 'linear_value_head_dim': 8,
        'layer_types': ['linear_attention', 'full_attention', 'linear_attention'],
    }  # fmt: skip
    config = parse_config(raw)
    weights = allocate(config, torch.device('cpu'), torch.float32, drafts)
    randomise(config, weights, seed, std=0.15)
    for layer in weights.layers:
        if isinstance(layer, LinearLayer):
            layer.decay.mul_(0.02)  # states that last, so that losing one shows
    return config, weights


def tiny(seed: int = 0, capacity: int = 400, vocab: int = 61) -> HybridLM:
    """Return a small hybrid model with random weights, made without transformers."""
    return HybridLM(Context('cpu'), *tiny_weights(seed, vocab), capacity=capacity)
