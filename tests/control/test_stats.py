"""Percentiles over the newest values."""

import math

from flashrt_ros.control.stats import Window


def test_only_the_newest_count() -> None:
    """Beyond its size the window forgets the oldest; the count goes on."""
    window = Window(4)
    for value in (1000.0, 1.0, 2.0, 3.0, 4.0):
        window.add(value)
    assert window.percentiles(0, 50, 100) == (1.0, 2.5, 4.0)
    assert window.count == 5


def test_nothing_measured_is_no_number() -> None:
    """Before the first value every percentile is NaN, not 0."""
    assert all(math.isnan(v) for v in Window().percentiles(50, 99))
