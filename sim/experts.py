"""Scripted experts: from anywhere in the scene to a subgoal, by looking at the simulator.

They keep the waypoints of MetaWorld's own scripted policies (above the handle, down, pull; up,
in front of the handle, down, push) but decide from the present state alone, so they also work
right after another subgoal, in mid-motion and after a perturbation. Each is a function from the
bare simulator to a clean action, float32 [4] in [-1, 1].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .drawer import handle_position
from .errors import unknown

Action = NDArray[np.float32]
Expert = Callable[[Any], Action]

_GAIN = 12.0  # action per metre of error; one unit of action moves the hand 1 cm a tick
_CLEAR = 0.10  # metres above the handle at which the open fingers pass over it
_CRUISE = 0.13  # metres above the handle at which the hand travels
_OPEN, _CLOSE = -1.0, 1.0  # gripper effort


def open_drawer(simulator: Any) -> Action:
    """Put one finger behind the handle, then pull."""
    hand, finger = _relative(simulator)
    goal = np.array([0.0, -0.006, 0.0])  # the finger hangs in the middle of the handle's gap
    hooked = hand[2] < 0.045 and abs(hand[0]) < 0.05 and 0.016 < finger[1] < 0.075
    if hooked:
        motion = _towards(hand, goal)
        motion[1] = -1.0
        return _action(motion, _OPEN)
    above = abs(hand[0]) < 0.03 and abs(hand[1] - goal[1]) < 0.02
    if above:
        return _action(_towards(hand, goal - [0, 0, 0.03]), _OPEN)
    if hand[2] < _CLEAR:
        return _rise(hand, _OPEN)
    return _action(_towards(hand, goal + [0, 0, _CRUISE]), _OPEN)


def close_drawer(simulator: Any) -> Action:
    """Put the closed fingers in front of the handle, then push."""
    hand, finger = _relative(simulator)
    goal = np.array([0.0, -0.085, 0.015])
    in_front = finger[1] < 0.004 and abs(hand[0]) < 0.05
    if in_front and -0.05 < hand[2] < 0.05:
        motion = _towards(hand, goal)
        motion[1] = 1.0
        return _action(motion, _CLOSE)
    if in_front and hand[1] < -0.05:
        return _action(_towards(hand, goal), _CLOSE)
    if hand[2] < _CLEAR:
        return _rise(hand, _CLOSE)
    return _action(_towards(hand, goal + [0, 0, _CRUISE]), _CLOSE)


EXPERTS: dict[str, Expert] = {
    'open the drawer': open_drawer,
    'close the drawer': close_drawer,
}


def expert_for(subgoal: str) -> Expert:
    """The expert that reaches `subgoal`.

    Raises:
        SimulationError: if there is none.
    """
    if subgoal not in EXPERTS:
        raise unknown('subgoal', subgoal, EXPERTS)
    return EXPERTS[subgoal]


def _relative(simulator: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Hand and rear finger as seen from the handle, metres; [3] each."""
    handle = handle_position(simulator)
    finger = simulator.data.site('leftEndEffector').xpos
    return simulator.get_endeff_pos() - handle, finger - handle


def _towards(hand: NDArray[np.float64], goal: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.clip(_GAIN * (goal - hand), -1.0, 1.0)


def _rise(hand: NDArray[np.float64], effort: float) -> Action:
    """Straight up, so that nothing is dragged along."""
    up = np.clip(2 * _GAIN * (_CRUISE - hand[2]), 0.0, 1.0)
    return _action(np.array([0.0, 0.0, up]), effort)


def _action(motion: NDArray[np.float64], effort: float) -> Action:
    return np.append(motion, effort).astype(np.float32)
