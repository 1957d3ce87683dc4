"""One token through the layers on CUDA: the same model as `layers`, in five or six launches each.

A decode step is bound by launches and by reading the weights once, so norms, gates and residual
sums ride along with the products, and the convolution, the delta rule and the gated norm are one
kernel. The last layer of a prefill is such a step too: of its outputs only the last token's is
read, the other tokens leave their keys and values, or their part of the state.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from flashrt_policies.hybrid_lm.config import LMConfig
from flashrt_policies.hybrid_lm.layers import Stretch, mix_full, mix_linear, run_layers
from flashrt_policies.hybrid_lm.state import LMState
from flashrt_policies.hybrid_lm.weights import FullLayer, Layer, LinearLayer, Weights
from flashrt_policies.kernels.decode_triton import attend_one, delta_step
from flashrt_policies.kernels.embed_triton import finish, pick, take_one
from flashrt_policies.kernels.linear_triton import gated, linear, project, row
from flashrt_policies.kernels.place_triton import place


def step_linear(
    config: LMConfig, layer: LinearLayer, proj: Tensor, window: Tensor, state: Tensor,
    after: tuple[Tensor, Tensor] | None = None,
) -> Tensor:  # fmt: skip
    """Return the gated output of a linear layer's heads, [1, HV * V]; `after` as `delta_step`."""
    c = config
    dims = (c.lin_k_heads, c.lin_v_heads, c.lin_k_dim, c.lin_v_dim)
    return delta_step(
        proj, window, state, layer.conv, layer.decay, layer.dt_bias, layer.norm, c.eps, dims,
        after,
    )  # fmt: skip


def step_full(
    config: LMConfig, layer: FullLayer, proj: Tensor, keys: Tensor, values: Tensor, at: Stretch
) -> Tensor:
    """Return the gated output of a full layer's heads, [1, H * D]."""
    c, dim = config, config.head_dim
    width = 2 * dim if c.gated else dim
    q, k, v = proj.split((c.heads * width, c.kv_heads * dim, c.kv_heads * dim), dim=1)
    q = q.unflatten(1, (c.heads, width))
    gate = q[..., dim:] if c.gated else None
    k, v = k.unflatten(1, (c.kv_heads, dim)), v.unflatten(1, (c.kv_heads, dim))
    return attend_one(
        q[..., :dim], k, v, keys, values, at.position, at.freq, layer.q_norm, layer.k_norm,
        c.eps, gate,
    )  # fmt: skip


def step_layers(
    config: LMConfig, weights: Weights, state: LMState, x: Tensor, at: Stretch
) -> Tensor:
    """Run every layer on one token and move the state past it.

    Args:
        config: the model's dimensions.
        weights: its parameters.
        state: the text's buffers.
        x: the embedded token [1, hidden]; the residual stream, changed in place.
        at: where the token stands.

    Returns:
        The residual stream, [1, hidden].
    """
    linear_index = full_index = 0
    for layer in weights.layers:
        eps = config.eps
        if isinstance(layer, LinearLayer):
            assert state.window is not None and state.recurrent is not None
            proj = row(x, layer.w_in, scale=layer.norm_in, eps=eps)
            window = state.window.tensor[linear_index]
            recurrent = state.recurrent.tensor[linear_index]
            mixed = step_linear(config, layer, proj, window, recurrent)
            row(mixed, layer.w_out, add=x)
            linear_index += 1
        else:
            proj = row(x, layer.w_in, bias=layer.b_in, scale=layer.norm_in, eps=eps)
            mixed = step_full(config, layer, proj, *state.keys_values(full_index), at)
            row(mixed, layer.w_out, bias=layer.b_out, add=x)
            full_index += 1
        step_mlp(layer, x, eps)
    return x


def step_mlp(layer: Layer, x: Tensor, eps: float) -> None:
    """Add what the MLP makes of one token's residual stream [1, hidden] to it, in place."""
    act = row(x, layer.w_gate_up, scale=layer.norm_mlp, eps=eps, pair=True)
    row(act, layer.w_down, add=x)


