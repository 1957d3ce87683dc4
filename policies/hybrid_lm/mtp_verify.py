"""Several tokens in one pass, each with the bits of a step of its own.

What was drafted counts only where the model, asked step by step, would have said the same. So a
pass over drafts must round like single steps: every row goes through the arithmetic of a decode
step, on CUDA through its very kernels. Products take all rows at once and read the weights once;
what depends on the row before goes row by row. The recurrent states and windows after each row are
kept until it is known how many rows stand.
"""

from __future__ import annotations

import torch
from torch import Tensor

from flashrt_policies.hybrid_lm.config import LMConfig
from flashrt_policies.hybrid_lm.layers import Stretch, run_layers
from flashrt_policies.hybrid_lm.state import LMState
from flashrt_policies.hybrid_lm.weights import LinearLayer, Weights


class Kept:
    """States of the linear layers after each row of a pass; nothing where there are none.

    Args:
        state: the text's buffers.
        rows: R, rows of the pass.

    Attributes:
        live: recurrent [L, HV, K, V] and window [L, W - 1, C] before the pass.
        after: of the same shapes behind [R], after each row.
    """

    def __init__(self, state: LMState, rows: int) -> None:
        pair = (state.recurrent, state.window)
        self.live = [buffer.tensor for buffer in pair if buffer is not None]
        self.after = [torch.empty((rows, *x.shape), dtype=x.dtype, device=x.device)
                      for x in self.live]  # fmt: skip

    def settle(self, row: Tensor) -> None:
        """Make the states after row `row`, int64 [1], the live ones."""
        for live, after in zip(self.live, self.after, strict=True):
            live.copy_(after.index_select(0, row)[0])


def verify(
    config: LMConfig, weights: Weights, state: LMState, x: Tensor, at: Stretch
) -> tuple[Tensor, Kept]:
    """Run tokens through the model; `state` holds their keys and values, and no position moves.

    Args:
        config: the model's dimensions.
        weights: its parameters.
        state: the text's buffers; call `Kept.settle` before its recurrent state is used again.
        x: embedded tokens [R, hidden], changed in place.
        at: where the first token stands; its `valid` is one.

    Returns:
        Normed last hidden states [R, hidden], and the states after each row.
    """
    places = [Stretch(at.position + row, at.valid, at.freq) for row in range(x.shape[0])]
    kept = Kept(state, x.shape[0])
    if x.is_cuda:
        return verify_fused(config, weights, state, x, places, kept), kept
    made = []
    for row, place in enumerate(places):
        made.append(run_layers(config, weights, state, x[row : row + 1], place))
        for live, after in zip(kept.live, kept.after, strict=True):
            after[row].copy_(live)
    return torch.cat(made), kept


def verify_fused(
    config: LMConfig,
    weights: Weights,
    state: LMState,
    x: Tensor,
    places: list[Stretch],
    kept: Kept,
) -> Tensor:
    """As `verify`, by the kernels of `step`; writes the states after each row into `kept`."""
    from flashrt_policies.hybrid_lm.step import step_full, step_linear
    from flashrt_policies.kernels.embed_triton import finish
    from flashrt_policies.kernels.linear_triton import row as product

    eps, linear_index, full_index = config.eps, 0, 0
    for layer in weights.layers:
        if isinstance(layer, LinearLayer):
            proj = product(x, layer.w_in, scale=layer.norm_in, eps=eps)
            recurrent, window = (live[linear_index] for live in kept.live)
            parts = []
            for index, part in enumerate(proj.split(1)):
                after = (kept.after[1][index, linear_index], kept.after[0][index, linear_index])
                parts.append(step_linear(config, layer, part, window, recurrent, after))
                window, recurrent = after
            product(torch.cat(parts), layer.w_out, add=x)
            linear_index += 1
        else:
            proj = product(x, layer.w_in, bias=layer.b_in, scale=layer.norm_in, eps=eps)
            cache = state.keys_values(full_index)
            parts = [
                step_full(config, layer, part, *cache, place)
                for part, place in zip(proj.split(1), places, strict=True)
            ]
            product(torch.cat(parts), layer.w_out, bias=layer.b_out, add=x)
            full_index += 1
        act = product(x, layer.w_gate_up, scale=layer.norm_mlp, eps=eps, pair=True)
        product(act, layer.w_down, add=x)
    made = torch.empty_like(x)
    for index, place in enumerate(places):
        row = slice(index, index + 1)
        finish(x[row], weights.norm, eps, made[row], place.position)  # its place is not used again
    return made
