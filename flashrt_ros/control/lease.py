"""How long a subgoal counts without word from the planner, and what comes after that."""

from __future__ import annotations

import threading

HOLD, KEEP = 'hold', 'keep'


class SubgoalLease:
    """Control ticks until the live subgoal expires. Thread-safe.

    A planner that is slow or dead delays no tick: the policy goes on with the subgoal it has
    until the lease is over, and does then what was configured.

    Args:
        ticks: Ticks a subgoal counts; 0 = for ever, unless its own message says less.
    """

    def __init__(self, ticks: int = 0) -> None:
        self.ticks = ticks
        self._lock = threading.Lock()
        self._length = 0  # of the lease that runs; 0 = it never ends
        self._ends: int | None = None  # first tick at which it is over; None = not known yet

    def renew(self, valid: int = 0) -> None:
        """The planner means it still: for ``valid`` ticks from the next one, 0 = as configured."""
        with self._lock:
            self._length, self._ends = valid or self.ticks, None

    def expired(self, tick: int) -> bool:
        """Whether the lease is over at ``tick``."""
        with self._lock:
            if not self._length:
                return False
            if self._ends is None:
                self._ends = tick + self._length
            return tick >= self._ends
