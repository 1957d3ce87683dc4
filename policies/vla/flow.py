"""The flow from noise to actions, and its guidance by the chunk that is being executed.

Conditional flow matching as π0 has it (arXiv 2410.24164): the flow's time t runs from 1 (noise)
to 0 (actions) in equal Euler steps. Real-time chunking (arXiv 2506.07339) inpaints the new chunk:
each step's velocity is pulled towards the part of the previous chunk that is still ahead: wholly
for the actions that will have been executed when the new chunk arrives, then less and less.
The denoiser's Jacobian in the paper's equation 2 is taken as the identity, as lerobot does: one
forward pass a step, and the same graph with and without guidance.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

STRONGEST = 10.0  # guidance weight is clipped here (beta in the paper, its section A.2)


def times(steps: int) -> list[float]:
    """Return the flow's time at the start of each Euler step."""
    return [1.0 + step * (-1.0 / steps) for step in range(steps)]


def time_features(steps: int, width: int, shortest: float, longest: float) -> Tensor:
    """Return sines and cosines of the flow's times, float32 [S, width].

    Args:
        steps: S.
        width: numbers in one embedding, even.
        shortest: period of the first frequency.
        longest: period of the last.
    """
    fraction = torch.linspace(0.0, 1.0, width // 2, dtype=torch.float64)
    period = shortest * (longest / shortest) ** fraction
    angle = torch.tensor(times(steps))[:, None] * (1.0 / period * 2 * math.pi)
    return torch.cat((angle.sin(), angle.cos()), dim=1).float()


def pull(time: float) -> float:
    """Return the guidance weight at a flow time (the paper's equation 2, clipped)."""
    tau = 1.0 - time
    if tau <= 0.0:
        return STRONGEST
    if time <= 0.0:
        return 0.0
    return min(STRONGEST, time / tau * (time**2 + tau**2) / time**2)
