"""A whole episode as one ROS action: goal in, feedback per change and per second, result with why.

Cancelling the goal is a hard interrupt. What the services do meanwhile ends the goal, too: an
episode that is interrupted, reset or started anew by somebody else is no longer this goal's.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from rclpy.action import ActionServer, CancelResponse, GoalResponse
from rclpy.action.server import ServerGoalHandle

from flashrt_interfaces.action import Rollout
from flashrt_interfaces.msg import EpisodeState, Subgoal
from flashrt_ros.control import episode
from flashrt_ros.errors import FlashrtError
from flashrt_ros.nodes import names
from flashrt_ros.nodes.hearing import Hearing
from flashrt_ros.nodes.operations import Operations

FEEDBACK_S = 1.0  # longest time without feedback, in seconds
RESULT_S = 900  # for which a result is kept: who asks late, still gets it


class _Server(ActionServer):
    """An action server that runs each goal on a thread of its own: a goal waits for others."""

    def notify_execute(self, goal_handle: Any, execute_callback: Callable | None) -> None:
        """Run the goal; called when it has been accepted."""
        running = self._execute_goal(execute_callback or self._execute_callback, goal_handle)
        threading.Thread(target=asyncio.run, args=(running,), name='goal', daemon=True).start()


class RolloutAction:
    """The action server of the supervisor.

    Args:
        node: The supervisor.
        operations: What starts and interrupts.
        hearing: Where the robot's tick is known.
    """

    def __init__(self, node: Any, operations: Operations, hearing: Hearing) -> None:
        self._node, self._operations, self._hearing = node, operations, hearing
        self._changed = threading.Condition()
        self._done: set[int] = set()  # places in the plan of the subgoals that are reached
        self._subgoal = Subgoal()
        self._stop = False  # the goal was cancelled
        self._server = _Server(
            node,
            Rollout,
            names.ROLLOUT,
            self._run,
            goal_callback=self._wanted,
            cancel_callback=self._cancelled,
            result_timeout=RESULT_S,
        )

    def _wanted(self, goal: Rollout.Goal) -> GoalResponse:
        """Refuse at once what could not start; the log says why."""
        refusal = self._operations.machine.refuse('start')
        if not self._node.active:
            refusal = 'the supervisor is not active: activate it first'
        if refusal:
            self._node.log.error(f'rollout refused: {refusal}')
        return GoalResponse.REJECT if refusal else GoalResponse.ACCEPT

    def _cancelled(self, handle: ServerGoalHandle) -> CancelResponse:
        """Stop at once; the goal's own thread says so in its result."""
        self._stop = True
        self.changed()
        self._node.executor.create_task(self.changed)  # its turn comes once this is answered
        return CancelResponse.ACCEPT

    def changed(self) -> None:
        """Look again: the episode's state has changed."""
        with self._changed:
            self._changed.notify_all()

    def heard(self, msg: Subgoal) -> None:
        """Take note of what became of a subgoal."""
        if msg.status == Subgoal.STATUS_DONE:
            self._done.add(msg.index)
        else:
            self._subgoal = msg
        self.changed()

    def _run(self, handle: ServerGoalHandle) -> Rollout.Result:
        operations, machine = self._operations, self._operations.machine
        self._done.clear()
        self._stop = False
        try:
            operations.start(handle.request.instruction, int(handle.request.seed))
        except (FlashrtError, ValueError) as error:
            handle.abort()
            self._node.log.error(f'rollout refused: {error}')
            return Rollout.Result(reason=str(error), outcome='fault')
        mine = machine.episode
        while machine.episode == mine and machine.state in (
            episode.RESETTING,
            episode.RUNNING,
            episode.RECOVERING,
        ):
            if self._stop:
                return self._cancel(handle, mine)
            handle.publish_feedback(self._feedback())
            with self._changed:
                if not self._stop:
                    self._changed.wait(FEEDBACK_S)
        return self._over(handle, mine)

    def _cancel(self, handle: ServerGoalHandle, mine: int) -> Rollout.Result:
        try:
            said, _ = self._operations.interrupt('the goal was cancelled')
        except FlashrtError as error:
            said = str(error)
        with self._changed:  # the answer to the request may still be under way
            self._changed.wait_for(lambda: handle.is_cancel_requested)
        handle.canceled()
        return self._result(mine, episode.INTERRUPTED, said)

    def _over(self, handle: ServerGoalHandle, mine: int) -> Rollout.Result:
        operations, machine = self._operations, self._operations.machine
        if machine.episode != mine:
            handle.abort()
            why = 'another episode was begun meanwhile'
            return self._result(mine, EpisodeState.OUTCOME_ABANDONED, why)
        if machine.state != episode.IDLE:  # interrupted by a service, or a fault
            handle.abort()
            return self._result(mine, machine.state, machine.reason)
        if operations.outcome == EpisodeState.OUTCOME_DONE:
            handle.succeed()
        else:
            handle.abort()
        return self._result(mine, operations.outcome, machine.reason)

    def _result(self, mine: int, outcome: str, reason: str) -> Rollout.Result:
        return Rollout.Result(
            success=outcome == EpisodeState.OUTCOME_DONE,
            reason=reason,
            outcome=outcome,
            episode=mine,
            ticks=self._hearing.tick,
            missed_ticks=self._hearing.missed,
            subgoals_done=len(self._done),
        )

    def _feedback(self) -> Rollout.Feedback:
        now, total = self._subgoal, max(1, len(self._operations.plan))
        return Rollout.Feedback(
            progress=len(self._done) / total,
            state=self._operations.machine.state,
            subgoal=self._operations.subgoal,
            index=now.index,
            total=total,
            tick=self._hearing.tick,
        )
