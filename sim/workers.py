"""Spreads jobs over processes that each hold something expensive."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any, TypeVar

from flashrt_ros.errors import FlashrtError

from .errors import SimulationError

T = TypeVar('T')


def spread(
    jobs: Sequence[tuple[Any, ...]],
    work: Callable[..., T],
    workers: int,
    start: Callable[..., None],
    arguments: tuple[Any, ...] = (),
) -> Iterator[T]:
    """Call `work(*job)` for every job; yields results as they come.

    Each process calls `start(*arguments)` first. A single worker is this very process. Jobs that
    have not begun are dropped when the caller stops listening.

    Raises:
        FlashrtError: what `start` or `work` raised, as one line.
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
    stop = context.Event()
    pool = ProcessPoolExecutor(min(workers, len(jobs)), context, _begin, (stop, start, arguments))
    try:
        for future in as_completed([pool.submit(_one, work, job) for job in jobs]):
            yield future.result()
    finally:
        # Some jobs wait in the processes' own queue, where they cannot be cancelled.
        stop.set()
        pool.shutdown(cancel_futures=True)


_failure = ''  # why this process could not start
_stop: Any = None  # set when nobody wants results any more


def _begin(stop: Any, start: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    global _failure, _stop
    _stop = stop
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


def _one(work: Callable[..., T], job: tuple[Any, ...]) -> T:
    if _failure or _stop.is_set():
        raise SimulationError(_failure or 'stopped before it began')
    try:
        return work(*job)
    except FlashrtError as error:
        # Not every error class survives the way between two processes; its line does.
        raise SimulationError(str(error)) from None
