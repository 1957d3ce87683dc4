"""Which subgoals that come over a link count: each once, in order, of the epoch in force."""

from __future__ import annotations

Stamp = tuple[int, int]  # episode and epoch


class SubgoalInbox:
    """Refuses what comes too late or twice.

    A planner numbers its subgoals upwards within an epoch; after a restore it may begin lower.
    """

    def __init__(self) -> None:
        self._stamp: Stamp = (0, 0)
        self._number = 0  # the newest that counted, in that epoch

    def refuse(self, stamp: Stamp, number: int, now: Stamp) -> str:
        """Say why a subgoal does not count; '' = it does, and none before it does any more.

        Args:
            stamp: episode and epoch that it was decided in.
            number: the planner's own, from 1.
            now: episode and epoch in force.
        """
        if stamp != now:
            return f'of episode {stamp[0]}, epoch {stamp[1]}; {now[0]}, {now[1]} is in force'
        if stamp != self._stamp:
            self._stamp, self._number = stamp, 0
        if number <= self._number:
            return f'number {number} after number {self._number}'
        self._number = number
        return ''
