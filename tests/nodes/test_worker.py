"""The worker: everything on one thread, jobs in order, ticks in between."""

import threading

import pytest

from flashrt_ros.control.watchdog import TickScheduler
from flashrt_ros.nodes.worker import Worker


def test_jobs_run_in_order_on_one_thread() -> None:
    """Jobs keep their order and their thread; what one raises reaches its caller alone."""
    worker = Worker('test')
    seen: list[tuple[int, str]] = []
    for number in range(20):
        worker.submit(lambda n=number: seen.append((n, threading.current_thread().name)))
    with pytest.raises(ZeroDivisionError):
        worker.call(lambda: 1 // 0)
    assert worker.call(lambda: 42) == 42
    assert seen == [(n, 'test') for n in range(20)]
    worker.close()


def test_ticks_and_jobs_share_the_thread() -> None:
    """While ticking, ticks come on the worker's thread, also past a tick that raises."""
    ticked, errors = [], []
    enough = threading.Event()

    def tick(skipped: int) -> None:
        ticked.append(threading.current_thread().name)
        if len(ticked) == 2:
            raise RuntimeError('planted')
        if len(ticked) >= 5:
            enough.set()

    worker = Worker('world', TickScheduler(0.002), tick, errors.append)
    worker.start_ticking()
    assert enough.wait(120.0)
    worker.stop_ticking()
    count = len(ticked)
    assert worker.call(lambda: threading.current_thread().name) == 'world'
    assert set(ticked) == {'world'}
    assert [str(e) for e in errors] == ['planted']
    assert len(ticked) == count  # none after it was stopped
    worker.close()


def test_slow_ticks_do_not_starve_jobs() -> None:
    """Where every tick overruns its period, a job still gets its turn after the next tick."""
    pause = threading.Event()
    worker = Worker('world', TickScheduler(0.001), lambda _: pause.wait(0.005) and None)
    worker.start_ticking()
    assert worker.call(lambda: 'done', timeout=120.0) == 'done'
    worker.stop_ticking()
    worker.close()
