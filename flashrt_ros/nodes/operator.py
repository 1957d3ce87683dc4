"""An operator: a client node that asks the supervisor, and records what the robot does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import rclpy
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.impl.implementation_singleton import rclpy_implementation
from std_srvs.srv import Trigger

from flashrt_interfaces.msg import (
    ActionChunk,
    CapsuleInfo,
    ControlCommand,
    EpisodeState,
    RobotState,
    Subgoal,
)
from flashrt_interfaces.srv import (
    Interrupt,
    ListCapsules,
    ResetEpisode,
    Resume,
    Rollback,
    Snapshot,
    StartEpisode,
)
from flashrt_ros.control import episode as states
from flashrt_ros.nodes import names, qos
from flashrt_ros.nodes.goal import Goal
from flashrt_ros.nodes.peers import Await, Peers, PeerSilent
from flashrt_ros.nodes.ros_environment import settle

CONNECT_S = 30.0  # longest wait for everybody to be heard, in seconds


@dataclass
class Record:
    """Everything heard, in the order it came; each with the monotonic second it came at."""

    states: list[tuple[float, RobotState]] = field(default_factory=list)
    sent: list[tuple[float, ControlCommand]] = field(default_factory=list)  # by the gate
    chunks: list[tuple[float, ActionChunk]] = field(default_factory=list)
    subgoals: list[tuple[float, Subgoal]] = field(default_factory=list)
    episodes: list[tuple[float, EpisodeState]] = field(default_factory=list)


class Operator:
    """Talks to a running system. A context manager; its node is spun by a thread of its own.

    Args:
        domain: ROS domain id of the system; None = the environment's.
        on_event: Called after each message, on the spinning thread, with the message.
        namespace: Of the arm that is talked to.
        patience: Longest wait for an answer, in seconds.
    """

    def __init__(
        self,
        domain: int | None = None,
        on_event: Callable[[Any], None] | None = None,
        namespace: str = '',
        patience: float = 10.0,
    ) -> None:
        settle()
        self.record = Record()
        self.changed = Await()
        self._on_event = on_event
        self._closing = False
        self._context = rclpy.Context()
        rclpy.init(context=self._context, domain_id=domain)
        self.node = rclpy.create_node(
            'operator', context=self._context, namespace=namespace or None
        )
        self._patience = patience
        self.peers = Peers(self.node, patience)
        for kind, service in (
            (StartEpisode, names.START),
            (Interrupt, names.INTERRUPT),
            (Resume, names.RESUME),
            (ResetEpisode, names.RESET),
            (Rollback, names.ROLLBACK),
            (Snapshot, names.SNAPSHOT),
            (ListCapsules, names.LIST),
            (Trigger, names.PLAIN_RESET),
            (Trigger, names.PLAIN_INTERRUPT),
        ):
            self.peers.add(kind, service)
        record = self.record
        self._subscriptions = []
        for kind, topic, into, profile in (
            (RobotState, names.ROBOT_STATE, record.states, qos.TELEMETRY),
            (ControlCommand, names.GATED, record.sent, qos.TELEMETRY),
            (ActionChunk, names.CHUNK, record.chunks, qos.TELEMETRY),
            (Subgoal, names.SUBGOAL, record.subgoals, qos.TELEMETRY),
            (EpisodeState, names.EPISODE, record.episodes, qos.LATCHED),
        ):
            made = self.node.create_subscription(kind, topic, self._into(into), profile)
            self._subscriptions.append(made)
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self.node)
        self._thread = threading.Thread(target=self._spin, name='operator', daemon=True)
        self._thread.start()

    def _spin(self) -> None:
        try:
            self._executor.spin()
        except ExternalShutdownException:
            pass
        except (rclpy_implementation.InvalidHandle, AttributeError):
            if not self._closing:  # else: a callback ended while the executor was taken down
                raise

    def _into(self, into: list[tuple[float, Any]]) -> Callable[[Any], None]:
        def heard(msg: Any) -> None:
            into.append((time.monotonic(), msg))
            if self._on_event is not None:
                self._on_event(msg)
            self.changed.notify()

        return heard

    def __enter__(self) -> Operator:
        return self

    def __exit__(self, *error: object) -> None:
        self._closing = True
        self._executor.shutdown()
        self._thread.join(timeout=5.0)
        self.node.destroy_node()
        rclpy.try_shutdown(context=self._context)

    # -- what was heard ---------------------------------------------------------------------

    @property
    def state(self) -> RobotState | None:
        """The newest robot state."""
        return self.record.states[-1][1] if self.record.states else None

    @property
    def episode(self) -> EpisodeState | None:
        """The newest state of the episode."""
        return self.record.episodes[-1][1] if self.record.episodes else None

    def until(self, holds: Callable[[], bool], timeout: float) -> bool:
        """Wait until ``holds()``, looked at after every message; False after ``timeout`` s."""
        return self.changed.until(holds, timeout)

    def ended(self, number: int) -> bool:
        """Return whether episode ``number`` is over, and all that was said in it is recorded.

        Messages of one topic keep their order, but a topic with few of them overtakes one with
        many: so robot and gate must have been heard in the epoch that the end has raised, and the
        planner on its last subgoal.
        """
        now = self.episode
        if now is None or now.episode != number or now.state not in (states.IDLE, states.FAULT):
            return False
        if now.outcome == EpisodeState.OUTCOME_DONE:
            last = (m for _, m in self.record.subgoals if m.index + 1 == m.total)
            if not any(m.episode == number and m.status == Subgoal.STATUS_DONE for m in last):
                return False
        heard = [said[-1][1].epoch for said in (self.record.states, self.record.sent) if said]
        return now.state == states.FAULT or min(heard, default=0) >= now.epoch

    def generation(self) -> int:
        """Return the place in the plan, from 1, of the subgoal posted last; 0 before the first."""
        posted = [m for _, m in self.record.subgoals if m.status == Subgoal.STATUS_POSTED]
        return posted[-1].index + 1 if posted else 0

    def ticked(self, tick: int) -> Callable[[], bool]:
        """Return whether the robot of the newest episode has come to ``tick``."""
        return lambda: self.state is not None and self.state.tick >= tick

    # -- what is asked ----------------------------------------------------------------------

    def connect(self, timeout: float = CONNECT_S) -> None:
        """Wait until everybody can be heard, so that an episode is recorded from its first tick.

        Robot and gate talk all the time, so they must have been heard; the others must be there.

        Raises:
            PeerSilent: Somebody is not.
        """

        def missing() -> list[str]:
            heard = {names.ROBOT_STATE: self.record.states, names.GATED: self.record.sent}
            gone = [s.topic_name for s in self._subscriptions if not s.get_publisher_count()]
            return gone + [topic for topic, said in heard.items() if not said]

        if not self.changed.until(lambda: not missing(), timeout):
            topics = ', '.join(dict.fromkeys(topic.lstrip('/') for topic in missing()))
            raise PeerSilent(f'nothing is heard on {topics}; are all nodes up and active?')

    def start(self, instruction: str, seed: int = 0) -> StartEpisode.Response:
        """Begin an episode; `PeerRefused` carries the supervisor's sentence."""
        self.connect()
        request = StartEpisode.Request(instruction=instruction, seed=seed)
        return self.peers.call(names.START, request)

    def interrupt(self, reason: str = 'asked by the operator') -> Interrupt.Response:
        """Stop in mid-motion; when this returns, no action of the old epoch follows."""
        return self.peers.call(names.INTERRUPT, Interrupt.Request(reason=reason))

    def resume(self, capsule: str = '') -> Resume.Response:
        """Go on from the frozen state; returns with the first action."""
        return self.peers.call(names.RESUME, Resume.Request(capsule=capsule))

    def reset(self, capsule: str = '', seed: int = -1) -> ResetEpisode.Response:
        """Begin an episode from a capsule, by default from the start of the last one."""
        return self.peers.call(names.RESET, ResetEpisode.Request(capsule=capsule, seed=seed))

    def rollback(self, boundaries: int = 1) -> Rollback.Response:
        """Go back by boundaries and on from there; returns with the first action."""
        return self.peers.call(names.ROLLBACK, Rollback.Request(boundaries=boundaries))

    def snapshot(self, name: str) -> Snapshot.Response:
        """Freeze everything under a name of one's own."""
        return self.peers.call(names.SNAPSHOT, Snapshot.Request(boundary=name))

    def capsules(self, prefix: str = '') -> list[CapsuleInfo]:
        """Return every capsule that can be restored, oldest first."""
        answer = self.peers.call(names.LIST, ListCapsules.Request(prefix=prefix))
        return list(answer.capsules)

    def rollout(self, instruction: str, seed: int = -1) -> Goal:
        """Begin a whole episode as an action."""
        self.connect()
        return Goal(self.node, instruction, seed, self._patience)
