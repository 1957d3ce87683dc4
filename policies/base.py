"""What every policy offers to the robot loop: the protocol, its specification, its errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from flashrt_ros.errors import FlashrtError

if TYPE_CHECKING:
    from flashrt_ros.capsule.closure import Closure
    from flashrt_ros.contract.buffer import Buffer


class ObservationError(FlashrtError):
    """An observation has another shape or type than the policy's, or holds NaN or infinity."""


@dataclass(frozen=True)
class PolicySpec:
    """What a policy sees and does; known without loading its weights.

    Attributes:
        cameras: names of the camera images, in the order the network takes them.
        image_hw: height and width of every image, pixels; images are uint8 [H, W, 3], RGB.
        proprio_dim: length P of the proprioception vector, float32.
        action_dim: length A of one action, float32.
        horizon: actions in one chunk; action[i] of a chunk is for i control ticks after the
            observation.
        subgoal_length: bytes L in a subgoal row (utf-8 bytes plus one, zero is padding).
        action_low: lowest value of each action component.
        action_high: highest value of each action component.
        skills: instructions the policy was trained on, one per skill.
    """

    cameras: tuple[str, ...]
    image_hw: tuple[int, int]
    proprio_dim: int
    action_dim: int
    horizon: int
    subgoal_length: int
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    skills: tuple[str, ...] = ()

    def hw(self, camera: str) -> tuple[int, int]:
        """Return height and width of a camera's image, pixels; all the same unless overridden."""
        return self.image_hw


class SubgoalPort(Protocol):
    """Two buffers through which the planner's subgoal reaches a policy.

    Attributes:
        slots: int32 [2, L], one row of bytes per slot.
        live: int64 [1], the slot to read; the policy's graph gathers ``slots[live]`` itself.
    """

    @property
    def slots(self) -> Buffer: ...  # noqa: D102

    @property
    def live(self) -> Buffer: ...  # noqa: D102


@runtime_checkable
class Policy(Protocol):
    """A network bound to static buffers: observe, then plan.

    Attributes:
        spec: what it sees and does.
    """

    spec: PolicySpec

    def preprocess(
        self, images: Mapping[str, np.ndarray], proprio: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Check one observation and return what `observe` will write; changes nothing.

        Args:
            images: camera name -> uint8 [H, W, 3].
            proprio: float32 [P].

        Raises:
            ObservationError: a camera, shape, type or value is wrong.
        """

    def observe(self, images: Mapping[str, np.ndarray], proprio: np.ndarray) -> None:
        """Copy one observation into the static buffers.

        Args:
            images: camera name -> uint8 [H, W, 3].
            proprio: float32 [P].

        Raises:
            ObservationError: as `preprocess`; no buffer was written.
        """

    def plan(self) -> np.ndarray:
        """Replay the graphs on what was observed; return the chunk, float32 [horizon, A]."""

    def reset(self, seed: int) -> None:
        """Start over: noise seed set, counter zero, caches zero. Same seed, same actions."""

    def close_over(self, closure: Closure) -> None:
        """Name every buffer that the next `plan` depends on, besides the subgoal port."""

    def fingerprint(self) -> dict[str, str]:
        """Return the digests a capsule must match: weights, architecture, dtype, kernels."""


@runtime_checkable
class RealTimePolicy(Policy, Protocol):
    """A policy whose next chunk can begin as the previous one goes on (arXiv 2506.07339)."""

    def pace(self, elapsed: int, delay: int) -> None:
        """Say how the next chunk follows the one before; holds for one `plan`.

        Args:
            elapsed: control ticks from the previous chunk's observation to this one's; 0 where
                no previous chunk is being executed.
            delay: control ticks until the new chunk takes effect: so many actions are settled.
        """


def check_observation(
    spec: PolicySpec, images: Mapping[str, np.ndarray], proprio: np.ndarray
) -> None:
    """Refuse an observation that does not fit `spec`.

    Raises:
        ObservationError: one line that names what is wrong and what would be right.
    """
    if set(images) != set(spec.cameras):
        raise ObservationError(
            f'cameras are {sorted(images)}; this policy takes {sorted(spec.cameras)}'
        )
    for name, image in images.items():
        want = (*spec.hw(name), 3)
        if image.shape != want or image.dtype != np.uint8:
            raise ObservationError(
                f'image {name!r} is {image.dtype} {list(image.shape)}; want uint8 {list(want)}'
            )
    proprio = np.asarray(proprio)
    if proprio.shape != (spec.proprio_dim,) or proprio.dtype != np.float32:
        raise ObservationError(
            f'proprioception is {proprio.dtype} {list(proprio.shape)}; '
            f'want float32 [{spec.proprio_dim}]'
        )
    bad = np.flatnonzero(~np.isfinite(proprio))
    if bad.size:
        raise ObservationError(
            f'proprioception[{bad[0]}] is {proprio[bad[0]]}; want finite numbers'
        )
