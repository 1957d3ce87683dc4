"""What the actor asks of a policy and of hosts. No torch, no implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from flashrt_ros.capsule.closure import Closure


class Spec(Protocol):
    """What the actor reads of a policy's spec."""

    cameras: tuple[str, ...]
    image_hw: tuple[int, int]
    proprio_dim: int
    action_dim: int
    horizon: int
    subgoal_length: int
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    skills: tuple[str, ...]


class Policy(Protocol):
    """What the actor asks of a policy."""

    spec: Any

    def observe(self, images: Mapping[str, np.ndarray], proprio: np.ndarray) -> None:
        """Write uint8 [H, W, 3] images and float32 [P] proprioception into static buffers."""

    def plan(self) -> np.ndarray:
        """Replay the graphs; return a host copy, float32 [horizon, action_dim]."""

    def reset(self, seed: int) -> None:
        """Set the noise seed, its counter to 0, and clear caches."""

    def close_over(self, closure: Closure) -> None:
        """Name every buffer the next chunk depends on."""

    def fingerprint(self) -> dict[str, str]:
        """Digests of weights, architecture and kernels."""


class Host(Protocol):
    """Something with host state that belongs to the capsule (a planner, for instance)."""

    def state(self) -> dict:
        """Everything its next step depends on."""

    def set_state(self, state: dict) -> None:
        """Put back what `state` gave."""
