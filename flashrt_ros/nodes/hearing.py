"""What the supervisor hears of robot, brain and gate, and waits for."""

from __future__ import annotations

import threading
from collections import deque

from flashrt_interfaces.msg import ControlCommand, RobotState
from flashrt_ros.control.watchdog import AgeWatch
from flashrt_ros.nodes.convert import key
from flashrt_ros.nodes.peers import Await

# Words from before an episode that may come once the gate has answered in it: what its writer and
# this node's reader can hold back, ten each (`qos.STATE`).
STRAGGLERS = 20


class Hearing:
    """The newest words of each peer; callbacks fill it, operations wait on it.

    Args:
        patience: Seconds of silence after which a peer counts as dead.
    """

    def __init__(self, patience: float) -> None:
        self.wait = Await()
        self.tick = -1  # of the robot
        self.missed = 0  # ticks of this episode
        self.applied = (0, -1)  # epoch and tick of what the robot applied last
        self.moving = -1  # newest epoch in which the gate let an action through
        self.replaced = ''  # a peer that has come back as another process
        self._gate = (0, 0)  # newest episode and epoch of the gate
        self._begun = (0, 0)  # those that the episode began with
        self._older = 0  # words of the gate in a row that are older than its newest
        self._on_their_way = 0  # how many of them prove nothing
        self._lock = threading.Lock()  # between the gate's words and a new beginning
        self._recent: deque[tuple[int, int, int]] = deque(maxlen=100)  # stamp, tick, applied epoch
        self._ages = {peer: AgeWatch(patience) for peer in ('robot', 'gate', 'brain')}

    def robot(self, msg: RobotState) -> None:
        """Take a state of the robot."""
        self._ages['robot'].feed()
        self.tick, self.missed = msg.tick, msg.missed_ticks
        self.applied = (msg.applied_epoch, msg.applied_tick)
        if not self._recent or self._recent[-1][1:] != (msg.tick, msg.applied_epoch):
            self._recent.append((key(msg.header.stamp), msg.tick, msg.applied_epoch))
        self.wait.notify()

    def brain(self, msg: bytes) -> None:
        """Take a command of the brain, as it came."""
        self._ages['brain'].feed()

    def gate(self, msg: ControlCommand) -> None:
        """Take a command of the gate. A gate's epoch never falls: a lower one is a new process."""
        self._ages['gate'].feed()
        now = (msg.episode, msg.epoch)
        with self._lock:
            if now >= self._gate:
                self._gate, self._older = now, 0
            else:
                self._older += 1  # a few may still be on their way when an episode begins
                if self._older > self._on_their_way:
                    self.replaced = 'gate'
            if now >= self._begun:
                self._on_their_way = 0
        if not msg.held:
            self.moving = max(self.moving, msg.epoch)
            self.wait.notify()

    def silent(self) -> str:
        """Return who has been silent for too long, or was replaced; '' if nobody."""
        if self.replaced:
            return f'the {self.replaced} was started anew, and knows nothing of this episode'
        gone = [(watch.age, peer) for peer, watch in self._ages.items() if watch.expired]
        if not gone:
            return ''
        age, peer = max(gone)  # the others may be silent because of it
        return f'{peer} has been silent for {age:.1f} s'

    def forgive(self, episode: int, epoch: int) -> None:
        """Begin an episode with whichever gate has just answered in it."""
        with self._lock:
            self.replaced = ''
            self._gate = self._begun = (episode, epoch)
            self._older, self._on_their_way = 0, STRAGGLERS

    def carried_out_since(self, asked: int, epoch: int) -> int:
        """Return the ticks begun after ``asked`` (ns) that applied something before ``epoch``."""
        return len({tick for at, tick, old in list(self._recent) if at > asked and old < epoch})
