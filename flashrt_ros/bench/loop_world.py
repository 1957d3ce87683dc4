"""A robot that costs nothing to simulate, for `flashrt bench loop`.

The hand goes where it is told and the cameras show pictures drawn beforehand, so what is measured
is the loop: ROS, policy, planner, gate and supervisor, as beside a real arm with real cameras.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

SIDE, PICTURES = 96, 16  # pixels; pictures that are shown in turn
SKILLS = ('open the drawer', 'close the drawer')


class LoopWorld(gymnasium.Env):
    """A hand before two cameras; no subgoal is ever reached, so an episode never ends."""

    def __init__(self) -> None:
        self.action_space = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
        rng = np.random.default_rng(0)
        self._pictures = rng.integers(0, 256, (PICTURES, SIDE, SIDE, 3), np.uint8)
        self.hand = np.zeros(4)
        self.ticks = 0

    def observe(self) -> dict[str, Any]:
        """Return what is seen now."""
        front, wrist = (self._pictures[(self.ticks + i) % PICTURES] for i in (0, 5))
        return {'pixels': {'front': front, 'wrist': wrist}, 'agent_pos': self.hand.astype('f')}

    def _info(self) -> dict[str, Any]:
        return {'subgoals': dict.fromkeys(SKILLS, False)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict, dict]:
        """Begin."""
        super().reset(seed=seed)
        self.hand, self.ticks = np.zeros(4), 0
        return self.observe(), self._info()

    def step(self, action: np.ndarray) -> tuple[dict, float, bool, bool, dict]:
        """Move."""
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


gymnasium.register('Loop-v0', f'{__name__}:LoopWorld')
