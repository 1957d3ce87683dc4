"""Ticks on a clock that the test moves: served, missed, never made up."""

import random

import pytest

from flashrt_ros.control.watchdog import AgeWatch, TickScheduler


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        """Return the seconds."""
        return self.now


def test_on_time_nothing_is_missed() -> None:
    """A loop that serves each tick in its period misses none."""
    clock = Clock()
    ticks = TickScheduler(0.05, clock)
    for _ in range(100):
        clock.now += ticks.wait()
        assert ticks.begin() == 0
        clock.now += 0.02
    assert (ticks.served, ticks.missed) == (100, 0)


def test_an_overrun_is_skipped_and_counted() -> None:
    """After 3.5 periods three ticks are gone; the next is due on the old grid, not at once."""
    clock = Clock()
    ticks = TickScheduler(0.1, clock)
    clock.now += ticks.wait()
    ticks.begin()
    clock.now += 0.35
    assert ticks.wait() == 0
    assert ticks.begin() == 2
    assert ticks.lateness == pytest.approx(0.25)
    assert ticks.missed == 2
    assert ticks.wait() == pytest.approx(0.05)


def test_there_is_never_a_burst() -> None:
    """Whatever delays come, served and missed ticks together are the periods that passed."""
    seed = random.randrange(2**32)
    print(f'seed {seed}')
    rng = random.Random(seed)
    clock = Clock()
    ticks = TickScheduler(1.0, clock)
    begun = []
    for _ in range(500):
        clock.now += ticks.wait()
        ticks.begin()
        begun.append(clock.now)
        clock.now += rng.choice([0.125, 0.5, 0.875, 1.25, 4.75])  # exact in binary
    slots = [int(t - 100.0 + 1e-6) for t in begun]
    assert len(set(slots)) == len(slots)  # one tick a slot at most
    assert ticks.served + ticks.missed == slots[-1]


def test_a_period_must_be_positive() -> None:
    """A period of zero is refused."""
    with pytest.raises(ValueError, match='more than 0'):
        TickScheduler(0.0)


def test_age_watch() -> None:
    """What never came has not expired; what came and stopped has, until it comes again."""
    clock = Clock()
    watch = AgeWatch(1.0, clock)
    clock.now += 5
    assert not watch.expired
    watch.feed()
    clock.now += 0.9
    assert not watch.expired
    clock.now += 0.2
    assert watch.expired
    assert watch.age == pytest.approx(1.1)
    watch.feed()
    assert not watch.expired
    clock.now += 2
    watch.forget()
    assert not watch.expired
