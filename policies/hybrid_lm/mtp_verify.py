"""Several tokens in one pass, each with the bits of a step of its own.

What was drafted counts only where the model, asked step by step, would have said the same. So a
pass over drafts must round like single steps: every row goes through the arithmetic of a decode
step, and the recurrent states and windows after each row are kept until it is known how many rows
stand.
"""

from __future__ import annotations

import torch
from torch import Tensor

from flashrt_policies.hybrid_lm.config import LMConfig
from flashrt_policies.hybrid_lm.layers import Stretch, run_layers
from flashrt_policies.hybrid_lm.state import LMState
from flashrt_policies.hybrid_lm.weights import Weights


class Kept:
    """States of the linear layers after each row of a pass; nothing where there are none."""

    def __init__(self, state: LMState) -> None:
        pair = (state.recurrent, state.window)
        self.live = [buffer.tensor for buffer in pair if buffer is not None]
        self.rows: list[list[Tensor]] = [[] for _ in self.live]

    def keep(self) -> None:
        """Remember the live states as those after one more row."""
        for tensor, rows in zip(self.live, self.rows, strict=True):
            rows.append(tensor.clone())

    def settle(self, row: Tensor) -> None:
        """Make the states after row `row`, int64 [1], the live ones."""
        for tensor, rows in zip(self.live, self.rows, strict=True):
            tensor.copy_(torch.stack(rows).index_select(0, row)[0])


def verify(
    config: LMConfig, weights: Weights, state: LMState, x: Tensor, at: Stretch
) -> tuple[Tensor, Kept]:
    """Run tokens through the model; `state` holds their keys and values, and no position moves.

    Args:
        config: the model's dimensions.
        weights: its parameters.
        state: the text's buffers; call `Kept.settle` before its recurrent state is used again.
        x: embedded tokens [R, hidden].
        at: where the first token stands; its `valid` is one.

    Returns:
        Normed last hidden states [R, hidden], and the states after each row.
    """
    kept, made = Kept(state), []
    for index in range(x.shape[0]):
        here = Stretch(at.position + index, at.valid, at.freq)
        made.append(run_layers(config, weights, state, x[index : index + 1].clone(), here))
        kept.keep()
    return torch.cat(made), kept
