"""Scripted experts: from anywhere in the scene to a subgoal, by looking at the simulator.

They keep the waypoints of MetaWorld's own scripted policies (above the handle, down, pull; up,
in front of the handle, down, push) but decide from the present state alone, so they also work
right after another subgoal, in mid-motion and after a perturbation. Each is a function from the
bare simulator to a clean action, float32 [4] in [-1, 1].
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import unknown
from . import skills
from .drawer import handle_position
from .fifty import TaskEnv
from .scene import SceneEnv

Action = NDArray[np.float32]
Vector = NDArray[np.float64]
Expert = Callable[[Any], Action]

_GAIN = 12.0  # action per metre of error; one unit of action moves the hand 1 cm a tick
_CLEAR = 0.10  # metres above the handle at which the open fingers pass over it
_CRUISE = 0.13  # metres above the handle at which the hand travels
_LEAD = 0.06  # metres by which the commanded position may lead the hand
_OPEN, _CLOSE = -1.0, 1.0  # gripper effort


def open_drawer(simulator: Any) -> Action:
    """Put one finger behind the handle, then pull; hold still once the drawer is open."""
    hand, finger = _relative(simulator)
    goal = np.array([0.0, -0.006, 0.0])  # the finger hangs in the middle of the handle's gap
    behind = 0.016 < finger[1] < 0.075
    motion = _towards(hand, goal)
    if behind and hand[2] < 0.045 and abs(hand[0]) < 0.05:
        motion[1] = -1.0
        if _pulled(simulator) > 0.17:
            motion[:] = 0.0
    elif np.abs(hand - goal)[:2].max() < (0.02 if hand[2] > _CLEAR else 0.035) and (
        behind or hand[2] > 0.07
    ):
        # Aligned above the handle; a disturbance on the way down is put right on the way down.
        motion = _towards(hand, goal - [0, 0, 0.03])
    else:
        motion = _travel(simulator, hand, goal)
    # Opened in front of the handle, the rear finger would press against it.
    below = hand[2] < 0.06 and hand[1] > -0.06 and finger[1] < 0.01
    return _action(simulator, motion, _CLOSE if below else _OPEN)


def close_drawer(simulator: Any) -> Action:
    """Put the closed fingers in front of the handle, then push; hold still once it is closed."""
    hand, finger = _relative(simulator)
    goal = np.array([0.0, -0.085, 0.015])
    motion = _towards(hand, goal)
    in_front = finger[1] < 0.004 and abs(hand[0]) < 0.05
    if in_front and -0.05 < hand[2] < 0.05:
        motion[1] = 1.0
        if _pulled(simulator) < 0.006:
            motion[:] = 0.0
    elif not in_front or hand[1] > -0.05:
        motion = _travel(simulator, hand, goal)
    # Closed around the handle, the fingers would hold on to it.
    around = hand[2] < 0.07 and abs(hand[0]) < 0.07 and 0.004 < finger[1] < 0.08
    return _action(simulator, motion, _OPEN if around else _CLOSE)


# The skills of the scenes with several subgoals.
EXPERTS: dict[str, Expert] = {
    'open the drawer': open_drawer,
    'close the drawer': close_drawer,
    'open the window': skills.open_window,
    'close the window': skills.close_window,
    'open the door': skills.open_door,
    'close the door': skills.close_door,
    'open the faucet': skills.open_faucet,
    'close the faucet': skills.close_faucet,
    'reach the red goal': skills.reach_goal,
    'push the puck to the green goal': skills.push_puck,
    'pick up the puck and hold it at the blue goal': skills.place_puck,
}


def expert_for(subgoal: str, scene: SceneEnv | None = None) -> Expert:
    """The expert that reaches `subgoal`; MetaWorld's own where `scene` is one of its tasks.

    Raises:
        SimulationError: if there is none.
    """
    if isinstance(scene, TaskEnv):
        return _metaworld(scene.TASK)
    if subgoal not in EXPERTS:
        raise unknown('subgoal', subgoal, EXPERTS)
    return EXPERTS[subgoal]


@functools.cache
def _metaworld(task: str) -> Expert:
    """MetaWorld's scripted policy of a task, which looks at nothing but the present state."""
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # its gains are meant to exceed the limits of an action
        from metaworld.policies import ENV_POLICY_MAP

    policy = ENV_POLICY_MAP[task]()

    def expert(simulator: Any) -> Action:
        now = simulator._prev_obs  # of the state as it is: what the last step or reset saw
        seen = np.hstack((now, now, simulator._get_pos_goal()))
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            action = policy.get_action(seen)
        return np.clip(action, -1.0, 1.0).astype(np.float32)

    return expert


def _relative(simulator: Any) -> tuple[Vector, Vector]:
    """Hand and rear finger as seen from the handle, metres; [3] each."""
    handle = handle_position(simulator)
    finger = simulator.data.site('leftEndEffector').xpos
    return simulator.get_endeff_pos() - handle, finger - handle


def _pulled(simulator: Any) -> float:
    """How far the drawer is out, metres."""
    return -float(simulator.data.joint('goal_slidey').qpos[0])


def _towards(hand: Vector, goal: Vector) -> Vector:
    return np.clip(_GAIN * (goal - hand), -1.0, 1.0)


def _travel(simulator: Any, hand: Vector, goal: Vector) -> Vector:
    """To above `goal`; straight up first, without leaning on anything on the way."""
    if hand[2] > _CLEAR:
        return _towards(hand, goal + [0, 0, _CRUISE])
    motion = -0.3 * _lead(simulator) / simulator.action_scale
    motion[2] = 2 * _GAIN * (_CRUISE - hand[2])
    return np.clip(motion, -1.0, 1.0)


def _lead(simulator: Any) -> Vector:
    """From the hand to the position it is commanded to, metres; [3]."""
    return simulator.data.mocap_pos[0] - simulator.get_endeff_pos()


def _action(simulator: Any, motion: Vector, effort: float) -> Action:
    """Keep the commanded position near the hand: against a stop it would run away unseen."""
    lead, scale = _lead(simulator), simulator.action_scale
    motion = np.clip(motion, (-_LEAD - lead) / scale, (_LEAD - lead) / scale)
    return np.append(np.clip(motion, -1.0, 1.0), effort).astype(np.float32)
