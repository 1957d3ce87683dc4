"""The action gate as a process of its own: the last place before the actuators. No torch.

Commands that are stale, of an old epoch, not finite, out of limits or too fast are replaced by a
hold; so are all of them while the gate is closed or something around it is wrong: a second
publisher on its topic, a silent robot, a dead supervisor. Their absence is a hold, too.
"""

from __future__ import annotations

import time
from typing import Any

from rclpy.event_handler import QoSLivelinessChangedInfo, SubscriptionEventCallbacks
from std_msgs.msg import Bool
from std_srvs.srv import Trigger

from flashrt_interfaces.msg import ControlCommand, EpisodeState, LoopStats, RobotState
from flashrt_interfaces.srv import SetEpoch
from flashrt_ros.control.gate import Gate, GateLimits
from flashrt_ros.control.guards import summary
from flashrt_ros.control.types import HoldRule
from flashrt_ros.control.watchdog import AgeWatch
from flashrt_ros.nodes import names, qos
from flashrt_ros.nodes.base import Managed, answers
from flashrt_ros.nodes.convert import msg_to_command
from flashrt_ros.nodes.output import Output, output_params
from flashrt_ros.nodes.params import Param, declare
from flashrt_ros.nodes.publishers import Rivals
from flashrt_ros.nodes.scheduling import PROCESS_PARAMS
from flashrt_ros.nodes.spin import run
from flashrt_ros.nodes.telemetry import tell_counts

PARAMS = (
    Param('autostart', True, 'configure and activate without being asked: closed, and on guard'),
    Param('action_low', [-1.0] * 4, 'smallest value of each action entry, in the action\'s units'),
    Param('action_high', [1.0] * 4, 'largest value of each action entry, in the action\'s units'),
    Param('max_step', [2.0] * 4, 'largest change of each entry per tick, in the action\'s units'),
    Param('hold_keep', [3], 'entries that keep their last value in a hold; the others become 0'),
    Param('max_age_ticks', 0, 'a command may be this many ticks behind the robot', 0, 20),
    Param('max_ahead_ticks', 1, 'a command may be this many ticks ahead of the robot', 0, 20),
    Param('silence_s', 0.15, 'seconds without a command after which the gate holds', 0.01, 3600.0),
    Param('robot_silence_s', 0.6, 'seconds without a robot state, then hold', 0.01, 3600.0),
    Param('flood_per_tick', 20, 'commands in one tick above which the log says so', 1, 10**6),
    Param('watch_hz', 20.0, 'how often all this is looked for, in Hz', 1.0, 1000.0),
    *output_params('command'),
    *PROCESS_PARAMS,
)  # fmt: skip


