"""Calls to other nodes, answered or not, with a sentence in either case."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from rclpy.node import Node

from flashrt_ros.errors import FlashrtError


class PeerSilent(FlashrtError):
    """A peer did not answer in time."""


class PeerRefused(FlashrtError):
    """A peer answered that it will not, and why."""


class Peers:
    """Service clients of one node. The node is spun by other threads than the caller's.

    Args:
        node: The node that calls.
        timeout: Seconds to wait for an answer.
    """

    def __init__(self, node: Node, timeout: float) -> None:
        self._node = node
        self._timeout = timeout
        self._clients: dict[str, Any] = {}

    def add(self, kind: Any, name: str) -> None:
        """Make the client of service ``name``."""
        self._clients[name] = self._node.create_client(kind, name)

    def call(self, name: str, request: Any, timeout: float | None = None) -> Any:
        """Return the answer of service ``name``.

        Raises:
            PeerSilent: Nobody offers it, or nobody answers in time.
            PeerRefused: The answer has ``success = False``; the message is the peer's sentence.
        """
        client = self._clients[name]
        limit = self._timeout if timeout is None else timeout
        if not client.service_is_ready() and not client.wait_for_service(limit):
            raise PeerSilent(f'{name}: nobody offers it; is that node up and configured?')
        done = threading.Event()
        future = client.call_async(request)
        future.add_done_callback(lambda _: done.set())
        if not done.wait(limit):
            client.remove_pending_request(future)
            raise PeerSilent(f'{name} did not answer within {limit:.1f} s')
        answer = future.result()
        if hasattr(answer, 'success') and not answer.success:
            raise PeerRefused(getattr(answer, 'message', '') or f'{name} refused')
        return answer


class Await:
    """Waits for something that callbacks make true."""

    def __init__(self) -> None:
        self._changed = threading.Condition()

    def notify(self) -> None:
        """Something may have changed."""
        with self._changed:
            self._changed.notify_all()

    def until(self, holds: Callable[[], bool], timeout: float) -> bool:
        """Return True once ``holds()`` is, False when ``timeout`` seconds have passed."""
        with self._changed:
            return self._changed.wait_for(holds, timeout)
