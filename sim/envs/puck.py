"""The puck: reach, push and lift in one scene, judged as MetaWorld's three tasks judge.

MetaWorld shows one of the three goals at a time; here all three are there at once, red, green and
blue as in MetaWorld, and the words say which one is meant.
"""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np
from metaworld.envs.sawyer_pick_place_v3 import SawyerPickPlaceEnvV3

from .fifty import FRONT, WRIST, subgoal_of
from .sawyer import SawyerScene
from .tasks import prepare

_APART = 0.12  # metres: least distance between two goals, and of the puck from the green one


class PuckSimulator(SawyerPickPlaceEnvV3):
    """MetaWorld's pick-place with two more marks, red for the hand and green for the table."""

    def _initialize_simulation(self) -> tuple[Any, Any]:
        spec = mujoco.MjSpec.from_file(self.fullpath)
        for name, rgba in (('goal_reach', [0.8, 0, 0, 1]), ('goal_push', [0, 0.8, 0, 1])):
            site = spec.worldbody.add_site()
            site.name, site.size, site.rgba = name, [0.02, 0.02, 0.02], rgba
        model = spec.compile()
        return model, mujoco.MjData(model)


def _near(place: Any, goal: Any, radius: float) -> bool:
    return bool(np.linalg.norm(place - goal) <= radius)


def is_reached(simulator: Any) -> bool:
    """reach-v3: the middle of the fingers is within 5 cm of the red mark."""
    return _near(simulator.tcp_center, simulator.goal_reach, 0.05)


def is_pushed(simulator: Any) -> bool:
    """push-v3: the puck is within 5 cm of the green mark."""
    return _near(simulator.data.body('obj').xpos, simulator.goal_push, 0.05)


def is_placed(simulator: Any) -> bool:
    """pick-place-v3: the puck is within 7 cm of the blue mark."""
    return _near(simulator.data.body('obj').xpos, simulator.goal_place, 0.07)


class PuckEnv(SawyerScene):
    """`flashrt/Puck-v0`. Starts: 'table' (as MetaWorld's) and 'random' (the hand is elsewhere)."""

    TASK = 'pick-place-v3'
    STARTS = ('table', 'random')
    CAMERAS = {'front': FRONT, 'wrist': WRIST}
    MARKS = True
    SUBGOALS = {
        goal.text: goal
        for goal in (
            subgoal_of('reach', 'table', is_reached),
            subgoal_of('push', 'table', is_pushed),
            subgoal_of('pick-place', 'table', is_placed),
        )
    }

    def _make_simulator(self) -> Any:
        simulator = PuckSimulator()
        for name in ('goal_reach', 'goal_push', 'goal_place'):
            setattr(simulator, name, np.zeros(3))
        return prepare(simulator, seed=0)

    def _place(self, start: str) -> None:
        self._reset_seeded(self._somewhere() if start == 'random' else None)
        simulator, draw = self.simulator, self.np_random.uniform
        place = simulator._target_pos.copy()
        place[2] = max(place[2], 0.1)  # in the air: on the table it would be a push
        puck = simulator.data.body('obj').xpos
        while True:
            reach = draw([-0.1, 0.8, 0.05], [0.1, 0.9, 0.3])
            push = np.append(draw([-0.1, 0.75], [0.1, 0.9]), 0.02)
            pairs = ((reach, push), (reach, place), (push, place), (push, puck))
            if min(np.linalg.norm(a - b) for a, b in pairs) > _APART:
                break
        simulator.goal_reach, simulator.goal_push, simulator.goal_place = reach, push, place
        simulator._target_pos = place
        for name, goal in (('goal_reach', reach), ('goal_push', push), ('goal', place)):
            simulator.model.site(name).pos = goal
        mujoco.mj_forward(simulator.model, simulator.data)
