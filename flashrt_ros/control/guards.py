"""Guards: what a policy is never shown, and what a robot is never sent.

Each guard is a small object made from parameters and called with the thing it checks. It returns
nothing when all is well and raises `GuardError`, one line, when it is not. A guard changes
nothing, so what it refuses leaves no trace in any buffer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from flashrt_ros.control.types import Observation
from flashrt_ros.errors import FlashrtError


class GuardError(FlashrtError, ValueError):
    """An observation or an action was refused. ``guard`` names which check did it."""

    def __init__(self, guard: str, message: str) -> None:
        super().__init__(message)
        self.guard = guard


def check_array(
    name: str, value: np.ndarray, shape: Sequence[int], dtype: str, guard: str = 'shape'
) -> None:
    """Refuse ``value`` unless it is an array of this shape and dtype."""
    if not isinstance(value, np.ndarray):
        raise GuardError(guard, f'{name} is a {type(value).__name__}; it must be a numpy array')
    if value.shape != tuple(shape):
        raise GuardError(guard, f'{name} has shape {list(value.shape)}; it must be {list(shape)}')
    if value.dtype != np.dtype(dtype):
        raise GuardError('dtype', f'{name} has dtype {value.dtype}; it must be {dtype}')


def check_finite(name: str, value: np.ndarray) -> None:
    """Refuse ``value`` if it holds NaN or infinity; say where the first one stands."""
    bad = ~np.isfinite(value)
    if bad.any():
        where = [int(i) for i in np.argwhere(bad)[0]]
        raise GuardError(
            'finite',
            f'{name}{where} is {value[tuple(where)]}; every number must be finite',
        )


def check_limits(
    name: str, value: np.ndarray, low: np.ndarray, high: np.ndarray, guard: str = 'limits'
) -> None:
    """Refuse ``value`` [..., D] unless it lies within [low, high], both [D]."""
    bad = (value < low) | (value > high)
    if bad.any():
        where = [int(i) for i in np.argwhere(bad)[0]]
        entry = where[-1]
        raise GuardError(
            guard,
            f'{name}{where} is {value[tuple(where)]:.6g}; it must lie in '
            f'[{low[entry]:.6g}, {high[entry]:.6g}]',
        )


def check_rate(name: str, value: np.ndarray, last: np.ndarray, step: np.ndarray) -> None:
    """Refuse ``value`` [D] if an entry moved by more than ``step`` [D] since ``last`` [D]."""
    moved = np.abs(value.astype(np.float64) - last.astype(np.float64))
    bad = moved > step
    if bad.any():
        entry = int(np.argmax(bad))
        raise GuardError(
            'rate',
            f'{name}[{entry}] moved by {moved[entry]:.6g} in one tick; at most {step[entry]:.6g} '
            'is allowed',
        )


def _vector(name: str, values: float | Sequence[float], size: int) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64).reshape(-1)
    if array.size == 1:
        array = np.full(size, array[0])
    if array.size != size:
        raise ValueError(f'{name} has {array.size} entries; it must have 1 or {size}')
    return array


@dataclass(frozen=True)
class ObservationGuard:
    """What an observation must be before one byte of it reaches a buffer.

    Attributes:
        cameras: Names of the images that must be there.
        image_hw: Their height and width in pixels.
        proprio_dim: Numbers in the proprioception.
        low: Smallest value of each proprioception entry, or one for all.
        high: Largest value of each proprioception entry, or one for all.
        max_age: Oldest observation taken, in seconds.
        sizes: Camera -> height and width, where not all are ``image_hw``.
    """

    cameras: tuple[str, ...]
    image_hw: tuple[int, int]
    proprio_dim: int
    low: float | tuple[float, ...] = -10.0
    high: float | tuple[float, ...] = 10.0
    max_age: float = 0.5
    sizes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    _low: np.ndarray = field(init=False, repr=False, compare=False, default=None)  # type: ignore
    _high: np.ndarray = field(init=False, repr=False, compare=False, default=None)  # type: ignore

    def __post_init__(self) -> None:
        object.__setattr__(self, '_low', _vector('low', self.low, self.proprio_dim))
        object.__setattr__(self, '_high', _vector('high', self.high, self.proprio_dim))

    def __call__(self, observation: Observation) -> None:
        """Raise `GuardError` unless ``observation`` may be shown to the policy."""
        missing = [name for name in self.cameras if name not in observation.images]
        if missing:
            raise GuardError(
                'cameras',
                f'the observation has no image of {missing[0]!r}; the policy needs '
                + ', '.join(self.cameras),
            )
        for name in self.cameras:
            self.image(name, observation.images[name])
        self.proprio(observation.proprio)
        if observation.age > self.max_age:
            raise GuardError(
                'age',
                f'the observation of tick {observation.tick} is {observation.age * 1e3:.0f} ms '
                f'old; at most {self.max_age * 1e3:.0f} ms is allowed',
            )
        if observation.age < -self.max_age:
            raise GuardError(
                'clock',
                f'the observation of tick {observation.tick} is stamped '
                f'{-observation.age * 1e3:.0f} ms in the future; the clocks of robot and brain '
                'must agree (was one of them set?)',
            )

    def image(self, camera: str, pixels: np.ndarray) -> None:
        """Raise `GuardError` unless ``pixels`` are what the policy takes of ``camera``."""
        check_array(f'image {camera!r}', pixels, (*self.hw(camera), 3), 'uint8')

    def hw(self, camera: str) -> tuple[int, int]:
        """Return height and width of a camera's image, pixels."""
        return self.sizes.get(camera, self.image_hw)

    def proprio(self, values: np.ndarray) -> None:
        """Raise `GuardError` unless ``values`` are a sound proprioception."""
        check_array('proprioception', values, (self.proprio_dim,), 'float32')
        check_finite('proprioception', values)
        check_limits('proprioception', values, self._low, self._high, 'range')


