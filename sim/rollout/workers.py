"""Spreads jobs over processes that each hold something expensive."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from flashrt_ros.errors import FlashrtError

from ..errors import SimulationError

T = TypeVar('T')
Job = tuple[Any, ...]


def spread(
    jobs: Sequence[Job],
    work: Callable[..., T],
    workers: int,
    start: Callable[..., None],
    arguments: tuple[Any, ...] = (),
    group: Callable[[Job], Hashable] = lambda job: None,
) -> Iterator[T]:
    """Call `work(*job)` for every job; yields results as they come.

    Each process calls `start(*arguments)` first. A single worker is this very process. Jobs that
    have not begun are dropped when the caller stops listening.

    Args:
        jobs: arguments of `work`.
        work: does one job.
        workers: processes.
        start: called once in each.
        arguments: of `start`.
        group: a worker stays with the jobs of one group while there are any: what it has opened
            for one serves the others.

    Raises:
        FlashrtError: what `start` or `work` raised, as one line; a process was killed.
    """
    if not jobs:
        return
    if workers == 1:
        start(*arguments)
        for job in jobs:
            yield work(*job)
        return
    # Processes started afresh: a rendering context does not survive a fork.
    context = multiprocessing.get_context('spawn')
    pools = [
        ProcessPoolExecutor(1, context, _begin, (start, arguments))
        for _ in range(min(workers, len(jobs)))
    ]
    waiting, running = _Waiting(jobs, group), dict[Future[T], int]()

    def give(worker: int) -> None:
        job = waiting.take(worker)
        if job is not None:
            running[pools[worker].submit(_one, work, job)] = worker

    try:
        for worker in range(len(pools)):
            give(worker)
        while running:
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                give(running.pop(future))  # before the caller takes its time with the result
                yield future.result()
    except BrokenProcessPool:
        raise SimulationError(
            'a worker process was killed (out of memory?); run it again with fewer workers'
        ) from None
    finally:
        for wait_for_it in (False, True):
            for pool in pools:
                pool.shutdown(wait_for_it, cancel_futures=True)


class _Waiting:
    """Jobs that have not begun, by group."""

    def __init__(self, jobs: Sequence[Job], group: Callable[[Job], Hashable]) -> None:
        self._left: dict[Hashable, deque[Job]] = {}
        for job in jobs:
            self._left.setdefault(group(job), deque()).append(job)
        self._at: dict[int, Hashable] = {}  # worker -> its group

    def take(self, worker: int) -> Job | None:
        """The next job of a worker: of its own group, or of the one with the least company."""
        if not self._left:
            return None
        if self._at.get(worker) not in self._left or worker not in self._at:
            company = Counter(self._at.values())
            left = self._left
            self._at[worker] = min(left, key=lambda name: (company[name], -len(left[name])))
        mine = self._at[worker]
        job = self._left[mine].popleft()
        if not self._left[mine]:
            del self._left[mine]
        return job


_failure = ''  # why this process could not start


def _begin(start: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    global _failure
    # Ctrl-C reaches every process of a terminal: the first one decides, the others finish.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # One thread each: the software rasteriser would start one for every core in every process.
    os.environ['LP_NUM_THREADS'] = '1'
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        start(*arguments)
    except FlashrtError as error:
        _failure = str(error)


def _end_with_parent() -> None:
    """Leave no process behind when the first one is killed: nobody would ever ask it again."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _one(work: Callable[..., T], job: Job) -> T:
    if _failure:
        raise SimulationError(_failure)
    try:
        return work(*job)
    except FlashrtError as error:
        # Not every error class survives the way between two processes; its line does.
        raise SimulationError(str(error)) from None
