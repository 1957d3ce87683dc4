"""Ticks on the monotonic clock, and the age of what should keep coming.

As in ros2_control, an overrun is counted and its ticks are skipped; they are never made up in a
burst, for a robot that gets three commands at once jumps.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

Clock = Callable[[], float]


@dataclass
class TickScheduler:
    """When the next tick is due, and how many were missed.

    Attributes:
        period: Seconds from one tick to the next.
        clock: Monotonic seconds.
        served: Ticks served since `start`.
        missed: Ticks skipped since `start`, because the one before overran.
        lateness: How late the tick served last began, in seconds.
    """

    period: float
    clock: Clock = time.monotonic
    served: int = 0
    missed: int = 0
    lateness: float = 0.0
    _due: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        if self.period <= 0:
            raise ValueError(f'a tick period of {self.period} s; it must be more than 0')
        self.start()

    def start(self) -> None:
        """Make the first tick due one period from now; counters start at zero."""
        self._due = self.clock() + self.period
        self.served = self.missed = 0
        self.lateness = 0.0

    def wait(self) -> float:
        """Return the seconds until the next tick is due; 0 when it is due already."""
        return max(0.0, self._due - self.clock())

    def begin(self) -> int:
        """Note that a tick begins now; return how many whole ticks were skipped before it."""
        self.lateness = self.clock() - self._due
        skipped = max(0, int(self.lateness // self.period))
        self.missed += skipped
        self.served += 1
        self._due += (skipped + 1) * self.period
        return skipped


@dataclass
class AgeWatch:
    """Whether something that should keep coming has stopped.

    Attributes:
        timeout: Seconds of silence after which it counts as gone.
        clock: Monotonic seconds.
    """

    timeout: float
    clock: Clock = time.monotonic
    _seen: float | None = field(default=None, init=False)

    def feed(self) -> None:
        """Note that it came."""
        self._seen = self.clock()

    def forget(self) -> None:
        """Expect nothing until it comes again."""
        self._seen = None

    @property
    def age(self) -> float:
        """Seconds since it came last; 0 if it never did."""
        return 0.0 if self._seen is None else self.clock() - self._seen

    @property
    def expired(self) -> bool:
        """It came once and has been silent for longer than the timeout."""
        return self.age > self.timeout
