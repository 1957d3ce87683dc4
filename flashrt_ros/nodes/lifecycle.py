"""Brings lifecycle nodes up: configure all at once, then activate in order."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState, GetState
from rclpy.node import Node

from flashrt_ros.errors import FlashrtError

CONFIGURE = Transition.TRANSITION_CONFIGURE
ACTIVATE = Transition.TRANSITION_ACTIVATE
PATIENCE_S = 1.0  # after which a question is asked again
_VERB = {CONFIGURE: 'configure', ACTIVATE: 'activate'}


class LifecycleError(FlashrtError):
    """A node did not reach the state that was asked for."""


class Lifecycle:
    """Changes the states of other nodes. The node is spun by another thread.

    Args:
        node: The node that calls.
        alive: Called while waiting; raises when a process has died.
        patience: Seconds after which a question is asked again.
    """

    def __init__(
        self,
        node: Node,
        alive: Callable[[], None] = lambda: None,
        patience: float = PATIENCE_S,
    ) -> None:
        self._node = node
        self._alive, self._patience = alive, patience
        self._clients: dict[str, Any] = {}

    def _client(self, kind: Any, service: str) -> Any:
        if service not in self._clients:
            self._clients[service] = self._node.create_client(kind, service)
        return self._clients[service]

    def _await(self, what: str, ready: Callable[[], bool], deadline: float) -> None:
        pause = threading.Event()
        while not ready():
            self._alive()
            if time.monotonic() > deadline:
                raise LifecycleError(f'{what}: no answer in time')
            pause.wait(0.01)

    def ask(self, kind: Any, service: str, request: Any, timeout: float) -> Any:
        """Return the answer of a service, whoever has to come up first."""
        client = self._client(kind, service)
        deadline = time.monotonic() + timeout
        self._await(service, client.service_is_ready, deadline)
        future = client.call_async(request)
        self._await(service, future.done, deadline)
        return future.result()

    def state(self, node: str, timeout: float = 10.0) -> str:
        """Return the state of ``node``: unconfigured, inactive, active or finalized.

        Asked again and again: what is left of a killed process takes requests and answers none.
        """
        deadline = time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            try:
                service, request = f'{node}/get_state', GetState.Request()
                answer = self.ask(GetState, service, request, min(left, self._patience))
                return str(answer.current_state.label)
            except LifecycleError:
                if left <= self._patience:
                    raise

    def change(self, node: str, transition: int, timeout: float) -> None:
        """Take ``node`` through a transition.

        Raises:
            LifecycleError: It refused, or did not answer.
        """
        request = ChangeState.Request(transition=Transition(id=transition))
        answer = self.ask(ChangeState, f'{node}/change_state', request, timeout)
        if not answer.success:
            raise LifecycleError(
                f'{node} could not {_VERB.get(transition, transition)}: its own log says why'
            )

    def bring_up(self, nodes: Iterable[str], timeout: float = 120.0) -> None:
        """Configure every node at the same time, wait for all, then activate them in order.

        Nodes that have come up by themselves are left as they are.
        """
        deadline = time.monotonic() + timeout
        nodes = [n for n in nodes if self.state(n, timeout) != 'active']
        request = ChangeState.Request(transition=Transition(id=CONFIGURE))
        waiting = {}
        for node in nodes:
            client = self._client(ChangeState, f'{node}/change_state')
            self._await(f'{node}/change_state', client.service_is_ready, deadline)
            waiting[node] = client.call_async(request)
        for node, future in waiting.items():
            self._await(f'{node}: configure', future.done, deadline)
            if not future.result().success:
                raise LifecycleError(f'{node} could not configure: its own log says why')
        for node in nodes:
            self.change(node, ACTIVATE, max(1.0, deadline - time.monotonic()))
