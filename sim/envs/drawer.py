"""The drawer: opened and closed in one scene, judged as MetaWorld's two drawer tasks judge.

A policy may be asked for one after the other. The green goal marker of MetaWorld is not drawn.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .rendering import Camera
from .sawyer import SawyerScene
from .subgoals import Subgoal

_OPEN_DISTANCE = 0.2  # metres; drawer-open-v3's maxDist: how far the handle has to come
_CLOSE_START = -0.15  # metres; drawer-close-v3 starts with the drawer pulled out this far
_FULLY_OPEN = -0.16  # metres; where the joint ends


def handle_position(simulator: Any) -> NDArray[np.float64]:
    """Middle of the drawer's handle, metres; [3]."""
    return simulator.data.body('drawer_link').xpos + np.array([0.0, -0.16, 0.0])


def is_open(simulator: Any) -> bool:
    """drawer-open-v3: the handle is within 3 cm of 20 cm in front of its closed position."""
    target = simulator.model.body('drawer').pos + [0.0, -0.16 - _OPEN_DISTANCE, 0.09]
    return bool(np.linalg.norm(handle_position(simulator) - target) <= 0.03)


def is_closed(simulator: Any) -> bool:
    """drawer-close-v3: its point above the handle is within 6.5 cm of the closed position."""
    target = simulator.model.body('drawer').pos + [0.0, -0.16, 0.09]
    point = handle_position(simulator) + [0.0, 0.0, 0.05]
    return bool(np.linalg.norm(point - target) <= 0.05 + 0.015)


class DrawerEnv(SawyerScene):
    """`flashrt/Drawer-v0`. Starts: 'closed', 'open' (as MetaWorld's tasks start) and 'random'.

    'random' pulls the drawer out by any amount and puts the hand anywhere above the table, so
    that it also covers the middle of a motion.
    """

    TASK = 'drawer-open-v3'
    STARTS = ('closed', 'open', 'random')
    SUBGOALS = {
        'open the drawer': Subgoal(
            'open the drawer',
            is_open,
            start='closed',
            paraphrases=(
                'pull the drawer open',
                'open drawer',
                'slide the drawer out',
                'pull out the drawer',
                'please open the drawer',
                'get the drawer open',
                'pull the handle until the drawer is open',
            ),
            held_out=('draw the drawer out', 'make sure the drawer is open', 'open up the drawer'),
        ),
        'close the drawer': Subgoal(
            'close the drawer',
            is_closed,
            start='open',
            paraphrases=(
                'push the drawer closed',
                'close drawer',
                'slide the drawer in',
                'push in the drawer',
                'please close the drawer',
                'get the drawer closed',
                'push the handle until the drawer is closed',
            ),
            held_out=('shut the drawer', 'make sure the drawer is closed', 'close up the drawer'),
        ),
    }
    CAMERAS = {
        'front': Camera(lookat=(0.0, 0.66, 0.14), distance=1.05, azimuth=150.0, elevation=-32.0),
        'wrist': Camera('gripperPOV'),
    }

    @property
    def drawer(self) -> float:
        """How far the drawer is pulled out, metres: 0 closed, 0.16 fully open."""
        return -float(self.simulator.data.joint('goal_slidey').qpos[0])

    def _place(self, start: str) -> None:
        hand, pulled = None, {'closed': 0.0, 'open': _CLOSE_START}.get(start, 0.0)
        if start == 'random':
            hand = self.np_random.uniform([-0.2, 0.45, 0.1], [0.2, 0.75, 0.3])
            pulled = self.np_random.uniform(_FULLY_OPEN, 0.0)
        self._reset_simulator(hand)
        self._set_joint('goal_slidey', pulled)