@dataclass(frozen=True)
class ActionGuard:
    """What a chunk of actions must be before it is queued.

    A policy that regresses actions overshoots a limit by a little now and then: up to ``slack``
    is clipped. More than that is not noise but a fault, and the chunk is refused.

    Attributes:
        low: Smallest value of each entry, [A].
        high: Largest value of each entry, [A].
        horizon: Actions in a chunk.
        slack: How far outside the limits still counts as noise, as a part of the range.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]
    horizon: int
    slack: float = 0.5

    def __call__(self, actions: np.ndarray) -> np.ndarray:
        """Return ``actions`` [H, A] within the limits, float32; raise `GuardError` on a fault."""
        low, high = np.array(self.low), np.array(self.high)
        check_array('the chunk', actions, (self.horizon, low.size), 'float32')
        check_finite('the chunk', actions)
        room = self.slack * (high - low)
        check_limits('the chunk', actions, low - room, high + room)
        return np.clip(actions, low.astype(np.float32), high.astype(np.float32))


class Guarded(Protocol):
    """What `Guards.of` reads of a policy's spec."""

    cameras: tuple[str, ...]
    image_hw: tuple[int, int]
    proprio_dim: int
    horizon: int
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]


@dataclass(frozen=True)
class Guards:
    """The guards of one actor: observations in, actions out."""

    observation: ObservationGuard
    action: ActionGuard

    @classmethod
    def of(cls, spec: Guarded, max_age: float = 0.5, slack: float = 0.5) -> Guards:
        """Return the guards that follow from a policy's declared spaces."""
        hw = getattr(spec, 'hw', None)
        sizes = {} if hw is None else {name: hw(name) for name in spec.cameras}
        return cls(
            ObservationGuard(
                tuple(spec.cameras),
                spec.image_hw,
                spec.proprio_dim,
                getattr(spec, 'proprio_low', ()) or -10.0,
                getattr(spec, 'proprio_high', ()) or 10.0,
                max_age,
                sizes,
            ),
            ActionGuard(tuple(spec.action_low), tuple(spec.action_high), spec.horizon, slack),
        )


def summary(counts: Mapping[str, int]) -> str:
    """Return the counters that are not zero as one line, for logs."""
    return ', '.join(f'{name} {count}' for name, count in counts.items() if count) or 'none'
