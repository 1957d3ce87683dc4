"""The layers, from the residual stream back to it: read this file to know the model.

Both devices run this code; on CUDA each function of `kernels` launches a kernel. Rows at and past
``valid`` are padding: they never reach the state.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from flashrt_policies.hybrid_lm.config import LMConfig
from flashrt_policies.hybrid_lm.state import LMState
from flashrt_policies.hybrid_lm.weights import FullLayer, LinearLayer, Weights
from flashrt_policies.kernels import gated_delta
from flashrt_policies.kernels.attention import attend, place
from flashrt_policies.kernels.linear import gated, linear, project
from flashrt_policies.kernels.norm import add_rms_norm


@dataclass(frozen=True)
class Stretch:
    """Where a stretch of tokens stands in its text.

    Attributes:
        position: int64 [1], tokens before it.
        valid: int64 [1], number of its rows that are tokens.
        freq: float32 [R], rotary frequencies.
    """

    position: Tensor
    valid: Tensor
    freq: Tensor


def mix_linear(
    config: LMConfig, layer: LinearLayer, h: Tensor, window: Tensor, state: Tensor, at: Stretch
) -> Tensor:
    """Gated DeltaNet (arXiv 2412.06464): project, convolve, apply the delta rule, norm and gate.

    Args:
        config: the model's dimensions.
        layer: its weights.
        h: normed input [M, hidden].
        window: [W - 1, C], moved past the stretch.
        state: float32 [HV, K, V], moved past the stretch.
        at: where the stretch stands.

    Returns:
        The heads' gated output [M, HV * V], to be projected.
    """
    c = config
    proj = linear(h, layer.w_in)  # [M, C + HV * V + 2 HV]
    return gated_delta.mix(
        proj, window, state, layer.conv, layer.decay, layer.dt_bias, layer.norm, c.eps, at.valid,
        (c.lin_k_heads, c.lin_v_heads, c.lin_k_dim, c.lin_v_dim),
    )  # fmt: skip


def mix_full(
    config: LMConfig, layer: FullLayer, h: Tensor, keys: Tensor, values: Tensor, at: Stretch
) -> Tensor:
    """Full attention with grouped heads, rotary embedding and, where the model has it, a gate.

    Args:
        config: the model's dimensions.
        layer: its weights.
        h: normed input [M, hidden].
        keys: [KV, T, D], written behind ``at.position``.
        values: [KV, T, D], likewise.
        at: where the stretch stands.

    Returns:
        The heads' gated output [M, H * D], to be projected.
    """
    c, rows, dim = config, h.shape[0], config.head_dim
    proj = linear(h, layer.w_in, layer.b_in)
    width = 2 * dim if c.gated else dim
    q, k, v = proj.split((c.heads * width, c.kv_heads * dim, c.kv_heads * dim), dim=1)
    q = q.unflatten(1, (c.heads, width))
    gate = q[..., dim:] if c.gated else None
    q = place(
        q[..., :dim], k.unflatten(1, (c.kv_heads, dim)), v.unflatten(1, (c.kv_heads, dim)),
        keys, values, at.position, at.valid, at.freq, layer.q_norm, layer.k_norm, c.eps,
    )  # [M, H, D]  # fmt: skip
    o = attend(q, keys, values, at.position, at.valid, gate)
    return o.reshape(rows, -1)


def run_layers(
    config: LMConfig,
    weights: Weights,
    state: LMState,
    x: Tensor,
    at: Stretch,
    until: int | None = None,
) -> Tensor:
    """Run the layers on a stretch of tokens and move the state past it.

    Args:
        config: the model's dimensions.
        weights: its parameters.
        state: the text's buffers.
        x: embedded tokens [M, hidden]; the residual stream, changed in place.
        at: where the stretch stands.
        until: run the layers before this one; None runs all.

    Returns:
        The hidden states [M, hidden], normed as the next layer or the head reads them.
    """
    linear_index = full_index = 0
    scales = [layer.norm_in for layer in weights.layers] + [weights.norm]
    h = add_rms_norm(x, None, scales[0], config.eps)
    for layer, scale in zip(weights.layers[:until], scales[1:], strict=False):
        bias = None
        if isinstance(layer, LinearLayer):
            assert state.window is not None and state.recurrent is not None
            window = state.window.tensor[linear_index]
            recurrent = state.recurrent.tensor[linear_index]
            mixed = mix_linear(config, layer, h, window, recurrent, at)
            linear_index += 1
        else:
            keys, values = state.keys_values(full_index)
            mixed = mix_full(config, layer, h, keys, values, at)
            bias = layer.b_out
            full_index += 1
        h = project(mixed, layer.w_out, bias, x, layer.norm_mlp, config.eps)
        h = project(gated(h, layer.w_gate_up), layer.w_down, None, x, scale, config.eps)
    return h
