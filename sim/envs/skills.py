"""Scripted experts of the window, the door, the faucet and the puck.

As those of the drawer (`experts`), they decide from the present state alone, so they also work
right after another subgoal, in mid-motion and after a push. Handles are approached in three
moves: up, over, down; then they are pushed for as long as the hand is on the right side of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Action = NDArray[np.float32]
Vector = NDArray[np.float64]

GAIN = 12.0  # action per metre of error; one unit of action moves the hand 1 cm a tick
LEAD = 0.06  # metres by which the commanded position may lead the hand
OPEN, CLOSE, RELAX = -1.0, 1.0, 0.0  # gripper effort


def open_window(simulator: Any) -> Action:
    """Slide the handle to the right with the closed fingers at its left."""
    handle = simulator.data.site('handleOpenStart').xpos
    return _slide(simulator, handle, 1.0, slide_of(simulator) > 0.197)


def close_window(simulator: Any) -> Action:
    """Slide the handle to the left with the closed fingers at its right."""
    handle = simulator.data.site('handleCloseStart').xpos
    return _slide(simulator, handle, -1.0, slide_of(simulator) < 0.012)


def slide_of(simulator: Any) -> float:
    """How far the window is open, metres: 0 to 0.2."""
    return float(simulator.data.joint('window_slide').qpos[0])


def _slide(simulator: Any, handle: Vector, side: float, done: bool) -> Action:
    ready = handle + np.array([-0.03 * side, -0.03, -0.08])
    hand = simulator.get_endeff_pos()
    gap = hand - ready
    behind = -0.09 < gap[0] * side < 0.035
    if behind and abs(gap[1]) < 0.04 and abs(gap[2]) < 0.04:
        motion = towards(hand, ready)
        motion[0] = 0.0 if done else side
        return act(simulator, motion, CLOSE)
    return act(simulator, approach(hand, ready, 0.25), CLOSE)


def open_faucet(simulator: Any) -> Action:
    """Turn the knob counter-clockwise, as seen from above."""
    return _turn(simulator, 1.0)


def close_faucet(simulator: Any) -> Action:
    """Turn the knob clockwise."""
    return _turn(simulator, -1.0)


def _turn(simulator: Any, side: float) -> Action:
    angle = float(simulator.data.joint('knob_Joint_1').qpos[0])
    radial = np.array([np.sin(angle), -np.cos(angle), 0.0])
    along = side * np.array([np.cos(angle), np.sin(angle), 0.0])
    tip = simulator.data.body('faucet_link2').xpos + 0.14 * radial + np.array([0, 0, 0.02])
    ready = tip - 0.05 * along
    hand = simulator.get_endeff_pos()
    gap = hand - tip
    behind = -0.1 < gap @ along < 0.0
    if behind and abs(gap @ radial) < 0.05 and abs(gap[2]) < 0.05:
        push = 0.0 if side * angle > 1.52 else 1.0
        motion = np.clip(push * along - GAIN * (gap @ radial) * radial, -1, 1)
        motion[2] = -GAIN * gap[2]
        return act(simulator, motion, CLOSE)
    return act(simulator, approach(hand, ready, 0.13), CLOSE)


def open_door(simulator: Any) -> Action:
    """Put the fingers between the handle's bar and the door, then pull."""
    return _swing(simulator, np.array([0.40, -0.065, 0.0]), (-0.11, -0.005), -1.0, -1.45)


def close_door(simulator: Any) -> Action:
    """Put the closed fingers against the door's face above the handle, then push."""
    return _swing(simulator, np.array([0.22, -0.07, 0.1]), (-0.3, 0.02), 1.0, -0.01)


def door_angle(simulator: Any) -> float:
    """How far the door is turned, radians: 0 closed, -1.57 wide open."""
    return float(simulator.data.joint('doorjoint').qpos[0])


