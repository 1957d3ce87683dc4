"""Jobs over processes: every result once, errors as one line, a stop that is quick."""

from __future__ import annotations

import os
import signal
import time

import pytest

from flashrt_sim.errors import SimulationError
from flashrt_sim.rollout.workers import spread

_held: list[int] = []


def hold(value):
    """What each process starts with."""
    _held[:] = [value]


def refuse(value):
    """A start that fails."""
    raise SimulationError(f'cannot start with {value}')


def add(number):
    """One job."""
    if number == 13:
        raise SimulationError('13 is unlucky')
    return _held[0] + number


def wait(number):
    """A job that takes its time."""
    time.sleep(0.2)
    return number


@pytest.mark.parametrize('workers', [1, 2])
def test_every_result_once(workers):
    """In this process or in others, each with what it was started with."""
    jobs = [(number,) for number in range(5)]
    assert sorted(spread(jobs, add, workers, hold, (100,))) == [100, 101, 102, 103, 104]
    assert list(spread([], add, workers, hold, (100,))) == []


@pytest.mark.parametrize('workers', [1, 2])
def test_errors_arrive_as_one_line(workers):
    """Of a job, and of a start: not a broken pool."""
    with pytest.raises(SimulationError, match='13 is unlucky'):
        list(spread([(1,), (13,)], add, workers, hold, (0,)))
    with pytest.raises(SimulationError, match='cannot start with 7'):
        list(spread([(1,), (2,)], add, workers, refuse, (7,)))


def where(group, number):
    """Which process does a job."""
    time.sleep(0.02)
    return group, os.getpid()


def test_a_worker_stays_with_a_group():
    """Two workers, three groups: the first two have a process each, the rest go where it is free.

    So a group is opened by a second worker only when no other group is left untouched.
    """
    jobs = [(group, number) for group in 'abc' for number in range(6)]
    done = list(spread(jobs, where, 2, hold, (0,), group=lambda job: job[0]))
    assert sorted(group for group, _ in done) == [group for group, _ in jobs]
    visited = {group: [pid for g, pid in done if g == group] for group in 'abc'}
    assert len(set(visited['a'])) == 1 or len(set(visited['b'])) == 1
    order = {pid: [g for g, p in done if p == pid] for pid in {pid for _, pid in done}}
    for groups in order.values():
        changes = sum(one != other for one, other in zip(groups, groups[1:], strict=False))
        assert changes < 3, 'nobody goes to and fro'


def die(number):
    """A job that is the end of its process."""
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_worker_is_one_line():
    """What the system kills is named, and nothing waits for it."""
    with pytest.raises(SimulationError, match='a worker process was killed'):
        list(spread([(1,), (2,), (3,)], die, 2, hold, (0,)))


def test_a_listener_that_leaves_ends_the_work():
    """Jobs that have not begun are dropped, also those already on their way to a process."""
    results = spread([(number,) for number in range(500)], wait, 2, hold, (0,))
    next(results)
    began = time.monotonic()
    results.close()
    assert time.monotonic() - began < 50  # all of them would take fifty seconds
