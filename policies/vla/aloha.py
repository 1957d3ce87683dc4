"""ALOHA's two arms as π0 was trained on them: joints that turn the other way, grippers as angles.

What openpi's `adapt_to_pi` does (aloha_policy.py of Physical-Intelligence/openpi). A vector holds
six joints and a gripper of the left arm, then of the right one. The robot tells how far a gripper
has moved its fingers, the network knows the angle of the motor behind them. Loads no torch.
"""

from __future__ import annotations

import numpy as np

COUNT = 14
SIGNS = np.tile(np.array([1.0, -1.0, -1.0, 1.0, 1.0, 1.0, 1.0]), 2)
GRIPPERS = np.array([6, 13])
TRAVEL = 0.01844, 0.05800  # of the fingers, closed and open, metres
ARM, HORN = 0.036, 0.022  # lengths of the linkage, metres
ANGLES = 0.5476, 1.6296  # of the motor that the network knows as 0 and 1, radians
COMMANDS = -0.6213, 1.4910  # of the motor that the robot knows as 0 and 1, radians
BELIEVED = -0.4, 1.4  # what a gripper may tell: below, fingers would have passed each other


def seen(state: np.ndarray) -> np.ndarray:
    """Return the robot's state [14] as the network knows it."""
    found = SIGNS * state
    metres = found[GRIPPERS] * (TRAVEL[1] - TRAVEL[0]) + TRAVEL[0]
    sine = (HORN**2 + metres**2 - ARM**2) / (2 * HORN * metres)
    angle = np.arcsin(np.clip(sine, -1.0, 1.0))
    found[GRIPPERS] = (angle - ANGLES[0]) / (ANGLES[1] - ANGLES[0])
    return found


def done() -> tuple[np.ndarray, np.ndarray]:
    """Return gain and shift, float32 [14], that make the network's actions the robot's."""
    gain, shift = SIGNS.copy(), np.zeros(COUNT)
    reach = COMMANDS[1] - COMMANDS[0]
    gain[GRIPPERS] = 1 / reach
    shift[GRIPPERS] = (ANGLES[0] - COMMANDS[0]) / reach  # the network's angles begin at its zero
    return gain.astype(np.float32), shift.astype(np.float32)


def limits(
    low: list[float], high: list[float], gain: np.ndarray, shift: np.ndarray
) -> tuple[list[float], list[float]]:
    """Return limits under a map of each number, lowest first."""
    ends = np.sort(np.array([low, high]) * gain + shift, axis=0)
    return ends[0].tolist(), ends[1].tolist()


def state_limits(low: list[float], high: list[float]) -> tuple[list[float], list[float]]:
    """Return the limits of what the robot tells, of those of what the network knows."""
    low, high = limits(low, high, SIGNS, np.zeros(COUNT))
    for index in GRIPPERS:
        low[index], high[index] = BELIEVED
    return low, high