def last_full(
    config: LMConfig, layer: FullLayer, x: Tensor, h: Tensor, keys: Tensor, values: Tensor,
    at: Stretch,
) -> Tensor:  # fmt: skip
    """Place the keys and values of every token; return the last one's heads, [1, H * D].

    Args:
        config: the model's dimensions.
        layer: the layer's weights.
        x: residual stream of the last token [1, hidden].
        h: normed input of every token [M, hidden].
        keys: [KV, T, D], written behind ``at.position``.
        values: [KV, T, D], likewise.
        at: where the tokens stand.
    """
    c, dim = config, config.head_dim
    width = 2 * dim if c.gated else dim
    cut = c.heads * width
    bias = (None, None) if layer.b_in is None else (layer.b_in[:cut], layer.b_in[cut:])
    kv = linear(h, layer.w_in[cut:], bias[1])
    k, v = kv.unflatten(1, (2, c.kv_heads, dim)).unbind(1)
    none = kv.as_strided((kv.shape[0], 0, dim), (kv.stride(0), dim, 1))  # no queries
    place(
        none, k, v, keys, values, at.position, at.valid, at.freq, layer.q_norm, layer.k_norm,
        c.eps,
    )  # fmt: skip
    q = row(x, layer.w_in[:cut], bias=bias[0], scale=layer.norm_in, eps=c.eps)
    q = q.unflatten(1, (c.heads, width))
    return attend_one(
        q[..., :dim], k, v, keys, values, at.position, at.freq, layer.q_norm, layer.k_norm,
        c.eps, q[..., dim:] if c.gated else None, at.valid,
    )  # fmt: skip


def run_last(
    config: LMConfig,
    weights: Weights,
    state: LMState,
    x: Tensor,
    h: Tensor,
    at: Stretch,
    whole: bool,
) -> tuple[Tensor, Tensor | None]:
    """Run the last layer of a prefill for the last token, and its state past every token.

    Args:
        config: the model's dimensions.
        weights: its parameters.
        state: the text's buffers.
        x: residual stream before the layer [M, hidden], changed with `whole`.
        h: its norm [M, hidden].
        at: where the stretch stands.
        whole: also return the hidden states of every token.

    Returns:
        The last token's residual stream [1, hidden]; with `whole`, every token's last hidden
        state [M, hidden], normed as the head reads it.
    """
    layer, mixed, bias, one = weights.layers[-1], None, None, pick(x, at.valid)
    if isinstance(layer, LinearLayer):
        assert state.window is not None and state.recurrent is not None
        window, recurrent = state.window.tensor[-1], state.recurrent.tensor[-1]
        mixed = mix_linear(config, layer, h, window, recurrent, at)
        last = pick(mixed, at.valid)
    else:
        keys, values = state.keys_values(config.full_layers - 1)
        last, bias = last_full(config, layer, one, h, keys, values, at), layer.b_out
        if whole:
            mixed = mix_full(config, layer, h, keys, values, at)
    row(last, layer.w_out, bias=bias, add=one)
    step_mlp(layer, one, config.eps)
    if not whole or mixed is None:
        return one, None
    h = project(mixed, layer.w_out, bias, x, layer.norm_mlp, config.eps)
    act = gated(h, layer.w_gate_up)
    return one, project(act, layer.w_down, None, x, weights.norm, config.eps)


def consume(
    config: LMConfig,
    weights: Weights,
    state: LMState,
    x: Tensor,
    at: Stretch,
    span: Tensor,
    note: Callable[[Tensor], None] | None,
) -> None:
    """Consume a stretch of tokens and keep the last one's hidden state.

    Args:
        config: the model's dimensions.
        weights: its parameters.
        state: the text's buffers.
        x: embedded tokens [M, hidden], overwritten.
        at: where the stretch stands.
        span: int64 [2], moved on as `embed.advance` does.
        note: told the last hidden states [M, hidden] before the position moves; or None.
    """
    h = run_layers(config, weights, state, x, at, len(weights.layers) - 1)
    last, made = run_last(config, weights, state, x, h, at, note is not None)
    if note is not None and made is not None:
        note(made)
    hidden, position = state.hidden.tensor, state.position.tensor
    finish(last, weights.norm, config.eps, hidden, position, span, at.valid)


def decode(config: LMConfig, weights: Weights, state: LMState, at: Stretch) -> None:
    """Consume the chosen token and keep its hidden state."""
    position = state.position.tensor
    x = take_one(
        state.token.tensor, weights.embed, state.history.tensor[0], position, state.digest.tensor
    )
    x = step_layers(config, weights, state, x, at)
    finish(x, weights.norm, config.eps, state.hidden.tensor, position)
