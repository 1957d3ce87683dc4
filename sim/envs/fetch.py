"""The Fetch arm of gymnasium-robotics: the second family, with the keys of the first one.

Physics, goals, seeds and success are the family's own: `flashrt/FetchPush-v0` with a seed is
`FetchPush-v4` with that seed. It reads positions that its last substep has left one substep
behind the joints, so those belong to a state as well.
"""

from __future__ import annotations

from typing import Any, ClassVar

import mujoco
import numpy as np
from numpy.typing import NDArray

from ..errors import SimulationError
from .rendering import Camera
from .scene import SceneEnv
from .state import SimulatorState
from .subgoals import Subgoal

_NEAR = 0.05  # metres; the family's threshold, within which a goal is reached
_OPEN = 0.1  # metres between the fingers of an open gripper
# Modules and tables of names that the family keeps as attributes.
_CONSTANT = ('_mujoco', '_utils', '_model_names')
# Everything that follows from the joints and is read before the next step computes it anew.
_LAGGING = (
    'xpos', 'xquat', 'xmat', 'xipos', 'ximat', 'geom_xpos', 'geom_xmat', 'site_xpos', 'site_xmat',
    'cam_xpos', 'cam_xmat', 'light_xpos', 'light_xdir', 'subtree_com', 'cdof',
)  # fmt: skip


def _distance(simulator: Any, site: str) -> float:
    return float(np.linalg.norm(simulator.data.site(site).xpos - simulator.goal))


def is_reached(simulator: Any) -> bool:
    """The gripper is within 5 cm of the goal."""
    return _distance(simulator, 'robot0:grip') < _NEAR


def is_brought(simulator: Any) -> bool:
    """The object is within 5 cm of the goal."""
    return _distance(simulator, 'object0') < _NEAR


class FetchEnv(SceneEnv):
    """A Fetch task; its one start is the family's own.

    `agent_pos` is the gripper's x, y, z in metres and its opening from 0 to 1. An action's 1 moves
    the gripper by up to 5 cm a tick; it opens at 1.
    """

    MODULE: ClassVar[str]
    STARTS = ('task',)
    MARKS = True
    BOUNDS = ([0, -1, -1, 0], [3, 2, 2, 1])
    CAMERAS = {
        'front': Camera(lookat=(1.3, 0.75, 0.5), distance=1.0, azimuth=145.0, elevation=-32.0),
        # The model's own camera at the gripper sees a blank table or the inside of a link.
        'wrist': Camera(follow='robot0:gripper_link', lookat=(0.02, 0.0, -0.02), distance=0.45,
                        azimuth=180.0, elevation=-50.0),
    }  # fmt: skip
    metadata = {'render_modes': ['rgb_array'], 'render_fps': 25}

    def proprioception(self) -> NDArray[np.float32]:
        """Gripper x, y, z (metres) and opening (0 to 1); float32 [4]."""
        data = self.simulator.data
        fingers = sum(data.joint(f'robot0:{s}_gripper_finger_joint').qpos[0] for s in 'lr')
        hand = data.site('robot0:grip').xpos
        return np.append(hand, np.clip(fingers / _OPEN, 0.0, 1.0)).astype(np.float32)

    def _make_simulator(self) -> Any:
        try:
            import importlib

            module = importlib.import_module(f'gymnasium_robotics.envs.fetch.{self.MODULE}')
        except ImportError as error:
            raise SimulationError(
                f'{type(self).__name__} needs gymnasium-robotics ({error}); '
                "pip install 'flashrt_ros[fetch]'"
            ) from None
        return getattr(module, f'MujocoFetch{type(self).__name__}')()

    def _make_state(self) -> SimulatorState:
        return SimulatorState(self.simulator, _CONSTANT, _LAGGING)

    def _advance(self, action: NDArray[np.float32]) -> float:
        seen = self.simulator.step(action)[0]
        # The family's dense reward: metres to the goal, negative.
        return -float(np.linalg.norm(seen['achieved_goal'] - seen['desired_goal']))

    def _place(self, start: str) -> None:
        simulator = self.simulator
        random = simulator.np_random.bit_generator
        random.state = self.np_random.bit_generator.state
        simulator.reset()
        self.np_random.bit_generator.state = random.state
        self._show_goal()

    def _show_goal(self) -> None:
        """Put the drawn mark where the goal is, without computing anything anew."""
        model, data = self.simulator.model, self.simulator.data
        mark = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_SITE, 'target0')
        model.site_pos[mark] = self.simulator.goal - data.xpos[model.site_bodyid[mark]]
        data.site_xpos[mark] = self.simulator.goal


class ReachEnv(FetchEnv):
    """`flashrt/FetchReach-v0`."""

    MODULE = 'reach'
    SUBGOALS = {
        'reach the red mark': Subgoal(
            'reach the red mark',
            is_reached,
            start='task',
            paraphrases=('move the gripper to the red mark', 'go to the red mark'),
            held_out=('bring the hand to the red ball',),
        )
    }


class PushEnv(FetchEnv):
    """`flashrt/FetchPush-v0`."""

    MODULE = 'push'
    SUBGOALS = {
        'push the block to the red mark': Subgoal(
            'push the block to the red mark',
            is_brought,
            start='task',
            paraphrases=('push the block onto the red mark', 'move the block to the red mark'),
            held_out=('shove the block over to the red mark',),
        )
    }


class SlideEnv(FetchEnv):
    """`flashrt/FetchSlide-v0`; the goal lies beyond the arm's reach."""

    MODULE = 'slide'
    CAMERAS = FetchEnv.CAMERAS | {
        'front': Camera(lookat=(1.2, 0.75, 0.4), distance=1.6, azimuth=145.0, elevation=-38.0)
    }
    SUBGOALS = {
        'slide the puck to the red mark': Subgoal(
            'slide the puck to the red mark',
            is_brought,
            start='task',
            paraphrases=('hit the puck so that it slides to the red mark',),
            held_out=('strike the puck towards the red mark',),
        )
    }


class PickAndPlaceEnv(FetchEnv):
    """`flashrt/FetchPickAndPlace-v0`; the goal may hang in the air."""

    MODULE = 'pick_and_place'
    SUBGOALS = {
        'lift the block to the red mark': Subgoal(
            'lift the block to the red mark',
            is_brought,
            start='task',
            paraphrases=('pick up the block and bring it to the red mark',),
            held_out=('carry the block to the red mark',),
        )
    }
