"""Small worlds for the node tests.

The hand moves as it is told. In `toy_world:Toy-v0` "open the drawer" is reached at tick 24 and
"close the drawer" at 48; `toy_world:Faulty-v0` also reports NaN at some ticks, and in
`toy_world:Endless-v0` nothing is ever reached; in `toy_world:Slow-v0` the second never is;
`toy_world:Stalling-v0` takes long for one of its ticks.
"""

from __future__ import annotations

import threading
from typing import Any

import gymnasium
import numpy as np

OPEN_AT, CLOSED_AT = 24, 48
FAULT = range(12, 15)  # ticks at which the faulty world's proprioception is NaN
STALL, STALL_S = 36, 0.5  # the tick that takes the stalling world long, and how long, in seconds


class ToyWorld(gymnasium.Env):
    """A hand in an empty room; its state is five numbers."""

    def __init__(
        self,
        faulty: bool = False,
        endless: bool = False,
        slow: bool = False,
        stalling: bool = False,
    ) -> None:
        self.faulty = faulty
        self.endless = endless
        self.slow = slow
        self.stalling = stalling
        self.action_space = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
        self.hand = np.zeros(4)
        self.ticks = 0

    def observe(self) -> dict[str, Any]:
        """Return what is seen now."""
        image = np.full((8, 8, 3), self.ticks % 251, np.uint8)
        hand = self.hand.astype(np.float32)
        if self.faulty and self.ticks in FAULT:
            hand[1] = np.nan
        return {'pixels': {'front': image, 'wrist': 255 - image}, 'agent_pos': hand}

    def _info(self) -> dict[str, Any]:
        return {
            'subgoals': {
                'open the drawer': self.ticks >= OPEN_AT and not self.endless,
                'close the drawer': self.ticks >= CLOSED_AT and not (self.endless or self.slow),
            }
        }

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict, dict]:
        """Begin."""
        super().reset(seed=seed)
        self.hand = self.np_random.uniform(-0.1, 0.1, 4)
        self.ticks = 0
        return self.observe(), self._info()

    def step(self, action: np.ndarray) -> tuple[dict, float, bool, bool, dict]:
        """Move."""
        if self.stalling and self.ticks == STALL:
            threading.Event().wait(STALL_S)
        self.hand = self.hand * 0.9 + 0.1 * np.asarray(action, np.float64)
        self.ticks += 1
        return self.observe(), 0.0, False, False, self._info()

    def get_state(self) -> np.ndarray:
        """Return everything."""
        return np.frombuffer(np.append(self.hand, self.ticks).tobytes(), np.uint8)

    def set_state(self, state: np.ndarray) -> None:
        """Put it back."""
        values = np.frombuffer(bytes(state), np.float64)
        self.hand, self.ticks = values[:4].copy(), int(values[4])


gymnasium.register('Toy-v0', ToyWorld)
gymnasium.register('Faulty-v0', lambda: ToyWorld(faulty=True))
gymnasium.register('Endless-v0', lambda: ToyWorld(endless=True))
gymnasium.register('Slow-v0', lambda: ToyWorld(slow=True))
gymnasium.register('Stalling-v0', lambda: ToyWorld(stalling=True))
