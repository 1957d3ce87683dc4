"""A thread of its own for work that belongs to one thread: graph replay, or a simulator.

Contexts of CUDA graphs and of OpenGL belong to the thread that made them, so everything that
touches one goes through one worker: as jobs, and as ticks on the monotonic clock.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from flashrt_ros.control.watchdog import TickScheduler

T = TypeVar('T')


class Worker:
    """Runs jobs in order, and a tick function at a fixed rate in between.

    Args:
        name: The thread's name.
        scheduler: When ticks are due; None = jobs only.
        on_tick: Called with the ticks skipped before, while ticking is on.
        on_error: Called with what a tick raised; ticking goes on.
    """

    def __init__(
        self,
        name: str,
        scheduler: TickScheduler | None = None,
        on_tick: Callable[[int], None] | None = None,
        on_error: Callable[[Exception], None] | None = None,
    ) -> None:
        self._jobs: queue.Queue[tuple[Future, Callable[[], Any]] | None] = queue.Queue()
        self._scheduler = scheduler
        self._on_tick = on_tick
        self._on_error = on_error
        self._ticking = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], T]) -> Future[T]:
        """Run ``job`` on the thread; return its future."""
        future: Future[T] = Future()
        self._jobs.put((future, job))
        return future

    def call(self, job: Callable[[], T], timeout: float | None = None) -> T:
        """Run ``job`` on the thread and return what it returns or raise what it raises."""
        return self.submit(job).result(timeout)

    def start_ticking(self) -> None:
        """Begin to tick, one period from now."""
        self.call(lambda: self._set_ticking(True))

    def stop_ticking(self) -> None:
        """Tick no more; returns after the last tick."""
        self.call(lambda: self._set_ticking(False))

    def _set_ticking(self, on: bool) -> None:
        if on and self._scheduler is not None:
            self._scheduler.start()
        self._ticking = on

    def close(self) -> None:
        """End the thread after the jobs that were submitted; wait for it."""
        self._jobs.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=10.0)

    def _run(self) -> None:
        while True:
            timeout = None
            if self._ticking and self._scheduler is not None:
                timeout = self._scheduler.wait()
                if timeout == 0.0:
                    self._tick()  # and then a job, if one waits: late ticks must not starve them
            try:
                item = self._jobs.get(timeout != 0.0, timeout)
            except queue.Empty:
                continue
            if item is None:
                return
            future, job = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(job())
            except BaseException as error:
                future.set_exception(error)

    def _tick(self) -> None:
        assert self._scheduler is not None
        skipped = self._scheduler.begin()
        try:
            if self._on_tick is not None:
                self._on_tick(skipped)
        except Exception as error:
            if self._on_error is None:
                raise
            self._on_error(error)
