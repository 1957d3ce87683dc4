"""The window: opened and closed in one scene, judged as MetaWorld's two window tasks judge."""

from __future__ import annotations

from typing import Any

from .fifty import FRONT, WRIST, subgoal_of
from .sawyer import SawyerScene
from .skills import slide_of


def is_open(simulator: Any) -> bool:
    """window-open-v3: the handle's left is within 5 cm of 20 cm to the right of the window."""
    return abs(slide_of(simulator) - 0.04 - 0.2) <= 0.05


def is_closed(simulator: Any) -> bool:
    """window-close-v3: the handle's right is within 5 cm of the window's middle."""
    return abs(slide_of(simulator) + 0.01) <= 0.05


class WindowEnv(SawyerScene):
    """`flashrt/Window-v0`. Starts: 'closed' and 'open' (MetaWorld's), 'random' (anything)."""

    TASK = 'window-open-v3'
    STARTS = ('closed', 'open', 'random')
    CAMERAS = {'front': FRONT, 'wrist': WRIST}
    SUBGOALS = {
        goal.text: goal
        for goal in (
            subgoal_of('window-open', 'closed', is_open),
            subgoal_of('window-close', 'open', is_closed),
        )
    }

    def _place(self, start: str) -> None:
        random = start == 'random'
        self._reset_simulator(self._somewhere() if random else None)
        slide = self.np_random.uniform(0.0, 0.2) if random else {'closed': 0.0, 'open': 0.2}[start]
        self._set_joint('window_slide', slide)
