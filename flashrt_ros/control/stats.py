"""Percentiles over the newest values of something that is measured again and again."""

from __future__ import annotations

import math
import threading

import numpy as np


class Window:
    """The newest ``size`` values. Thread-safe; nothing is allocated once it is made.

    Args:
        size: How many values count.
    """

    def __init__(self, size: int = 1024) -> None:
        self._values = np.zeros(size, np.float64)
        self._count = 0
        self._lock = threading.Lock()

    def add(self, value: float) -> None:
        """Take a value."""
        with self._lock:
            self._values[self._count % len(self._values)] = value
            self._count += 1

    @property
    def count(self) -> int:
        """Values taken so far, also those that count no more."""
        return self._count

    def percentiles(self, *wanted: float) -> tuple[float, ...]:
        """Return percentiles (0 to 100) of the newest values; NaN where there are none."""
        with self._lock:
            values = self._values[: min(self._count, len(self._values))].copy()
        if not values.size:
            return (math.nan,) * len(wanted)
        return tuple(float(v) for v in np.percentile(values, wanted))
