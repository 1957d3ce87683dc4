"""Cases of whole replays: every kernel in its place against the torch path, on the CPU.

Part of `lm_kernel_cases`, which see.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from lm_truth import error


def small_model(last: str = 'full') -> tuple[Any, Any, Any]:
    """Return config, weights and rotary frequencies of a two-layer model on the CPU."""
    from flashrt_policies.hybrid_lm.config import parse_config
    from flashrt_policies.hybrid_lm.weights import allocate, randomise
    from flashrt_policies.kernels.attention import inverse_frequencies

    raw = {
        'model_type': 'qwen3_5_text', 'vocab_size': 30, 'hidden_size': 40,
        'intermediate_size': 24, 'num_hidden_layers': 2, 'num_attention_heads': 4,
        'num_key_value_heads': 2, 'head_dim': 16, 'linear_num_key_heads': 2,
        'linear_num_value_heads': 4, 'linear_key_head_dim': 8, 'linear_value_head_dim': 16,
        'layer_types': ['linear_attention', 'full_attention'], 'attention_bias': True,
    }  # fmt: skip
    if last == 'linear':
        raw['layer_types'] = ['full_attention', 'linear_attention']
    config = parse_config(raw)
    weights = allocate(config, torch.device('cpu'), torch.float32)
    randomise(config, weights, seed=1, std=0.15)
    freq = inverse_frequencies(config.rotary_dim, config.rope_theta, config.rope_scaling)
    return config, weights, freq


def two_states(config: Any, position: int) -> tuple[Any, Any]:
    """Return two states with the same random past of `position` tokens."""
    from flashrt_policies.hybrid_lm.state import LMState
    from flashrt_ros.contract.context import Context

    ctx = Context('cpu')
    one, two = (LMState(ctx, config, 190, torch.float32, name) for name in ('one', 'two'))
    for state in (one, two):
        generator = torch.Generator().manual_seed(3)
        for buffer in (state.kv, state.recurrent, state.window):
            assert buffer is not None
            buffer.tensor.normal_(generator=generator)
        state.position.tensor.fill_(position)
    return one, two


def decode(d: Any) -> Iterator[tuple[str, float]]:
    """The fused decode step of a whole model against the layer-by-layer one."""
    from flashrt_policies.hybrid_lm.layers import Stretch, run_layers
    from flashrt_policies.hybrid_lm.step import step_layers

    config, weights, freq = small_model()
    one, two = two_states(config, 37)
    x = d.wide(1, 40).cpu()
    at = Stretch(one.position.tensor, torch.ones(1, dtype=torch.int64), freq)
    left = x.clone()
    run_layers(config, weights, one, left, at)
    right = step_layers(config, weights, two, x.clone(), at)
    yield 'decode residual', error(right, left.double())
    for first, second in zip(one.growing + one.fixed, two.growing + two.fixed, strict=True):
        yield f'decode {second.name}', error(second.tensor, first.tensor.double())


@contextlib.contextmanager
def every_kernel() -> Iterator[None]:
    """Within the block a replay on the CPU goes through the launchers."""
    from flashrt_policies.hybrid_lm import layers
    from flashrt_policies.kernels import (
        attention_triton,
        gated_delta_triton,
        linear_triton,
        norm_triton,
        place_triton,
    )

    with contextlib.ExitStack() as stack:
        for module, name in (
            (norm_triton, 'add_rms_norm'), (place_triton, 'place'), (attention_triton, 'attend'),
            (linear_triton, 'gated'), (linear_triton, 'project'),
        ):  # fmt: skip
            function = getattr(module, name)
            stack.enter_context(mock.patch.object(layers, name, function))
        stack.enter_context(mock.patch.object(layers, 'linear', linear_triton.matmul))
        stack.enter_context(mock.patch.object(layers, 'gated_delta', gated_delta_triton))
        yield


def prefill(d: Any) -> Iterator[tuple[str, float]]:
    """A whole replay with every kernel in its place against the torch path."""
    from flashrt_policies.hybrid_lm import layers, step

    for last in ('linear', 'full'):
        config, weights, freq = small_model(last)
        x = d.wide(64, 40).cpu()
        for valid, position in ((64, 0), (40, 64)):
            one, two = two_states(config, position)
            at = layers.Stretch(one.position.tensor, torch.tensor([valid]), freq)
            left = x.clone()
            want = layers.run_layers(config, weights, one, left, at).double()[:valid]
            right = x.clone()
            with every_kernel():
                h = layers.run_layers(config, weights, two, right, at, len(weights.layers) - 1)
                tail, made = step.run_last(config, weights, two, right, h, at, True)
            assert made is not None
            name = f'prefill {valid} at {position}'
            yield name, error(made[:valid], want)
            yield f'{name} last', error(tail[0], left[valid - 1].double())
            for first, second in zip(
                one.growing + one.fixed, two.growing + two.fixed, strict=True
            ):
                yield f'prefill {second.name}', error(second.tensor, first.tensor.double())
