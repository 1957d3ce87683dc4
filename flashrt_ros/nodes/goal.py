"""The client's side of the Rollout action: one goal, from its acceptance to its result."""

from __future__ import annotations

import threading
from typing import Any

from rclpy.action import ActionClient
from rclpy.node import Node

from flashrt_interfaces.action import Rollout
from flashrt_ros.nodes import names
from flashrt_ros.nodes.peers import PeerRefused, PeerSilent


class Goal:
    """One whole episode that was asked for. The node is spun by another thread.

    Args:
        node: The node that asks.
        instruction: What to do, in words.
        seed: Noise and scene; negative = the supervisor chooses.
        timeout: Seconds to wait for the server to answer.

    Raises:
        PeerSilent: Nobody offers the action, or nobody answers.
        PeerRefused: The supervisor cannot start now; its log says why.
    """

    def __init__(self, node: Node, instruction: str, seed: int, timeout: float = 10.0) -> None:
        self.feedback: list[Rollout.Feedback] = []
        self._timeout = timeout
        self._client = ActionClient(node, Rollout, names.ROLLOUT)
        if not self._client.wait_for_server(timeout):
            raise PeerSilent(f'{names.ROLLOUT}: nobody offers it; is the supervisor up?')
        request = Rollout.Goal(instruction=instruction, seed=seed)
        asked = self._client.send_goal_async(request, lambda m: self.feedback.append(m.feedback))
        self._handle = self._wait(asked, timeout)
        if not self._handle.accepted:
            raise PeerRefused('the supervisor refuses the goal in its present state')
        self._result = self._handle.get_result_async()

    def _wait(self, future: Any, timeout: float) -> Any:
        done = threading.Event()
        future.add_done_callback(lambda _: done.set())
        if not done.wait(timeout):
            raise PeerSilent(f'{names.ROLLOUT} did not answer within {timeout:.1f} s')
        return future.result()

    def cancel(self) -> None:
        """Stop in mid-motion; returns when the request is accepted, `result` says the rest."""
        self._wait(self._handle.cancel_goal_async(), self._timeout)

    def result(self, timeout: float) -> Rollout.Result:
        """Return how the episode ended."""
        return self._wait(self._result, timeout).result

    def close(self) -> None:
        """Give the client back."""
        self._client.destroy()
