"""The faucet: opened and closed in one scene, judged as MetaWorld's two faucet tasks judge."""

from __future__ import annotations

from typing import Any

import numpy as np

from .fifty import FRONT, WRIST, subgoal_of
from .sawyer import SawyerScene


def is_open(simulator: Any) -> bool:
    """faucet-open-v3: the knob's end is within 7 cm of its place at the right."""
    end = simulator.data.site('handleStartOpen').xpos + [-0.04, 0.0, 0.02]
    target = simulator.model.body('faucetBase').pos + [0.175, 0.0, 0.125]
    return bool(np.linalg.norm(end - target) <= 0.07)


def is_closed(simulator: Any) -> bool:
    """faucet-close-v3: the knob's end is within 7 cm of its place at the left."""
    end = simulator.data.site('handleStartClose').xpos + [0.0, 0.0, -0.01]
    target = simulator.model.body('faucetBase').pos + [-0.175, 0.0, 0.125]
    return bool(np.linalg.norm(end - target) <= 0.07)


class FaucetEnv(SawyerScene):
    """`flashrt/Faucet-v0`. Starts: 'middle' (MetaWorld's) and 'random' (anything)."""

    TASK = 'faucet-open-v3'
    STARTS = ('middle', 'random')
    CAMERAS = {'front': FRONT, 'wrist': WRIST}
    SUBGOALS = {
        goal.text: goal
        for goal in (
            subgoal_of('faucet-open', 'middle', is_open),
            subgoal_of('faucet-close', 'middle', is_closed),
        )
    }

    def _place(self, start: str) -> None:
        random = start == 'random'
        self._reset_simulator(self._somewhere() if random else None)
        self._set_joint('knob_Joint_1', self.np_random.uniform(-1.5, 1.5) if random else 0.0)
