"""What the supervisor asks of brain, robot and gate, and the capsules it knows by name."""

from __future__ import annotations

from dataclasses import dataclass

from rclpy.node import Node

from flashrt_interfaces.srv import BeginEpisode, Restore, SetEpoch, Snapshot
from flashrt_ros.errors import FlashrtError
from flashrt_ros.nodes import names
from flashrt_ros.nodes.peers import Peers

Stamp = dict[str, int]  # 'episode' and 'epoch'


@dataclass(frozen=True)
class Pair:
    """One moment: the brain's capsule and the simulator's (empty on a real robot)."""

    brain: str
    robot: str


class Links:
    """The supervisor's side of the services of brain, robot and gate.

    Args:
        node: The node that calls.
        simulator: The robot can begin, snapshot and restore.
        timeout: Seconds to wait for an answer.
    """

    def __init__(self, node: Node, simulator: bool, timeout: float) -> None:
        self._simulator = simulator
        self._peers = Peers(node, timeout)
        self._capsules: dict[str, Pair] = {}  # by boundary and by the brain's digest
        for kind, service in (
            (BeginEpisode, names.BRAIN_BEGIN),
            (Snapshot, names.BRAIN_SNAPSHOT),
            (Restore, names.BRAIN_RESTORE),
            (BeginEpisode, names.ROBOT_BEGIN),
            (Snapshot, names.ROBOT_SNAPSHOT),
            (Restore, names.ROBOT_RESTORE),
            (SetEpoch, names.ROBOT_SET_EPOCH),
            (SetEpoch, names.GATE_SET_EPOCH),
        ):
            self._peers.add(kind, service)

    def begin_brain(self, stamp: Stamp, instruction: str, seed: int) -> list[str]:
        """Ready the brain for an episode; return its plan. A refusal changes nothing."""
        request = BeginEpisode.Request(instruction=instruction, seed=seed, **stamp)
        return list(self._peers.call(names.BRAIN_BEGIN, request).subgoals)

    def begin_robot(self, stamp: Stamp, seed: int) -> None:
        """Park the simulator at the first tick of an episode; tell a real robot the epoch."""
        if self._simulator:
            self._peers.call(names.ROBOT_BEGIN, BeginEpisode.Request(seed=seed, **stamp))
        else:
            self.tell_robot(stamp)

    def tell_robot(self, stamp: Stamp) -> None:
        """Let the robot's states carry the epoch from now on."""
        self._peers.call(names.ROBOT_SET_EPOCH, SetEpoch.Request(running=True, **stamp))

    def gate(self, stamp: Stamp, running: bool, reason: str, timeout: float | None = None) -> None:
        """Open or close the gate in an epoch."""
        request = SetEpoch.Request(running=running, reason=reason, **stamp)
        self._peers.call(names.GATE_SET_EPOCH, request, timeout)

    def freeze(self, boundary: str) -> str:
        """Snapshot brain and simulator under one name; return the brain's digest."""
        request = Snapshot.Request(boundary=boundary)
        brain = str(self._peers.call(names.BRAIN_SNAPSHOT, request).digest)
        robot = ''
        if self._simulator:
            robot = str(self._peers.call(names.ROBOT_SNAPSHOT, request).digest)
        self._capsules[boundary] = self._capsules[brain] = Pair(brain, robot)
        return brain

    def find(self, name: str) -> Pair:
        """Return the capsules of a boundary or digest.

        Raises:
            FlashrtError: There are none; the message lists those there are.
        """
        if name not in self._capsules:
            known = ', '.join(n[:16] for n in self._capsules) or 'none: start an episode first'
            raise FlashrtError(f'no capsule {name!r}; there is: {known}')
        return self._capsules[name]

    def restore_brain(self, pair: Pair, stamp: Stamp, seed: int) -> None:
        """Put the brain back, with an empty queue. A refusal changes nothing."""
        request = Restore.Request(capsule=pair.brain, seed=seed, **stamp)
        self._peers.call(names.BRAIN_RESTORE, request)

    def restore_robot(self, pair: Pair, stamp: Stamp, seed: int) -> None:
        """Put the simulator back and park it; tell a real robot the epoch."""
        if self._simulator:
            request = Restore.Request(capsule=pair.robot, seed=seed, **stamp)
            self._peers.call(names.ROBOT_RESTORE, request)
        else:
            self.tell_robot(stamp)
