"""What the supervisor asks of brain, robot and gate, and the capsules it knows by name."""

from __future__ import annotations

from dataclasses import dataclass

from rclpy.node import Node

from flashrt_interfaces.msg import CapsuleInfo
from flashrt_interfaces.srv import BeginEpisode, ListCapsules, Restore, SetEpoch, Snapshot
from flashrt_ros.control.shelf import START, SUBGOAL, Shelf
from flashrt_ros.errors import FlashrtError
from flashrt_ros.nodes import names
from flashrt_ros.nodes.peers import Peers

Stamp = dict[str, int]  # 'episode' and 'epoch'


@dataclass(frozen=True)
class Boundary:
    """One moment: the brain's capsule, the simulator's, and that of a planner apart.

    ``robot`` is empty on a real robot, ``planner`` where the planner lives in the brain.
    """

    name: str
    brain: str
    robot: str
    planner: str
    episode: int
    epoch: int
    tick: int
    subgoal: str
    nbytes: int
    at: int  # ROS time, nanoseconds

    def tell(self, msg: CapsuleInfo) -> CapsuleInfo:
        """Add to the brain's word on its capsule what only the supervisor knows."""
        msg.header.stamp.sec, msg.header.stamp.nanosec = divmod(self.at, 10**9)
        msg.name, msg.robot = self.name, bool(self.robot)
        msg.episode, msg.epoch, msg.subgoal = self.episode, self.epoch, self.subgoal
        return msg


class Links:
    """The supervisor's side of the services of brain, robot and gate.

    Args:
        node: The node that calls.
        simulator: The robot can begin, snapshot and restore.
        planner_apart: The planner is a process of its own, and not in the brain.
        timeout: Seconds to wait for an answer.
        capsules: How many are kept; brain and simulator keep as many.
    """

    def __init__(
        self, node: Node, simulator: bool, planner_apart: bool, timeout: float, capsules: int
    ) -> None:
        self._node = node
        self._simulator, self._planner_apart = simulator, planner_apart
        self._peers = Peers(node, timeout)
        self.shelf: Shelf[Boundary] = Shelf('this robot', capsules)
        self._marks: list[Boundary] = []  # the way through this episode: start, subgoal changes
        for kind, service in (
            (BeginEpisode, names.BRAIN_BEGIN),
            (Snapshot, names.BRAIN_SNAPSHOT),
            (Restore, names.BRAIN_RESTORE),
            (ListCapsules, names.BRAIN_LIST),
            (BeginEpisode, names.PLANNER_BEGIN),
            (Snapshot, names.PLANNER_SNAPSHOT),
            (Restore, names.PLANNER_RESTORE),
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
        plan: list[str] = []
        if self._planner_apart:  # asked first: it is the one who refuses
            plan = list(self._peers.call(names.PLANNER_BEGIN, request).subgoals)
        return list(self._peers.call(names.BRAIN_BEGIN, request).subgoals) or plan

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

    def freeze(self, name: str, stamp: Stamp, tick: int, subgoal: str) -> Boundary:
        """Snapshot brain and simulator under one name."""
        request = Snapshot.Request(boundary=name)
        brain = self._peers.call(names.BRAIN_SNAPSHOT, request)
        robot = self._peers.call(names.ROBOT_SNAPSHOT, request).digest if self._simulator else ''
        planner = ''
        if self._planner_apart:
            planner = self._peers.call(names.PLANNER_SNAPSHOT, request).digest
        at = self._node.get_clock().now().nanoseconds
        made = Boundary(
            name, brain.digest, robot, planner, stamp['episode'], stamp['epoch'], tick, subgoal,
            brain.nbytes, at,
        )  # fmt: skip
        self.shelf.put(made.brain, name, made)
        return made

    def find(self, name: str) -> Boundary:
        """Return the capsules of a name or digest; an error lists those there are."""
        return self.shelf.find(name)

    def list(self, prefix: str) -> list[CapsuleInfo]:
        """Return what can be restored, oldest first."""
        there = self._peers.call(names.BRAIN_LIST, ListCapsules.Request()).capsules
        known = {b.brain: b for b in self.shelf.all() if b.name.startswith(prefix)}
        return [known[msg.digest].tell(msg) for msg in there if msg.digest in known]

    def restore_brain(self, boundary: Boundary, stamp: Stamp, seed: int) -> None:
        """Put the brain back, with an empty queue. A refusal changes nothing."""
        request = Restore.Request(capsule=boundary.brain, seed=seed, **stamp)
        self._peers.call(names.BRAIN_RESTORE, request)
        if self._planner_apart:
            request = Restore.Request(capsule=boundary.planner, **stamp)
            self._peers.call(names.PLANNER_RESTORE, request)

    def restore_robot(self, boundary: Boundary, stamp: Stamp, seed: int) -> None:
        """Put the simulator back and park it; tell a real robot the epoch."""
        if self._simulator:
            request = Restore.Request(capsule=boundary.robot, seed=seed, **stamp)
            self._peers.call(names.ROBOT_RESTORE, request)
        else:
            self.tell_robot(stamp)

    # -- the way through an episode ---------------------------------------------------------

    def mark(self, boundary: Boundary) -> None:
        """Note that the episode has come to ``boundary``, or is back at it."""
        if boundary in self._marks:
            del self._marks[self._marks.index(boundary) + 1 :]
        elif boundary.name == START or boundary.name.startswith(SUBGOAL):
            self._marks.append(boundary)

    def forget_marks(self) -> None:
        """A new episode has come to no boundary yet."""
        self._marks.clear()

    def back(self, boundaries: int) -> Boundary:
        """Return the boundary ``boundaries`` back; 1 = the newest.

        Raises:
            FlashrtError: The episode has not come so far; the message lists what it passed.
        """
        if not 1 <= boundaries <= len(self._marks):
            passed = ', '.join(mark.name for mark in self._marks) or 'none'
            raise FlashrtError(
                f'cannot go back by {boundaries} boundaries; this episode has {len(self._marks)}: '
                f'{passed}'
            )
        return self._marks[-boundaries]

    def boundary_of(self, index: int) -> Boundary | None:
        """Return the boundary at which subgoal ``index`` began; None if there is none."""
        name = f'{SUBGOAL}{index + 1}' if index else START
        return next((mark for mark in reversed(self._marks) if mark.name == name), None)
