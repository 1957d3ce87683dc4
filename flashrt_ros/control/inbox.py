"""Which subgoals that come over a link count: each once, in order, of the epoch in force."""

from __future__ import annotations

Stamp = tuple[int, int]  # episode and epoch


class SubgoalInbox:
    """Refuses what comes too late or twice, and takes up what was missed.

    A planner numbers its subgoals upwards within an epoch; after a restore it may begin lower. It
    may tell one again: after a restore, or to renew it.
    """

    def __init__(self) -> None:
        self._stamp: Stamp = (0, 0)
        self._number = 0  # the newest that was heard of, in that epoch

    def refuse(self, stamp: Stamp, now: Stamp, number: int, tick: int, working: bool) -> str:
        """Say why a subgoal is not to be posted; '' = it is.

        Args:
            stamp: episode and epoch that it was decided in.
            now: episode and epoch in force.
            number: the planner's own, from 1.
            tick: of the decision; -1 where it is told again after a restore.
            working: the policy works on it already.
        """
        if stamp != now:
            return f'of episode {stamp[0]}, epoch {stamp[1]}; {now[0]}, {now[1]} is in force'
        if stamp != self._stamp:
            self._stamp, self._number = stamp, 0
        first = number > self._number
        if number < self._number:
            return f'number {number} after number {self._number}'
        self._number = number
        return '' if (first and tick >= 0) or not working else 'it is being worked on'
