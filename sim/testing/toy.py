"""A policy small enough for tests: real buffers and graph, arithmetic in place of a network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch

from flashrt_policies.base import PolicySpec, SubgoalPort
from flashrt_ros.contract.context import Context
from flashrt_ros.contract.graph import ShapeKey

if TYPE_CHECKING:
    from flashrt_ros.capsule.closure import Closure

SPEC = PolicySpec(
    cameras=('front',),
    image_hw=(8, 8),
    proprio_dim=4,
    action_dim=4,
    horizon=16,
    subgoal_length=64,
    action_low=(-1.0,) * 4,
    action_high=(1.0,) * 4,
    skills=('open the drawer', 'close the drawer'),
)
_KEY = ShapeKey(batch=1)


class ToyPolicy:
    """Actions that depend on picture, proprioception, subgoal, noise seed and a running count.

    Args:
        ctx: where its buffers are made.
        port: where the subgoal comes from.
        spec: sizes and skills, others than those of `SPEC`.
    """

    def __init__(self, ctx: Context, port: SubgoalPort, spec: PolicySpec = SPEC) -> None:
        self.spec, self._port = spec, port
        shape = (len(spec.cameras), *spec.image_hw, 3)
        self._image = ctx.buffer('toy/image', shape, torch.uint8)
        self._proprio = ctx.buffer('toy/proprio', (spec.proprio_dim,), torch.float32)
        self._seed = ctx.buffer('toy/seed', (1,), torch.int64)
        self._count = ctx.buffer('toy/count', (1,), torch.int64)
        self._action = ctx.buffer('toy/action', (spec.horizon, spec.action_dim), torch.float32)
        reads = {'image': self._image, 'proprio': self._proprio, 'seed': self._seed,
                 'count': self._count, 'slots': port.slots, 'live': port.live}  # fmt: skip
        writes = {'action': self._action, 'count': self._count}
        self._graph = ctx.graph('toy', reads=reads, writes=writes)
        self._graph.capture(_KEY, self._forward)
        self.reset(0)

    def _forward(self) -> None:
        row = self._port.slots.tensor.index_select(0, self._port.live.tensor)  # [1, L]
        mixed = (row.sum() * 31 + self._seed.tensor * 7 + self._count.tensor * 13).float()
        mixed = mixed + self._image.tensor.float().mean() + self._proprio.tensor.sum() * 10
        steps = torch.arange(self._action.tensor.numel(), device=mixed.device)
        self._action.tensor.copy_(torch.sin(mixed + steps).reshape(self._action.shape))
        self._count.tensor.add_(1)

    def observe(self, images: Mapping[str, np.ndarray], proprio: np.ndarray) -> None:
        """Write the observation."""
        self._image.write(np.stack([images[name] for name in self.spec.cameras]))
        self._proprio.write(proprio)

    def plan(self) -> np.ndarray:
        """Replay; float32 [horizon, action_dim]."""
        self._graph.replay(_KEY)
        return self._action.tensor.cpu().numpy().copy()

    def reset(self, seed: int) -> None:
        """Seed the noise."""
        self._seed.tensor.fill_(seed)
        self._count.tensor.zero_()

    def close_over(self, closure: Closure) -> None:
        """Name the buffers."""
        closure.fixed(self._image, self._proprio, self._seed, self._count, self._action)

    def fingerprint(self) -> dict[str, str]:
        """Say who it is."""
        return {'weights': 'toy', 'architecture': 'toy'}
