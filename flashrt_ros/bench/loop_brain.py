"""Back to a capsule and on to the next chunk, without ROS: warm, and from nothing."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch

from flashrt_policies import registry
from flashrt_ros.contract.context import Context
from flashrt_ros.control.actor import Actor
from flashrt_ros.control.guards import Guards
from flashrt_ros.control.mailbox import Mailbox
from flashrt_ros.control.types import Observation

POLICY = 'drawer'
COLD = 3  # starts from nothing


class Brain:
    """A policy with everything around it, warm and captured: what a process has when it is up."""

    def __init__(self, device: str) -> None:
        torch.set_num_threads(1)  # as the node does on the CPU
        self.ctx = Context(device)
        spec: Any = registry.spec(POLICY)
        mailbox = Mailbox(self.ctx, spec.subgoal_length)
        policy = registry.load(POLICY, self.ctx, mailbox.port)
        self.actor = Actor(self.ctx, policy, mailbox, Guards.of(spec))
        rng = np.random.default_rng(0)
        self.images = {
            name: rng.integers(0, 256, (*spec.image_hw, 3), np.uint8) for name in spec.cameras
        }
        self.proprio = np.zeros(spec.proprio_dim, np.float32)
        for _ in range(3):
            policy.observe(self.images, self.proprio)
            policy.plan()
        self.ctx.freeze()
        self.actor.start(1, 1, 0)
        self.actor.post(spec.skills[0])

    def chunk(self, tick: int) -> None:
        """Turn an observation into a chunk."""
        seen = Observation(self.images, self.proprio, tick, 1, self.actor.epoch)
        self.actor.infer(seen)


def warm(device: str, runs: int) -> list[float]:
    """Return the ms from the request to go back to the next chunk, ``runs`` times."""
    brain = Brain(device)
    brain.chunk(0)
    capsule = brain.actor.snapshot('interrupt')
    samples = []
    for run in range(runs):
        brain.chunk(8 + run)  # it has moved on
        brain.ctx.synchronize()
        began = time.perf_counter()
        brain.actor.restore(capsule, brain.actor.epoch + 1)
        brain.chunk(0)
        samples.append((time.perf_counter() - began) * 1e3)
    return samples


def cold(device: str) -> list[float]:
    """Return the ms from nothing to the first chunk: weights, warm-up, capture (no imports)."""
    samples = []
    for _ in range(COLD):
        began = time.perf_counter()
        Brain(device).chunk(0)
        samples.append((time.perf_counter() - began) * 1e3)
    return samples
