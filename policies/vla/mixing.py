"""How π0 and SmolVLA bring noisy actions and the flow's time into the expert."""

from __future__ import annotations

import torch
from torch import Tensor

from flashrt_policies.kernels.vla.linear import project
from flashrt_policies.kernels.vla.matrix import Matrix
from flashrt_policies.vla.tensors import Source


class Mixing:
    """Actions and time side by side through two layers.

    The two maps before the activation are one, and the time's part of it is a constant of each
    Euler step.

    Args:
        source: the tensors.
        times: features of the flow's times, float32 [S, W].
        action: width of a noisy action.
    """

    def __init__(self, source: Source, times: Tensor, action: int) -> None:
        width, wide = times.shape[1], torch.float32
        first = source.take('model.action_in_proj.weight', width, action, dtype=wide)
        bias = source.take('model.action_in_proj.bias', width, dtype=wide)
        mix = source.take('model.action_time_mlp_in.weight', width, 2 * width, dtype=wide)
        mixed = source.take('model.action_time_mlp_in.bias', width, dtype=wide)
        ours, times_part = mix[:, :width], mix[:, width:]
        self.inner = Matrix((ours @ first).to(source.dtype))
        self.inner_bias = times @ times_part.mT + ours @ bias + mixed  # [S, W]
        self.outer = Matrix(source.take('model.action_time_mlp_out.weight', width, width))
        self.outer_bias = source.take('model.action_time_mlp_out.bias', width, dtype=wide)

    def __call__(self, x: Tensor, step: int) -> Tensor:
        """Return tokens [H, W] of noisy actions [H, A], float32, at a step."""
        h = project(x, self.inner, self.inner_bias[step], kind='silu')
        return project(h, self.outer, self.outer_bias)
