"""The action gate as a process of its own: the last place before the actuators. No torch.

Commands that are stale, of an old epoch, not finite, out of limits or too fast are replaced by a
hold; so are all of them while the gate is closed, and their absence while it is open.
"""

from __future__ import annotations

import time
from typing import Any

from std_msgs.msg import Bool
from std_srvs.srv import Trigger

from flashrt_interfaces.msg import ControlCommand, RobotState
from flashrt_interfaces.srv import SetEpoch
from flashrt_ros.control.gate import Gate, GateLimits
from flashrt_ros.control.guards import summary
from flashrt_ros.control.types import Command, HoldRule
from flashrt_ros.control.watchdog import AgeWatch
from flashrt_ros.nodes import names, qos
from flashrt_ros.nodes.base import Managed, answers
from flashrt_ros.nodes.convert import command_to_msg, msg_to_command
from flashrt_ros.nodes.params import Param, declare
from flashrt_ros.nodes.spin import run

PARAMS = (
    Param('action_low', [-1.0] * 4, 'smallest value of each action entry, in the action\'s units'),
    Param('action_high', [1.0] * 4, 'largest value of each action entry, in the action\'s units'),
    Param('max_step', [2.0] * 4, 'largest change of each entry per tick, in the action\'s units'),
    Param('hold_keep', [3], 'entries that keep their last value in a hold; the others become 0'),
    Param('max_age_ticks', 0, 'a command may be this many ticks behind the robot', 0, 20),
    Param('max_ahead_ticks', 1, 'a command may be this many ticks ahead of the robot', 0, 20),
    Param('silence_s', 0.15, 'seconds without a command after which the gate holds', 0.01, 5.0),
    Param('watch_hz', 20.0, 'how often silence is looked for, in Hz', 1.0, 1000.0),
)  # fmt: skip


class GateNode(Managed):
    """Forwards `brain/command` to `gate/command`, or a hold in its place."""

    def __init__(self, name: str = 'gate', **options: Any) -> None:
        super().__init__(name, **options)
        self.p = declare(self, PARAMS)
        self.create_subscription(ControlCommand, names.COMMAND, self._on_command, qos.STATE)
        self.create_subscription(RobotState, names.ROBOT_STATE, self._on_state, qos.STATE)
        self.create_subscription(Bool, names.EMERGENCY_STOP, self._on_stop, qos.STATE)
        self.create_service(SetEpoch, names.GATE_SET_EPOCH, self._set_epoch)
        self.create_service(Trigger, names.GATE_RELEASE, self._release)
        self._out = self.create_publisher(ControlCommand, names.GATED, qos.STATE)
        self._warned: dict[str, float] = {}

    def configure(self) -> None:
        """Make the gate from the limits."""
        p = self.p
        limits = GateLimits(
            tuple(p.action_low),
            tuple(p.action_high),
            tuple(p.max_step),
            p.max_age_ticks,
            p.max_ahead_ticks,
        )
        self.gate = Gate(limits, HoldRule(len(p.action_low), tuple(p.hold_keep)))
        self._watch = AgeWatch(p.silence_s)
        self._timer = self.create_timer(1.0 / p.watch_hz, self._look)

    def cleanup(self) -> None:
        """Stop looking for silence."""
        self.destroy_timer(self._timer)

    def deactivate(self) -> None:
        """Send one last hold."""
        self._send(self.gate.holding('the gate is being deactivated'))
        self.get_logger().info(f'rejected: {summary(self.gate.rejected)}')

    def _send(self, command: Command) -> None:
        self._out.publish(command_to_msg(command, self.get_clock().now().to_msg()))

    def _on_command(self, msg: ControlCommand) -> None:
        if not self.active:
            return
        self._watch.feed()
        command = msg_to_command(msg)
        sent = self.gate.check(command)
        if sent is not command and self.gate.running:
            self._warn(sent.reason)
        if self.gate.running:  # while closed, the robot's own ticks are answered
            self._send(sent)

    def _warn(self, reason: str) -> None:
        kind = reason.split(' ')[0]
        now = time.monotonic()
        if now - self._warned.get(kind, -1e9) > 1.0:
            self._warned[kind] = now
            self.get_logger().warning(f'hold: {reason}')

    def _on_state(self, msg: RobotState) -> None:
        if not self.active:
            return
        self.gate.heard(msg.episode, msg.epoch, msg.tick)
        if not self.gate.running:
            stopped = self.gate.stopped
            reason = f'emergency stop: {stopped}' if stopped else self.gate.reason
            self._send(self.gate.holding(reason))

    def _look(self) -> None:
        if self.active and self.gate.running and self._watch.expired:
            sent = self.gate.silence(self._watch.age)
            self._warn(sent.reason)
            self._send(sent)

    def _on_stop(self, msg: Bool) -> None:
        if self.active and msg.data and not self.gate.stopped:
            self._send(self.gate.stop(f'asked for on {names.EMERGENCY_STOP}'))
            self.get_logger().error('emergency stop: latched until gate/release')

    @answers
    def _set_epoch(self, request: SetEpoch.Request, response: SetEpoch.Response) -> str:
        response.tick = self.gate.robot_tick
        hold = self.gate.set_epoch(request.episode, request.epoch, request.running, request.reason)
        if request.running:
            self._watch.feed()
            return f'open in epoch {request.epoch}'
        self._send(hold)
        return f'closed in epoch {request.epoch}'

    @answers
    def _release(self, request: Trigger.Request, response: Trigger.Response) -> str:
        self.gate.release()
        return 'the emergency stop is released; the gate stays closed until an episode goes on'


def main() -> None:
    """Run the gate."""
    run(GateNode)


if __name__ == '__main__':
    main()