class GateNode(Managed):
    """Forwards `brain/command` to `gate/command`, or a hold in its place."""

    gate: Gate

    def __init__(self, name: str = 'gate', **options: Any) -> None:
        super().__init__(name, **options)
        self.p = declare(self, PARAMS)
        self.autostart = self.p.autostart
        self._warned: dict[str, float] = {}
        listen = self.create_subscription
        listen(ControlCommand, names.COMMAND, self._on_command, qos.STATE)
        listen(RobotState, names.ROBOT_STATE, self._on_state, qos.STATE)
        quiet = SubscriptionEventCallbacks(use_default_callbacks=False)
        for profile in (qos.STATE, qos.LATCHED):  # a button may keep its last word, or not
            listen(Bool, names.EMERGENCY_STOP, self._on_stop, profile, event_callbacks=quiet)
        alive = SubscriptionEventCallbacks(liveliness=self._on_supervisor)
        listen(EpisodeState, names.EPISODE, lambda _: None, qos.ALIVE, event_callbacks=alive)
        self.create_service(SetEpoch, names.GATE_SET_EPOCH, self._set_epoch)
        self.create_service(Trigger, names.GATE_RELEASE, self._release)
        self._rivals = Rivals(self, names.COMMAND)
        self._out = Output(self, self.p, names.GATED)

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
        self._out.check(len(p.action_low))
        self._commands = AgeWatch(p.silence_s)
        self._states = AgeWatch(p.robot_silence_s)
        self.every(1.0 / p.watch_hz, self._look)

    def deactivate(self) -> None:
        """Send one last hold."""
        self._out.send(self.gate.holding('the gate is being deactivated'))
        self.log.info(f'rejected: {summary(self.gate.rejected)}')

    def stamp(self) -> tuple[int, int]:
        """Return the gate's own episode and epoch."""
        return (self.gate.episode, self.gate.epoch) if self.ready else (0, 0)

    def figures(self, msg: LoopStats) -> str:
        """Tell what went through, and what did not and why."""
        msg.ticks = self.gate.forwarded
        tell_counts(msg, self.gate.rejected)
        return f'emergency stop: {self.gate.stopped}' if self.gate.stopped else ''

    # -- commands and states ----------------------------------------------------------------

    def _on_command(self, msg: ControlCommand) -> None:
        if not self.active:
            return
        self._commands.feed()
        command = msg_to_command(msg)
        sent = self.gate.check(command)
        if sent is None:
            if self.gate.repeats >= self.p.flood_per_tick:
                self._warn(
                    f'flood: {self.gate.repeats + 1} commands on {names.COMMAND} in one tick of '
                    'the robot; one is expected, and only the first counts'
                )
        elif self.gate.running:  # while closed, the robot's own ticks are answered
            if sent is not command:
                self._warn(f'hold: {sent.reason}')
            self._out.send(sent)

    def _warn(self, text: str) -> None:
        """Say it, but the same kind of thing once a second at most."""
        kind = ' '.join(text.split()[:2])
        now = time.monotonic()
        if now - self._warned.get(kind, -1e9) > 1.0:
            self._warned[kind] = now
            self.log.warning(text)

    def _on_state(self, msg: RobotState) -> None:
        if not self.active:
            return
        self._states.feed()
        self.gate.alarm('robot', '')
        self.gate.heard(msg.episode, msg.epoch, msg.tick)
        reason = self.gate.closed_because
        if reason:
            self._out.send(self.gate.holding(reason))

    # -- what is around the gate ------------------------------------------------------------

    def _look(self) -> None:
        if not self.active:
            return
        self._alarm('publishers', self._rivals.look())
        if self._states.expired:
            self._alarm('robot', f'no state of the robot for more than {self.p.robot_silence_s} s')
        if not self.gate.running:
            return
        if self._commands.expired:
            sent = self.gate.silence(self._commands.age)
            self._warn(f'hold: {sent.reason}')
            self._out.send(sent)
        elif self.gate.alarms:
            self._out.send(self.gate.holding(self.gate.closed_because))

    def _on_supervisor(self, event: QoSLivelinessChangedInfo) -> None:
        if self.ready:
            dead = event.alive_count == 0
            self._alarm('supervisor', 'the supervisor gives no sign of life' if dead else '')

    def _alarm(self, kind: str, reason: str) -> None:
        was = self.gate.alarms.get(kind, '')
        self.gate.alarm(kind, reason)
        if reason and not was:
            say = self.log.error if self.gate.running else self.log.info
            say(f'{reason}; holding until that is over')
        elif was and not reason:
            self.log.info(f'over: {was}')

    def _on_stop(self, msg: Bool) -> None:
        if msg.data and self.ready and not self.gate.stopped:
            self._out.send(self.gate.stop(f'asked for on {names.EMERGENCY_STOP}'))
            self.log.error(f'emergency stop: latched until {names.GATE_RELEASE} is called')

    @answers
    def _set_epoch(self, request: SetEpoch.Request, response: SetEpoch.Response) -> str:
        response.tick = self.gate.robot_tick
        hold = self.gate.set_epoch(request.episode, request.epoch, request.running, request.reason)
        if request.running:
            self._commands.feed()
            return f'open in epoch {request.epoch}'
        self._out.send(hold)
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
