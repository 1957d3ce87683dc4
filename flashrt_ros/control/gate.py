"""Logic of the action gate: the last thing between a command and the actuators.

No torch, no ROS: the gate's process must start fast, stay small and survive everything else.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flashrt_ros.control.guards import GuardError, check_finite, check_limits, check_rate
from flashrt_ros.control.types import Command, HoldRule

ALARMS = ('publishers', 'robot', 'supervisor')  # what is wrong around the gate, while it lasts
REASONS = (
    'stopped', 'closed', *ALARMS, 'episode', 'epoch', 'paused', 'stale', 'ahead', 'shape',
    'finite', 'limits', 'rate', 'repeat', 'silence',
)  # fmt: skip


@dataclass(frozen=True)
class GateLimits:
    """What the gate lets through.

    Attributes:
        low: Smallest value of each action entry, [A].
        high: Largest value of each action entry, [A].
        step: Largest change of each entry from one tick to the next, [A].
        max_age_ticks: A command may be for a tick this far behind the robot's.
        max_ahead_ticks: A command may be for a tick this far ahead of what the gate has heard of
            the robot (its state and the command travel on different topics).
    """

    low: tuple[float, ...]
    high: tuple[float, ...]
    step: tuple[float, ...]
    max_age_ticks: int = 0
    max_ahead_ticks: int = 1

    def __post_init__(self) -> None:
        sizes = {len(self.low), len(self.high), len(self.step)}
        if len(sizes) != 1:
            raise ValueError(
                f'gate limits: low, high and step have {len(self.low)}, {len(self.high)} and '
                f'{len(self.step)} entries; they must have as many as an action'
            )


class Gate:
    """Forward a command or replace it by a hold, and count why.

    A gate starts closed. It is opened and closed by `set_epoch`; an emergency stop latches it
    until `release` and the next `set_epoch`; an alarm closes it while it lasts. It is not
    thread-safe: one thread calls it.

    Args:
        limits: What may pass.
        hold: How the robot stands still.
    """

    def __init__(self, limits: GateLimits, hold: HoldRule) -> None:
        if hold.action_dim != len(limits.low):
            raise ValueError(
                f'gate: the hold has {hold.action_dim} entries and the limits have '
                f'{len(limits.low)}; they must agree'
            )
        self.limits = limits
        self.hold = hold
        self.episode = 0
        self.epoch = 0
        self.running = False
        self.reason = 'no episode has been started'
        self.stopped = ''  # why the emergency stop latched; empty while it has not
        self.alarms: dict[str, str] = {}  # one of `ALARMS` -> sentence
        self.robot_tick = -1
        self.repeats = 0  # commands beyond the first since the robot's last tick
        self.forwarded = 0
        self.rejected = dict.fromkeys(REASONS, 0)
        self.last = hold.neutral()  # the action sent last, [A]
        self._served = -1  # the newest tick that a command was let through for
        self._low = np.array(limits.low)
        self._high = np.array(limits.high)
        self._step = np.array(limits.step)

    def set_epoch(self, episode: int, epoch: int, running: bool, reason: str) -> Command:
        """Take up an epoch, open or closed; return the hold to send at once.

        Raises:
            ValueError: The epoch lies before the one in force, or the gate is latched and asked
                to open.
        """
        if epoch < self.epoch:
            raise ValueError(
                f'epoch {epoch} lies before epoch {self.epoch}, which is in force: '
                'epochs only rise'
            )
        if running and self.stopped:
            raise ValueError(
                f'the emergency stop is latched ({self.stopped}): release it before going on'
            )
        if episode != self.episode:
            self.last = self.hold.neutral()
            self.robot_tick = -1
        if (episode, epoch) != (self.episode, self.epoch):
            self._served = -1
        self.episode, self.epoch = episode, epoch
        self.running, self.reason = running, reason
        return self.holding(reason)

    def stop(self, reason: str) -> Command:
        """Latch the emergency stop; return the hold to send at once."""
        self.stopped = reason or 'no reason given'
        self.running = False
        return self.holding(f'emergency stop: {self.stopped}')

    def release(self) -> None:
        """Unlatch the emergency stop. The gate stays closed until `set_epoch` opens it."""
        self.stopped = ''
        self.reason = 'closed since the emergency stop'

    def heard(self, episode: int, epoch: int, tick: int) -> None:
        """Take note of the robot's own tick; states of another episode or epoch do not count."""
        if episode == self.episode and epoch == self.epoch:
            self.repeats = 0 if tick != self.robot_tick else self.repeats
            self.robot_tick = tick

    def alarm(self, kind: str, reason: str) -> None:
        """Hold from now on because something around the gate is wrong; '' = no longer."""
        if reason:
            self.alarms[kind] = reason
        else:
            self.alarms.pop(kind, None)

    @property
    def closed_because(self) -> str:
        """Why nothing passes at present; empty while the gate is open and well."""
        if self.stopped:
            return f'emergency stop: {self.stopped}'
        if not self.running:
            return self.reason or 'closed'
        return next(iter(self.alarms.values()), '')

    def check(self, command: Command) -> Command | None:
        """Return ``command`` as it came, or the hold that takes its place.

        None: a command for its tick went out already, and nothing is to be sent. So a rate limit
        is one per tick, however many commands come.
        """
        verdict = self._verdict(command)
        if verdict is None:
            self.forwarded += 1
            self.last, self._served = command.action, command.tick
            return command
        kind, text = verdict
        self.rejected[kind] += 1
        if kind == 'repeat':
            self.repeats += 1
            return None
        whatever_tick = kind in ('stopped', 'closed', 'episode', 'epoch', *ALARMS)
        return self.holding(text, -1 if whatever_tick else command.tick)

    def _verdict(self, command: Command) -> tuple[str, str] | None:
        limits = self.limits
        if self.stopped:
            return 'stopped', f'emergency stop: {self.stopped}'
        if not self.running:
            return 'closed', self.reason
        for kind, text in self.alarms.items():
            return kind, text
        if command.episode != self.episode:
            return 'episode', f'command of episode {command.episode}; this is {self.episode}'
        if command.epoch != self.epoch:
            return 'epoch', f'command of epoch {command.epoch}; epoch {self.epoch} is in force'
        if command.tick < 0:
            return 'paused', command.reason or 'the sender is paused'
        behind = self.robot_tick - command.tick
        if behind > limits.max_age_ticks:
            return 'stale', (
                f'command for tick {command.tick}; the robot is at tick {self.robot_tick}'
            )
        if self.robot_tick >= 0 and -behind > limits.max_ahead_ticks:
            return 'ahead', (
                f'command for tick {command.tick}; the robot is only at tick {self.robot_tick}'
            )
        if command.action.shape != (self.hold.action_dim,):
            return 'shape', (
                f'action of shape {list(command.action.shape)}; this robot takes '
                f'[{self.hold.action_dim}]'
            )
        try:
            check_finite('action', command.action)
            check_limits('action', command.action, self._low, self._high)
            check_rate('action', command.action, self.last, self._step)
        except GuardError as error:
            return error.guard, str(error)
        if command.tick <= self._served:
            return 'repeat', f'tick {command.tick} has its command'
        return None

    def silence(self, waited: float) -> Command:
        """Return the hold to send when no command came for ``waited`` seconds."""
        self.rejected['silence'] += 1
        return self.holding(f'no command for {waited * 1e3:.0f} ms')

    def holding(self, reason: str, tick: int = -1) -> Command:
        """Return a hold of the epoch in force that follows the action sent last."""
        self.last = self.hold(self.last)
        return Command(
            self.last.copy(), tick, self.episode, self.epoch, 0, True, reason or 'closed'
        )
