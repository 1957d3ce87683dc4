"""A real policy on the contract, a few buffers small: what the actor's tests drive."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from flashrt_ros.contract.context import Context
from flashrt_ros.contract.graph import ShapeKey
from flashrt_ros.control.mailbox import SubgoalPort

SKILLS = ('open the drawer', 'close the drawer')
SPEC = SimpleNamespace(
    cameras=('front', 'wrist'),
    image_hw=(8, 8),
    proprio_dim=4,
    action_dim=4,
    horizon=16,
    subgoal_length=64,
    action_low=(-1.0,) * 4,
    action_high=(1.0,) * 4,
    skills=SKILLS,
)


class ToyPolicy:
    """Actions that depend on image, proprioception, subgoal, noise seed and a running count."""

    def __init__(self, ctx: Context, port: SubgoalPort) -> None:
        self.spec = SPEC
        self.port = port
        self.image = ctx.buffer('toy/image', (2, 8, 8, 3), torch.uint8)
        self.proprio = ctx.buffer('toy/proprio', (4,), torch.float32)
        self.seed = ctx.buffer('toy/seed', (1,), torch.int64)
        self.count = ctx.buffer('toy/count', (1,), torch.int64)
        self.action = ctx.buffer('toy/action', (16, 4), torch.float32)
        self.fault: float | None = None  # planted: a number every action is replaced by
        self.graph = ctx.graph(
            'toy',
            reads={
                'image': self.image,
                'proprio': self.proprio,
                'slots': port.slots,
                'live': port.live,
                'seed': self.seed,
                'count': self.count,
            },
            writes={'action': self.action, 'count': self.count},
        )
        self.key = ShapeKey(batch=1)
        self.graph.capture(self.key, self._forward)
        self.reset(0)

    def _forward(self) -> None:
        row = self.port.slots.tensor.index_select(0, self.port.live.tensor)  # [1, L]
        mixed = (row.sum() * 31 + self.seed.tensor * 7 + self.count.tensor * 13).float()
        mixed = mixed + self.image.tensor.float().mean() + self.proprio.tensor.sum() * 10
        steps = torch.arange(16 * 4, device=self.action.tensor.device).reshape(16, 4)
        self.action.tensor.copy_(torch.sin(mixed + steps))
        self.count.tensor.add_(1)

    def observe(self, images: Mapping[str, np.ndarray], proprio: np.ndarray) -> None:
        """Write the observation."""
        self.image.write(np.stack([images[name] for name in self.spec.cameras]))
        self.proprio.write(proprio)

    def plan(self) -> np.ndarray:
        """Replay."""
        self.graph.replay(self.key)
        actions = self.action.tensor.cpu().numpy().copy()
        return actions if self.fault is None else np.full_like(actions, self.fault)

    def reset(self, seed: int) -> None:
        """Seed the noise."""
        self.seed.tensor.fill_(seed)
        self.count.tensor.zero_()

    def close_over(self, closure: Any) -> None:
        """Name the buffers."""
        closure.fixed(self.image, self.proprio, self.seed, self.count, self.action)

    def fingerprint(self) -> dict[str, str]:
        """Say who it is."""
        return {'weights': 'toy', 'architecture': 'toy'}
