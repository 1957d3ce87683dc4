"""What the brain sees: robot states, images and joint states, made observations or refused.

A message that no policy may be shown is refused before it touches a buffer. From then on the robot
holds, until a good message of the same source is there. The log has one line when a source turns
bad and one when it is good again, however many messages are refused in between.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from sensor_msgs.msg import Image, JointState

from flashrt_interfaces.msg import RobotState
from flashrt_ros.control.guards import GuardError, ObservationGuard
from flashrt_ros.control.pairing import Moment, Pairing
from flashrt_ros.control.types import Observation
from flashrt_ros.nodes.convert import EXACT, fitted, joints_of, key, msg_to_image

JOINTS = 'joints'  # the part of a moment that is no image


class Refusals:
    """Which sources are refused at present, and why; says each change once. Thread-safe.

    Args:
        log: A node's log.
    """

    def __init__(self, log: Any) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._bad: dict[str, tuple[str, str, int]] = {}  # source -> guard, sentence, how many
        self.counts: dict[str, int] = {}  # guard -> refused since the node was made

    def refuse(self, source: str, error: GuardError) -> str:
        """Note that ``source`` sent what is refused; return the sentence."""
        with self._lock:
            self.counts[error.guard] = self.counts.get(error.guard, 0) + 1
            guard, _, many = self._bad.get(source, ('', '', 0))
            self._bad[source] = (error.guard, str(error), many + 1)
        if guard != error.guard:
            self._log.error(f'{source} refused: {error}; holding')
        return str(error)

    def good(self, source: str) -> None:
        """Note that ``source`` sent something sound."""
        if source in self._bad:
            with self._lock:
                _, _, many = self._bad.pop(source)
            self._log.info(f'{source} is good again after {many} that were not')

    @property
    def reason(self) -> str:
        """Return why the robot has to hold; empty while nothing is refused."""
        with self._lock:
            return next((sentence for _, sentence, _ in self._bad.values()), '')


class Flood:
    """Says when a topic brings far more than anybody asked for.

    Args:
        log: A node's log.
        limit: Messages between two robot states above which it is a flood.
    """

    def __init__(self, log: Any, limit: int) -> None:
        self._log, self._limit = log, limit
        self._counts: dict[str, int] = {}
        self._said: set[str] = set()

    def tick(self) -> None:
        """A robot state has come: count anew."""
        calm = [topic for topic in self._said if self._counts.get(topic, 0) <= self._limit]
        self._said.difference_update(calm)
        self._counts.clear()

    def count(self, topic: str) -> None:
        """A message has come on ``topic``."""
        many = self._counts[topic] = self._counts.get(topic, 0) + 1
        if many > self._limit and topic not in self._said:
            self._said.add(topic)
            self._log.warning(
                f'flood: more than {self._limit} messages on {topic} within one tick; only the '
                'newest count: look for a second publisher, or a rate set too high'
            )


class Intake:
    """Pairs each state with what was seen at its moment.

    Args:
        guard: What an observation must be.
        log: A node's log.
        slop_s: How far in time an image or a joint state may be from its state, in seconds.
        joints: Names whose positions are the proprioception, in its order; empty = the robot
            state carries the proprioception itself.
        flood: Messages of one topic within a tick above which the log says so.
        fit: How an image of another size is made to fit, see `convert.fitted`.
    """

    def __init__(
        self,
        guard: ObservationGuard,
        log: Any,
        slop_s: float = 0.0,
        joints: Sequence[str] = (),
        flood: int = 100,
        fit: str = EXACT,
    ) -> None:
        self.guard = guard
        self.refusals = Refusals(log)
        self.flood = Flood(log, flood)
        self._joints, self._fit = tuple(joints), fit
        parts = (*guard.cameras, JOINTS) if joints else guard.cameras
        self._pairing: Pairing[RobotState] = Pairing(parts, round(slop_s * 1e9))

    def state(self, msg: RobotState) -> Moment[RobotState] | None:
        """Take a robot state; return its moment if all of it is there."""
        self.flood.tick()
        if not self._joints:
            try:
                self.guard.proprio(np.array(msg.proprioception, np.float32))
            except GuardError as error:
                self.refusals.refuse('robot state', error)
                return None
            self.refusals.good('robot state')
        return self._pairing.state(key(msg.header.stamp), msg)

    def image(self, camera: str, topic: str, msg: Image) -> Moment[RobotState] | None:
        """Take an image; return the moment that it completes.

        Raises:
            GuardError: The image is refused; what waits for it is not answered.
        """
        self.flood.count(topic)
        source = f'image {camera!r}'
        try:
            pixels = fitted(msg_to_image(msg, camera), self.guard.hw(camera), self._fit)
            self.guard.image(camera, pixels)
        except GuardError as error:
            self.refusals.refuse(source, error)
            raise
        self.refusals.good(source)
        return self._pairing.part(camera, key(msg.header.stamp), pixels)

    def joints(self, topic: str, msg: JointState) -> Moment[RobotState] | None:
        """Take the joints' positions; return the moment that they complete.

        Raises:
            GuardError: A joint is missing, or a position is no sound number.
        """
        self.flood.count(topic)
        try:
            values = joints_of(msg, self._joints)
            self.guard.proprio(values)
        except GuardError as error:
            self.refusals.refuse('joint state', error)
            raise
        self.refusals.good('joint state')
        return self._pairing.part(JOINTS, key(msg.header.stamp), values)

    def observation(self, moment: Moment[RobotState], now: int) -> Observation:
        """Return what the policy is shown; ``now`` is the node's clock in nanoseconds."""
        msg, parts = moment.state, dict(moment.parts)
        proprio = parts.pop(JOINTS, None)
        if proprio is None:
            proprio = np.array(msg.proprioception, np.float32)
        seen = Observation(parts, proprio, msg.tick, msg.episode, msg.epoch)
        return replace(seen, age=(now - moment.oldest) * 1e-9)
