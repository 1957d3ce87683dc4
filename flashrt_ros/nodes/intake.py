"""What the brain sees: robot states and camera images, paired into observations or refused.

A message that no policy may be shown is refused before it touches a buffer. From then on the robot
holds, until a good message of the same source is there. The log has one line when a source turns
bad and one when it is good again, however many messages are refused in between.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
from sensor_msgs.msg import Image

from flashrt_interfaces.msg import RobotState
from flashrt_ros.control.guards import GuardError, ObservationGuard
from flashrt_ros.control.pairing import Pairing
from flashrt_ros.nodes.convert import key, msg_to_image

Complete = tuple[RobotState, Mapping[str, np.ndarray]]


class Refusals:
    """Which sources are refused at present, and why; says each change once. Thread-safe.

    Args:
        log: A node's logger.
    """

    def __init__(self, log: Any) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._bad: dict[str, tuple[str, str, int]] = {}  # source -> guard, sentence, how many
        self.count = 0  # refused since the node was made

    def refuse(self, source: str, error: GuardError) -> str:
        """Note that ``source`` sent what is refused; return the sentence."""
        with self._lock:
            self.count += 1
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


class Intake:
    """Pairs each state with the images of its moment.

    Args:
        guard: What an observation must be.
        log: A node's logger.
    """

    def __init__(self, guard: ObservationGuard, log: Any) -> None:
        self.guard = guard
        self.refusals = Refusals(log)
        self._pairing: Pairing[RobotState] = Pairing(guard.cameras)

    def state(self, msg: RobotState) -> Complete | None:
        """Take a robot state; return the observation if it was the last part of it."""
        try:
            self.guard.proprio(np.array(msg.proprioception, np.float32))
        except GuardError as error:
            self.refusals.refuse('robot state', error)
            return None
        self.refusals.good('robot state')
        return self._pairing.state(key(msg.header.stamp), msg)

    def image(self, camera: str, msg: Image) -> Complete | None:
        """Take an image; return the observation if it was the last part of it.

        Raises:
            GuardError: The image is refused; what waits for it is not answered.
        """
        source = f'image {camera!r}'
        try:
            pixels = msg_to_image(msg, camera)
            self.guard.image(camera, pixels)
        except GuardError as error:
            self.refusals.refuse(source, error)
            raise
        self.refusals.good(source)
        return self._pairing.image(key(msg.header.stamp), camera, pixels)