def _swing(
    simulator: Any, ready: Vector, depth: tuple[float, float], side: float, until: float
) -> Action:
    """Work on the door's face; `ready` and `depth` (before the face) in the door's own frame."""
    data = simulator.data
    body = data.body('door_link')
    turn, origin = body.xmat.reshape(3, 3), body.xpos
    hand = simulator.get_endeff_pos()
    local = turn.T @ (hand - origin)
    gap = local - ready
    if depth[0] < local[1] < depth[1] and abs(gap[0]) < 0.09 and abs(gap[2]) < 0.045:
        motion = -GAIN * gap
        motion[1] = 0.0 if side * (door_angle(simulator) - until) > 0 else side
        return act(simulator, np.clip(turn @ motion, -1, 1), CLOSE)
    goal = origin + turn @ ready
    return act(simulator, approach(hand, goal, 0.42 - goal[2], near=0.03), CLOSE)


def reach_goal(simulator: Any) -> Action:
    """Bring the fingers to the red mark; what they hold is not dropped."""
    hand, puck = simulator.get_endeff_pos(), simulator.data.body('obj').xpos
    holds = np.linalg.norm(hand - puck) < 0.07 and fingers_apart(simulator) < 0.073
    motion = np.clip(6.0 * (simulator.goal_reach - simulator.tcp_center), -1, 1)
    return act(simulator, motion, CLOSE if holds else RELAX)


def push_puck(simulator: Any) -> Action:
    """Take the puck between the fingers and slide it to the green mark."""
    return _carry(simulator, simulator.goal_push, 0.6)


def place_puck(simulator: Any) -> Action:
    """Grasp the puck and lift it to the blue mark."""
    return _carry(simulator, simulator.goal_place, 1.0)


def _carry(simulator: Any, goal: Vector, effort: float) -> Action:
    hand, puck = simulator.get_endeff_pos(), simulator.data.body('obj').xpos
    above = puck + np.array([-0.005, 0.0, 0.0])
    flat = float(np.linalg.norm((hand - above)[:2]))
    if flat > 0.02:
        near = flat < 0.12 and hand[2] < puck[2] + 0.09
        aim = hand + [0, 0, 0.1] if near else above + [0, 0, 0.12]
        return act(simulator, towards(hand, aim), OPEN)
    if abs(hand[2] - puck[2]) > 0.05:
        return act(simulator, towards(hand, above + [0, 0, 0.03]), OPEN)
    if fingers_apart(simulator) > 0.073:
        return act(simulator, towards(hand, above + [0, 0, 0.03]), effort)
    return act(simulator, np.clip(GAIN * (goal - puck), -1, 1), effort)


def fingers_apart(simulator: Any) -> float:
    """Distance of the two fingers, metres."""
    body = simulator.data.body
    return float(np.linalg.norm(body('rightclaw').xpos - body('leftclaw').xpos))


def towards(hand: Vector, goal: Vector) -> Vector:
    """Straight motion of the hand, at most one unit along each axis."""
    return np.clip(GAIN * (goal - hand), -1.0, 1.0)


def approach(hand: Vector, ready: Vector, clear: float, near: float = 0.025) -> Vector:
    """To `ready` from above; first up to `clear` metres above it, without leaning on anything."""
    flat = float(np.linalg.norm((hand - ready)[:2]))
    if flat < near:
        return towards(hand, ready)
    if hand[2] < ready[2] + clear - 0.04:
        if flat < 2 * near and hand[2] > ready[2] + 0.05:
            return towards(hand, ready)  # put right on the way down
        return np.array([0.0, 0.0, 1.0])
    return towards(hand, ready + [0, 0, clear])


def act(simulator: Any, motion: Vector, effort: float) -> Action:
    """Keep the commanded position near the hand: against a stop it would run away unseen."""
    lead = simulator.data.mocap_pos[0] - simulator.get_endeff_pos()
    motion = np.clip(
        motion,
        (-LEAD - lead) / simulator.action_scale,
        (LEAD - lead) / simulator.action_scale,
    )
    return np.append(np.clip(motion, -1.0, 1.0), effort).astype(np.float32)
