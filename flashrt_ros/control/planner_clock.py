"""The planner's own time: control ticks under way, whatever the robot's tick has become.

A planner gives a subgoal so many ticks. Ticks that the robot stood interrupted do not count, and
after a rollback or a retry the count goes on from where the capsule was frozen, though a real
robot's own tick went on.
"""

from __future__ import annotations


class PlannerClock:
    """Maps the robot's tick to ticks under way; its state belongs to the capsule."""

    def __init__(self) -> None:
        self._now = 0
        self._shift: int | None = None  # robot's tick less ticks under way; None = not known yet

    def start(self) -> None:
        """Begin an episode."""
        self._now, self._shift = 0, None

    def at(self, tick: int) -> int:
        """Return the ticks under way at the robot's ``tick``."""
        if self._shift is None:
            self._shift = tick - self._now
        self._now = tick - self._shift
        return self._now

    def state(self) -> dict[str, int]:
        """Return what a capsule keeps."""
        return {'now': self._now}

    def set_state(self, state: dict) -> None:
        """Go on from ``state`` at whatever tick the robot reports next."""
        self._now, self._shift = int(state['now']), None
