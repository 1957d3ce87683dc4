"""The simulated robot's side of the loop: which command is applied at which tick. No ROS.

One command is applied per tick, the one that is for that tick; without it the robot holds, and
the tick counts as missed while an episode is under way. A new epoch is taken up with the first
command that carries it, and nothing older is applied afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flashrt_ros.control.types import Command, HoldRule


@dataclass(frozen=True)
class Applied:
    """What the robot does at one tick: the action, and whether and why it is a hold."""

    action: np.ndarray
    held: bool
    reason: str
    missed: bool = False


class RobotClock:
    """Episode, epoch and tick of the simulated robot, and the slot for its next command.

    *Parked* is how an episode begins: the world stands still and its state is reported again and
    again, until the command for this very tick comes. So an episode starts at its first tick
    however long the start took. In *lockstep* the world is parked after every tick: no tick is
    missed and none is held for want of a command, however slow the robot's brain is.

    Args:
        hold: How the robot stands still.
        lockstep: Wait for the command of every tick, not of the first alone.

    Attributes:
        episode: Counted from 1; 0 before the first.
        epoch: What is older is never applied.
        tick: The next tick to be carried out.
        parked: The world stands still.
        applied_epoch: Epoch of what was applied last.
        applied_tick: Tick at which something was applied last; -1 before the first.
        missed: Ticks of this episode that passed without their command.
    """

    def __init__(self, hold: HoldRule, lockstep: bool = False) -> None:
        self.hold = hold
        self.lockstep = lockstep
        self.episode = 0
        self.epoch = 0
        self.tick = 0
        self.parked = True
        self.applied_epoch = 0
        self.applied_tick = -1
        self.missed = 0
        self.held = True
        self.reason = 'no episode has been started'
        self.last = hold.neutral()  # [A]
        self._running = False  # a command for its own tick has come in this epoch
        self._slot: Command | None = None

    def begin(self, episode: int, epoch: int, tick: int, last: np.ndarray | None = None) -> None:
        """Park at ``tick`` of an episode.

        Raises:
            ValueError: The epoch does not rise.
        """
        if epoch <= self.epoch and self.episode:
            raise ValueError(f'epoch {epoch} must be above epoch {self.epoch}, which is in force')
        self.episode, self.epoch, self.tick = episode, epoch, tick
        self.parked, self._running, self._slot = True, False, None
        self.applied_epoch, self.applied_tick, self.missed = epoch, -1, 0
        self.held, self.reason = True, 'parked at the start of an episode'
        self.last = self.hold.neutral() if last is None else np.array(last, np.float32)

    def set_epoch(self, epoch: int) -> None:
        """Take up an epoch without a command: states reported from now on carry it.

        Raises:
            ValueError: It lies before the one in force.
        """
        if epoch < self.epoch:
            raise ValueError(f'epoch {epoch} lies before epoch {self.epoch}: epochs only rise')
        if epoch > self.epoch:
            self.epoch, self._running = epoch, False

    @property
    def under_way(self) -> bool:
        """A command for its own tick has come in this epoch: a silent tick is a missed one."""
        return self._running

    def served(self) -> bool:
        """Return whether a command for the next tick is here."""
        return self._slot is not None

    def offer(self, command: Command) -> bool:
        """Take ``command`` into the slot if it is newer than what is there; else False."""
        if command.epoch < self.epoch or command.episode != self.episode:
            return False
        held = self._slot
        if held is not None and held.epoch == command.epoch and held.tick == self.tick:
            return False  # the command for this tick is here already
        if held is not None and command.epoch < held.epoch:
            return False
        if command.tick not in (-1, self.tick):
            return False  # too late or too early
        self._slot = command
        return True

    def take(self) -> Applied | None:
        """Return what to do at this tick; None while parked (then the world stands still)."""
        command, self._slot = self._slot, None
        if command is not None and command.epoch > self.epoch:
            self.epoch, self._running = command.epoch, False
        exact = command is not None and command.tick == self.tick
        if command is not None:
            self.applied_epoch = max(self.applied_epoch, command.epoch)
        if self.parked and not exact:
            if command is not None:
                self.held, self.reason = True, command.reason
            return None
        self.parked = self.lockstep
        if exact:
            self._running = True
        if command is None:
            reason = f'no command for tick {self.tick}'
            applied = Applied(self.hold(self.last), True, reason, self._running)
        else:
            missed = not exact and self._running
            applied = Applied(command.action, command.held, command.reason, missed)
        self.last = np.array(applied.action, np.float32)
        self.held, self.reason = applied.held, applied.reason
        self.missed += applied.missed
        self.applied_tick = self.tick
        self.tick += 1
        return applied
