"""The demo's video: the recorded simulator states, drawn afterwards."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from flashrt_ros.control import episode as states
from flashrt_ros.nodes.demo.figures import hold_tick
from flashrt_ros.nodes.demo.story import Told

ENVIRONMENT = 'flashrt/Drawer-v0'
REST = 12  # ticks that a standing robot is shown for, at most
EVERY = 2  # ticks from one frame to the next: drawing is slow without a GPU
HZ = 20  # ticks a second


def film(told: Told, path: Path, size: int = 400) -> int:
    """Draw every second tick of both episodes as mp4; return the number of frames.

    Raises:
        SimulationError: A state does not fit the scene.
    """
    from flashrt_sim.rollout.video import Shot, render_states

    shots = []
    resting, seen = 0, (0, -1)
    compared = hold_tick(told)
    for at, msg in told.record.states:
        if not msg.episode or not msg.simulator_state:
            continue
        resting = resting + 1 if (msg.episode, msg.tick) == seen else 0
        seen = (msg.episode, msg.tick)
        state, subgoal = _around(told, at)
        over = state in (states.IDLE, states.FAULT)
        if resting > REST or (over and msg.held and _after_end(told, at) > REST / HZ):
            continue
        mood = {states.RUNNING: '', states.IDLE: 'good', states.FAULT: 'bad'}.get(state, 'busy')
        where = f'episode {msg.episode}, tick {msg.tick}'
        if msg.episode == 2 and compared is not None and msg.tick < compared:
            where = f'the same bytes again, tick {msg.tick}'
        what = subgoal if state == states.RUNNING else 'done' if over else state
        shots.append(Shot(np.frombuffer(bytes(msg.simulator_state), np.uint8), what, where, mood))
    return render_states(ENVIRONMENT, shots[::EVERY], path, size=size, fps=HZ // EVERY)


def _around(told: Told, at: float) -> tuple[str, str]:
    """State of the episode and subgoal at a moment."""
    episodes = [m for t, m in told.record.episodes if t <= at]
    subgoals = [m for t, m in told.record.subgoals if t <= at]
    return (
        episodes[-1].state if episodes else states.IDLE,
        subgoals[-1].text if subgoals else '',
    )


def _after_end(told: Told, at: float) -> float:
    """Seconds since the episode state changed last."""
    return at - max((t for t, _ in told.record.episodes if t <= at), default=at)
