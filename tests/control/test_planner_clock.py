"""Ticks under way: interrupts do not count, and a restored clock goes on from its capsule."""

from flashrt_ros.control.planner_clock import PlannerClock


def test_it_runs_with_the_robot() -> None:
    """In an episode without interruption it is the robot's tick, also past missed ones."""
    clock = PlannerClock()
    clock.start()
    assert [clock.at(tick) for tick in (0, 1, 2, 5)] == [0, 1, 2, 5]


def test_it_goes_on_from_its_capsule() -> None:
    """Restored at tick 5, with the robot meanwhile at tick 90: 5 it is, and then 6."""
    clock = PlannerClock()
    clock.start()
    for tick in range(6):
        clock.at(tick)
    kept = clock.state()
    assert clock.at(80) == 80  # not restored, the robot's tick counts: the negative control
    clock.set_state(kept)
    assert [clock.at(90), clock.at(91)] == [5, 6]
