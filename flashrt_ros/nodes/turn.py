"""In lockstep, one tick after the other: what a tick waits for before the brain answers it.

Nothing runs beside anything else: a tick is answered once its images are there, the planner has
been asked and the chunk that is wanted of it has been inferred, and the simulator goes on once it
has the answer. So an episode is the same on any machine, however slow.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from flashrt_interfaces.msg import RobotState
from flashrt_ros.control.pairing import Moment
from flashrt_ros.control.types import Command
from flashrt_ros.nodes.convert import key

Tick = tuple[int, int, int]  # episode, epoch, tick
NONE: Tick = (0, 0, -1)
Whole = Moment[RobotState] | None  # None: something of it was refused, or has no images


class Turn:
    """The one tick that is to be answered. Thread-safe.

    Args:
        node: A `PolicyNode`, which decides, infers, acts and sends.
        cameras: Whose images a state with ``images`` waits for, sound or not.
    """

    def __init__(self, node: Any, cameras: Sequence[str]) -> None:
        self._node, self._cameras = node, frozenset(cameras)
        self._lock = threading.Lock()
        self._state: RobotState | None = None  # the tick's newest report; None = it has begun
        self._now = NONE
        self._moment: Whole = None
        self._reports: set[int] = set()  # stamps of the tick's reports
        self._arrived: defaultdict[int, set[str]] = defaultdict(set)  # stamp -> cameras
        self._word = NONE  # the newest tick that the planner has had its say on
        self._answer: Command | None = None

    def state(self, msg: RobotState, moment: Whole) -> None:
        """Take a report of a tick, with its images if they were first."""
        now = (msg.episode, msg.epoch, msg.tick)
        with self._lock:
            if now != self._now:
                self._now, self._moment, self._answer = now, None, None
                self._reports.clear()
                self._state = msg
            elif self._answer is not None:
                self._node.send(self._answer)
            self._reports.add(key(msg.header.stamp))
            if self._state is not None:
                self._state = msg
            self._complete(moment)

    def image(self, camera: str, stamp: int, moment: Whole) -> None:
        """Take note of an image, sound or refused, and of the moment that it completes."""
        with self._lock:
            self._arrived[stamp].add(camera)
            for old in sorted(self._arrived)[:-8]:
                del self._arrived[old]
            self._complete(moment)

    def word(self, tick: Tick) -> None:
        """The planner has had its say on ``tick``."""
        with self._lock:
            self._word = tick
            self._complete(None)

    def _complete(self, moment: Whole) -> None:
        """Begin the tick if everything of it is there."""
        if moment is not None:
            at = moment.state
            if (at.episode, at.epoch, at.tick) == self._now:
                self._moment = moment
        msg = self._state
        if msg is None or not (self._node.hosts_planner or self._word == self._now):
            return
        if msg.images and not self._seen():
            return
        whole, self._state = self._moment, None
        self._node.worker.submit(lambda: self._take(msg, whole))

    def _seen(self) -> bool:
        """Whether an image of every camera has come, for one of the tick's reports."""
        found = (self._arrived.get(stamp, set()) for stamp in self._reports)
        return any(cameras >= self._cameras for cameras in found)

    # -- the replay thread ------------------------------------------------------------------

    def _take(self, msg: RobotState, moment: Whole) -> None:
        """Ask the planner, infer what is wanted, answer."""
        node, actor, command = self._node, self._node.actor, None

        def current() -> bool:
            return (msg.episode, msg.epoch) == (actor.episode, actor.epoch)

        if current() and not actor.paused:
            node.decide(msg)
            if moment is not None and actor.wants(msg.tick):
                node.infer(moment)
        with node.ticking:
            if current():
                command = node.act(msg.tick)
        if command is not None:
            node.send(command)
        self._answered((msg.episode, msg.epoch, msg.tick), command)

    def _answered(self, tick: Tick, command: Command | None) -> None:
        """Take note of the answer; a tick that got none begins anew when it is reported again."""
        with self._lock:
            if tick != self._now:
                return
            if command is not None and command.tick == tick[2]:
                self._answer = command
            else:
                self._now = NONE
