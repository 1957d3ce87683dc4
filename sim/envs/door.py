"""The door: opened and closed in one scene, judged as MetaWorld's two door tasks judge."""

from __future__ import annotations

from typing import Any

import numpy as np

from .fifty import FRONT, WRIST, subgoal_of
from .sawyer import SawyerScene


def is_open(simulator: Any) -> bool:
    """door-open-v3: the handle is within 8 cm, along x, of 30 cm to the left of the door."""
    handle, door = simulator.data.geom('handle').xpos, simulator.model.body('door').pos
    return bool(abs(handle[0] - (door[0] - 0.3)) <= 0.08)


def is_closed(simulator: Any) -> bool:
    """door-close-v3: the handle is within 8 cm of its place at the closed door's front."""
    handle, door = simulator.data.geom('handle').xpos, simulator.model.body('door').pos
    return bool(np.linalg.norm(handle - door - [0.2, -0.2, 0.0]) <= 0.08)


class DoorEnv(SawyerScene):
    """`flashrt/Door-v0`. Starts: 'closed' and 'open' (MetaWorld's), 'random' (anything)."""

    TASK = 'door-open-v3'
    STARTS = ('closed', 'open', 'random')
    CAMERAS = {'front': FRONT, 'wrist': WRIST}
    SUBGOALS = {
        goal.text: goal
        for goal in (
            subgoal_of('door-open', 'closed', is_open),
            subgoal_of('door-close', 'open', is_closed),
        )
    }

    def _place(self, start: str) -> None:
        random = start == 'random'
        hand = self._somewhere() if random else None
        if start == 'open':
            hand = np.array([-0.5, 0.6, 0.2])  # as door-close-v3
        if random:
            hand[2] = max(hand[2], 0.3)  # type: ignore[index]  # the door may stand anywhere
        self._reset_simulator(hand)
        angle = self.np_random.uniform(-1.57, 0.0) if random else 0.0
        self._set_joint('doorjoint', -1.5708 if start == 'open' else angle)
