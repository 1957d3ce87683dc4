"""Training of a flow policy on demonstrations, as a task for the trainer.

All random numbers of a step come from one generator seeded with (seed, step).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from flashrt_policies.base import PolicySpec
from flashrt_policies.flow_vla.model import FlowVLA
from flashrt_policies.training.data import Frames
from flashrt_policies.training.objective import Drawn, draw, drawn_loss, velocity
from flashrt_policies.training.optimizer import AdamW
from flashrt_policies.training.recipe import Recipe
from flashrt_policies.training.validate import action_errors


class FlowTask:
    """One network on one set of demonstrations.

    Args:
        recipe: every number.
        frames: the demonstrations, on the device to train on.
        network: what is trained.
    """

    def __init__(self, recipe: Recipe, frames: Frames, network: FlowVLA) -> None:
        self.recipe, self.frames, self.network = recipe, frames, network
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = AdamW(network, recipe.train)
        self._generator = torch.Generator(frames.device)
        whole = recipe.train.compile
        self._velocity = torch.compile(velocity, dynamic=False) if whole else velocity

    def batches(self, first: int) -> Iterator[Drawn]:
        """Yield the batch of step `first`, of the next one and so on, without end."""
        recipe, step = self.recipe, first
        while True:
            self._generator.manual_seed(recipe.seed * 1_000_003 + step)
            batch = self.frames.sample(recipe.train.batch, self._generator)
            yield draw(self.network, batch, recipe.augment, recipe.loss, self._generator)
            step += 1

    def loss(self, batch: Drawn) -> Tensor:
        """Return the loss of a batch, a scalar on the device."""
        return drawn_loss(self.network, batch, self._velocity)

    def measure(self, average: nn.Module) -> dict[str, Any]:
        """Measure averaged weights on the episodes kept out; empty where there are none."""
        assert isinstance(average, FlowVLA)
        return dict(action_errors(average, self.frames, self.recipe.loss))

    def told(self, measured: dict[str, Any]) -> str:
        """Return measurements in words."""
        text = ', '.join(f'{name} words {value:.4f}' for name, value in measured.items())
        return f'mean action error with {text}'


def fresh(recipe: Recipe, spec: PolicySpec, frames: Frames) -> FlowVLA:
    """Return a new network for demonstrations, on their device; the seed decides its weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        network = FlowVLA(spec, recipe.model)
    network.load_state_dict(frames.statistics(), strict=False)
    return network.to(frames.device)
