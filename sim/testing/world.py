"""A world without physics: enough of one for a planner to plan by and a policy to look at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flashrt_ros.control.planner import Facts
from flashrt_ros.control.types import Command


class World:
    """A subgoal is reached after some ticks of motion under it; pictures change with the tick.

    Write your own with the same three methods to test against a simulator.

    Args:
        spec: of the policy that looks at it.
        ticks: of motion under a subgoal until it is reached.
    """

    def __init__(self, spec: Any, ticks: int = 20) -> None:
        self._spec, self._ticks = spec, ticks
        self._moved = dict.fromkeys(spec.skills, 0)

    def observe(self, tick: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Images (camera -> uint8 [H, W, 3]) and proprioception (float32 [P]) of a tick."""
        spec = self._spec
        hw = getattr(spec, 'hw', lambda camera: spec.image_hw)
        images = {c: np.full((*hw(c), 3), tick % 256, np.uint8) for c in spec.cameras}
        return images, np.full(spec.proprio_dim, (tick % 100) / 100, np.float32)

    def facts(self) -> Facts:
        """What the robot reports to the planner."""
        return Facts({skill: moved >= self._ticks for skill, moved in self._moved.items()})

    def step(self, command: Command, subgoal: str) -> None:
        """Move by a command that was computed under `subgoal`."""
        if subgoal in self._moved and not command.held:
            # What moves towards one subgoal moves away from the others.
            others: Sequence[str] = [name for name in self._moved if name != subgoal]
            self._moved.update(dict.fromkeys(others, 0))
            self._moved[subgoal] += 1
