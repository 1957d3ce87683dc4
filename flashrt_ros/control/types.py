"""What travels through the robot loop: observation, action chunk, command. Numpy only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

# The rhythm of the loop, in control ticks, where nobody says otherwise: a chunk is asked for every
# EXECUTE ticks and takes effect DELAY ticks after its observation (0.3 s at 20 Hz leaves two slow
# cores time to finish it).
EXECUTE = 8
DELAY = 6


@dataclass(frozen=True)
class Observation:
    """What the robot saw at one control tick.

    Attributes:
        images: Camera name -> uint8 [H, W, 3].
        proprio: Joint or hand state, float32 [P], in the policy's order and units.
        tick: Control tick it belongs to; 0 is the first of an episode.
        episode: Episode it belongs to, counted from 1.
        epoch: Raised by every reset, interrupt, rollback and re-entry.
        age: How old it was when it was handed over, in seconds.
    """

    images: Mapping[str, np.ndarray]
    proprio: np.ndarray
    tick: int
    episode: int
    epoch: int
    age: float = 0.0


@dataclass(frozen=True)
class Chunk:
    """What one inference gave.

    Attributes:
        actions: float32 [H, A]; ``actions[i]`` is for control tick ``tick + i``.
        tick: Tick of the observation it was computed from.
        due: Tick from which it takes effect.
        episode: Episode it belongs to.
        epoch: Epoch it was computed in.
        generation: Generation of the subgoal that was live during the inference.
        latency_ms: Wall time from observation in to chunk out, milliseconds.
        late: It came after ``due`` had been served.
    """

    actions: np.ndarray
    tick: int
    due: int
    episode: int
    epoch: int
    generation: int = 0
    latency_ms: float = 0.0
    late: bool = False


@dataclass(frozen=True)
class Command:
    """One action for one control tick.

    Attributes:
        action: float32 [A], in the robot's order, units and limits.
        tick: Control tick it is for; -1 is a hold for whatever tick comes.
        episode: Episode it belongs to.
        epoch: Epoch it was computed in.
        generation: Generation of the subgoal it was computed under.
        held: No motion is asked for, or it was refused.
        reason: Why it is a hold, in words; empty otherwise.
    """

    action: np.ndarray
    tick: int
    episode: int
    epoch: int
    generation: int = 0
    held: bool = False
    reason: str = ''


@dataclass(frozen=True)
class HoldRule:
    """How this robot stands still.

    A robot moved by displacements holds with zeros, one moved by positions holds with its last
    action. ``keep`` names the entries that keep their last value; the others become ``rest``.

    Attributes:
        action_dim: Numbers in one action.
        keep: Entries that keep their last value (drawer scene: the gripper, ``(3,)``).
        rest: What the other entries become.
    """

    action_dim: int
    keep: tuple[int, ...] = ()
    rest: float = 0.0
    _mask: np.ndarray = field(init=False, repr=False, compare=False, default=None)  # type: ignore

    def __post_init__(self) -> None:
        mask = np.zeros(self.action_dim, dtype=bool)
        for index in self.keep:
            if not -self.action_dim <= index < self.action_dim:
                raise ValueError(
                    f'hold: entry {index} is kept, but an action has entries 0 to '
                    f'{self.action_dim - 1}'
                )
            mask[index] = True
        object.__setattr__(self, '_mask', mask)

    def __call__(self, last: Iterable[float] | np.ndarray) -> np.ndarray:
        """Return the hold that follows the action ``last`` [A]: float32 [A]."""
        values = np.asarray(last, dtype=np.float32)
        return np.where(self._mask, values, np.float32(self.rest)).astype(np.float32)

    def neutral(self) -> np.ndarray:
        """Return the hold of a robot that has not moved yet: zeros, float32 [A]."""
        return self(np.zeros(self.action_dim, dtype=np.float32))
