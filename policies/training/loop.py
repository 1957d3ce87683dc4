"""What every training loop has: its numbers, and the learning rate of a step."""

from __future__ import annotations

import math
from dataclasses import dataclass

from flashrt_policies.recipes import demand


@dataclass(frozen=True)
class Loop:
    """The loop.

    Attributes:
        steps: optimiser steps.
        batch: observations or situations per step.
        rate: highest learning rate.
        warmup: steps of linear warm-up.
        cooldown: last part of the run in which the rate falls to nothing, 0 to 1; it stays as it
            is before. With 0 the rate falls from the warm-up on along a cosine, to a hundredth.
        decay: weight decay on matrices.
        beta1: decay of the optimiser's first moment.
        beta2: decay of its second moment.
        clip: largest gradient norm.
        ema: decay of the averaged weights that are exported.
        autocast: compute type of matrix work on a GPU: bfloat16 or float32.
        graph: capture a step as one CUDA graph.
        validate_every: steps between measurements on what is held out.
        save_every: steps between saves of the training state.
    """

    steps: int = 6000
    batch: int = 512
    rate: float = 1e-3
    warmup: int = 200
    cooldown: float = 0.0
    decay: float = 0.02
    beta1: float = 0.9
    beta2: float = 0.95
    clip: float = 1.0
    ema: float = 0.999
    autocast: str = 'bfloat16'
    graph: bool = False
    validate_every: int = 1000
    save_every: int = 2000

    def __post_init__(self) -> None:
        demand(
            (self.steps > 0, f'train.steps is {self.steps}; want a positive number'),
            (self.batch > 0, f'train.batch is {self.batch}; want a positive number'),
            (self.warmup > 0, f'train.warmup is {self.warmup}; want a positive number'),
            (
                0 <= self.cooldown <= 1,
                f'train.cooldown is {self.cooldown}; want a number from 0 to 1',
            ),
            (0 <= self.ema < 1, f'train.ema is {self.ema}; want a number from 0 to below 1'),
            (
                self.autocast in ('bfloat16', 'float32'),
                f'train.autocast is {self.autocast!r}; want bfloat16 or float32',
            ),
            (
                min(self.validate_every, self.save_every) > 0,
                'train.validate_every and train.save_every must be positive',
            ),
        )

    def rate_at(self, step: int, steps: int) -> float:
        """Return the learning rate of a step of a run of `steps` steps."""
        rise = (step + 1) / self.warmup
        if self.cooldown:
            return self.rate * min(1.0, rise, (steps - step) / (self.cooldown * steps))
        part = min(1.0, (step - self.warmup) / max(1, steps - self.warmup))
        fall = 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * part))
        return self.rate * (rise if step < self.warmup else fall)
