"""One token through the layers on CUDA: the same model as `layers`, in five or six launches each.

A decode step is bound by launches and by reading the weights once, so norms, gates and residual
sums ride along with the products, and the convolution, the delta rule and the gated norm are one
kernel.
"""

from __future__ import annotations

from torch import Tensor

from flashrt_policies.hybrid_lm.config import LMConfig
from flashrt_policies.hybrid_lm.layers import Stretch
from flashrt_policies.hybrid_lm.state import LMState
from flashrt_policies.hybrid_lm.weights import FullLayer, LinearLayer, Weights
from flashrt_policies.kernels.decode_triton import attend_one, delta_step
from flashrt_policies.kernels.linear_triton import row


def step_linear(
    config: LMConfig, layer: LinearLayer, proj: Tensor, window: Tensor, state: Tensor
) -> Tensor:
    """Return the gated output of a linear layer's heads, [1, HV * V]."""
    c = config
    dims = (c.lin_k_heads, c.lin_v_heads, c.lin_k_dim, c.lin_v_dim)
    return delta_step(
        proj, window, state, layer.conv, layer.decay, layer.dt_bias, layer.norm, c.eps, dims
    )


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
        act = row(x, layer.w_gate_up, scale=layer.norm_mlp, eps=eps, pair=True)
        row(act, layer.w_down, add=x)
    return x
