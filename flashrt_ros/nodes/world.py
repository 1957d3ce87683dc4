"""A simulated world behind one small interface, whichever gymnasium environment it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np

import flashrt_sim  # noqa: F401 - registers this package's environments, installed or not
from flashrt_ros.errors import FlashrtError


class WorldError(FlashrtError):
    """The environment is unknown, or has not what the robot's node needs of it."""


class World:
    """One environment, not wrapped: physics on every tick, frames only when asked for.

    It must give a dict observation with ``pixels`` (camera name -> uint8 [H, W, 3]) and
    ``agent_pos`` (float32 [P]), ``info['subgoals']`` (text -> reached), and ``get_state`` and
    ``set_state``. If it has ``step_physics``, ``reset_physics`` and ``render_observation``, frames
    are drawn only when they are needed.

    Args:
        name: A gymnasium id, for example 'flashrt/Drawer-v0'.

    Raises:
        WorldError: There is no such environment, or it lacks one of these.
    """

    def __init__(self, name: str) -> None:
        try:
            self.env: Any = gymnasium.make(name, disable_env_checker=True).unwrapped
        except gymnasium.error.Error as error:
            known = ', '.join(sorted(i for i in gymnasium.registry if i.startswith('flashrt/')))
            raise WorldError(
                f'environment {name!r} cannot be made: {str(error).splitlines()[0]} '
                f'This package has: {known or "none"}'
            ) from None
        for need in ('get_state', 'set_state'):
            if not hasattr(self.env, need):
                raise WorldError(
                    f'environment {name!r} has no {need}(); the robot node needs an exact state'
                )
        self._apart = all(
            hasattr(self.env, part)
            for part in ('step_physics', 'reset_physics', 'render_observation')
        )
        self.action_dim = int(np.prod(self.env.action_space.shape or (1,)))
        self._observation: Any = None
        self.reached: Mapping[str, bool] = {}

    def reset(self, seed: int) -> None:
        """Begin anew from ``seed``."""
        if self._apart:
            info = self.env.reset_physics(seed=seed)
        else:
            self._observation, info = self.env.reset(seed=seed)
        self._note(info)

    def step(self, action: np.ndarray) -> None:
        """Move one control tick; float32 [A]."""
        if self._apart:
            info = self.env.step_physics(action)
        else:
            self._observation, _, _, _, info = self.env.step(action)
        self._note(info)

    def _note(self, info: Mapping[str, Any]) -> None:
        reached = info.get('subgoals', {})
        self.reached = {str(text): bool(done) for text, done in reached.items()}

    def proprioception(self) -> np.ndarray:
        """Return the robot's own state, float32 [P]."""
        if self._apart and hasattr(self.env, 'proprioception'):
            return np.asarray(self.env.proprioception(), np.float32)
        return np.asarray(self._look()['agent_pos'], np.float32)

    def images(self) -> Mapping[str, np.ndarray]:
        """Return what the cameras see: uint8 [H, W, 3] each."""
        return self._look()['pixels']

    def _look(self) -> Any:
        return self.env.render_observation() if self._apart else self._observation

    def get_state(self) -> np.ndarray:
        """Return the whole exact state, uint8 [n]."""
        return np.frombuffer(bytes(self.env.get_state()), np.uint8)

    def set_state(self, state: np.ndarray, reached: Mapping[str, bool]) -> None:
        """Go back to a state of `get_state`; ``reached`` is what held there."""
        self.env.set_state(state)
        self.reached = dict(reached)
        if not self._apart:
            self._observation = self.env.observe()

    def close(self) -> None:
        """Give back windows and contexts."""
        self.env.close()
