"""A gate process alone, between a robot and a brain that the test plays itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from harness import LONG, looked_for
from rclpy.node import Node
from std_msgs.msg import Bool
from std_srvs.srv import Trigger

from flashrt_interfaces.msg import ControlCommand, RobotState
from flashrt_interfaces.srv import SetEpoch
from flashrt_ros.nodes import names, qos
from flashrt_ros.nodes.operator import Operator
from flashrt_ros.nodes.runner import System, free_domain
from flashrt_ros.nodes.system import PROCESSES

QUIET = {'silence_s': 600.0, 'robot_silence_s': 600.0}  # a busy machine must not trip these
AGAIN_S = 0.2  # after which a command that was not answered is sent again


class Stand:
    """What a test does to a gate, and what the gate sends."""

    def __init__(self, system: System, operator: Operator) -> None:
        self.system, self.operator = system, operator
        node = operator.node
        self.states = node.create_publisher(RobotState, names.ROBOT_STATE, qos.STATE)
        self.commands = node.create_publisher(ControlCommand, names.COMMAND, qos.STATE)
        operator.peers.add(SetEpoch, names.GATE_SET_EPOCH)
        operator.peers.add(Trigger, names.GATE_RELEASE)
        self.tick = 0
        self.epoch = 0

    @property
    def node(self) -> Node:
        """The test's own node."""
        return self.operator.node

    def button(self, profile: Any) -> Any:
        """Return a publisher of the emergency stop."""
        return self.node.create_publisher(Bool, names.EMERGENCY_STOP, profile)

    def connect(self) -> None:
        """Wait until everything the test sends has its listener."""
        for topic in (self.states, self.commands):
            assert looked_for(self.operator, lambda t=topic: t.get_subscription_count() > 0)

    def open(self) -> None:
        """Open the gate in a new epoch."""
        self.epoch += 1
        request = SetEpoch.Request(episode=1, epoch=self.epoch, running=True)
        self.operator.peers.call(names.GATE_SET_EPOCH, request)

    def state(self) -> None:
        """Report the robot's next tick."""
        self.tick += 1
        self.states.publish(RobotState(episode=1, epoch=self.epoch, tick=self.tick))

    def command(self, *action: float, tick: int | None = None) -> None:
        """Send a command, by default a good one for the robot's tick."""
        self.commands.publish(self.message(*action, tick=tick))

    def message(self, *action: float, tick: int | None = None) -> ControlCommand:
        """Return the command that `command` sends."""
        msg = ControlCommand(episode=1, epoch=self.epoch)
        msg.tick = self.tick if tick is None else tick
        msg.action = list(action or (0.1, 0.1, 0.1, 1.0))
        return msg

    def sent(self, since: int = 0) -> list[ControlCommand]:
        """Return what the gate sent from message ``since`` on."""
        return [m for _, m in self.operator.record.sent[since:]]

    def drive(self, good: Callable[[ControlCommand], bool]) -> bool:
        """Drive ticks until the gate sends something as wanted."""
        before = len(self.operator.record.sent)

        def found() -> bool:
            return any(good(m) for m in self.sent(before))

        end = time.monotonic() + LONG
        while time.monotonic() < end:
            self.state()
            for _ in range(3):  # a state may reach the gate after its command
                self.command()
                if self.operator.until(found, AGAIN_S):
                    return True
        return False

    def until_passes(self) -> bool:
        """Drive ticks until a command comes through."""
        return self.drive(lambda m: m.tick == self.tick and not m.held)

    def until_held(self, words: str) -> bool:
        """Drive ticks until the gate holds with ``words``."""
        return self.drive(lambda m: m.held and words in m.reason)


@contextmanager
def gate_stand(**params: Any) -> Iterator[Stand]:
    """Run a gate with ``params``."""
    domain = free_domain()
    gate = {**QUIET, **params}
    with (
        Operator(domain, patience=LONG) as operator,
        System([PROCESSES[0]], {'gate': gate}, domain) as system,
    ):
        stand = Stand(system, operator)
        stand.connect()
        yield stand
