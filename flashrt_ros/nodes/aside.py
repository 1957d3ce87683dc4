"""Work beside a node's executor, whose one thread answers everything: no callback may wait.

What waits, for a peer's answer or for the replay thread, is done here, on threads of its own; a
service's answer goes out from there.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from rclpy.exceptions import InvalidHandle


class Aside:
    """A node's threads for what takes its time.

    Args:
        log: The node's log.
        threads: Jobs that run at once; one more waits for its turn.
    """

    def __init__(self, log: Any, threads: int) -> None:
        self._log = log
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix='aside')

    def do(self, job: Callable[[], Any]) -> Future:
        """Run ``job`` on one of the threads; the log says what it raised."""
        future = self._pool.submit(job)
        future.add_done_callback(self._said)
        return future

    def _said(self, future: Future) -> None:
        error = None if future.cancelled() else future.exception()
        if error is not None:
            self._log.error(f'{type(error).__name__}: {error}')

    def serve(self, service: Any) -> None:
        """Answer the requests of ``service`` on these threads.

        An executor hands what a callback returns to ``send_response``; so the callback returns
        the work, and who should send it has it done.
        """
        answer, send = service.callback, service.send_response

        def work(job: Callable[[], Any], header: Any) -> None:
            answered = job()
            try:
                send(answered, header)
            except InvalidHandle:  # cleaned up meanwhile: nobody is answered any more
                self._log.warning(f'{service.srv_name}: gone before its answer was there')

        def later(job: Callable[[], Any], header: Any) -> None:
            self.do(partial(work, job, header))

        service.callback = partial(partial, answer)
        service.send_response = later

    def close(self) -> None:
        """End the threads, after what they have begun."""
        self._pool.shutdown(wait=True, cancel_futures=True)
