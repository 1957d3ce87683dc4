"""What happens in the demo, asked from outside as a person would ask.

Episode 1: start, interrupt in the middle of the second subgoal, warm re-entry, to its end.
Episode 2: from the restored start of episode 1, to its end, untouched.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from flashrt_interfaces.msg import Subgoal
from flashrt_ros.control import episode as states
from flashrt_ros.errors import FlashrtError
from flashrt_ros.nodes.operator import Operator, Record

INTO_MOTION = 24  # ticks under the second subgoal before the interrupt
PAUSE_S = 0.6  # how long the robot is left standing, in seconds
LOOK_S = 0.5  # how often the processes are looked after while waiting, in seconds
EPISODE_S = 90.0  # longest wait for an episode to end, in seconds


@dataclass
class Told:
    """What happened, beside what the operator recorded. Times are monotonic seconds."""

    record: Record
    plan: list[str] = field(default_factory=list)
    instruction: str = ''
    epochs: list[int] = field(default_factory=list)  # first epoch of each episode
    outcomes: list[str] = field(default_factory=list)
    interrupted_at: float | None = None
    acknowledged_at: float | None = None
    acknowledged_ns: int | None = None  # the same in ROS time, nanoseconds
    interrupt_epoch: int = 0
    ack_ticks: int | None = None
    resumed_at: float | None = None
    reentry_ms: float | None = None
    reset_at: float | None = None
    reset_ms: float | None = None
    trouble: list[str] = field(default_factory=list)


class Story:
    """Runs the demo through an operator.

    Args:
        operator: Connected to a system that is up.
        say: Called with a sentence at every step.
        alive: Called while waiting; raises when a process has died.
    """

    def __init__(
        self,
        operator: Operator,
        say: Callable[[str], None],
        alive: Callable[[], None] = lambda: None,
    ) -> None:
        self.operator = operator
        self._alive = alive
        self.say = say
        self.told = Told(operator.record)

    def run(self, instruction: str, plan: list[str], seed: int) -> Told:
        """Run both episodes; what goes wrong stands in ``trouble`` and the rest goes on."""
        told = self.told
        told.instruction, told.plan = instruction, plan
        try:
            self._first(instruction, seed)
            self._second()
        except FlashrtError as error:
            told.trouble.append(str(error))
            self.say(f'trouble: {error}')
        return told

    def _first(self, instruction: str, seed: int) -> None:
        operator, told = self.operator, self.told
        answer = operator.start(instruction, seed)
        told.epochs.append(answer.epoch)
        self.say(f'episode 1: "{instruction}"')
        epoch = answer.epoch
        self._until(lambda: self._in_motion(epoch) or self.operator.ended(1), EPISODE_S)
        if self.operator.ended(1):
            told.trouble.append('episode 1 ended before its second subgoal: no interrupt')
        else:
            self._interrupt()
        if not self._until(lambda: self.operator.ended(1), EPISODE_S):
            told.trouble.append(f'episode 1 did not end within {EPISODE_S:.0f} s')
        self._close()

    def _interrupt(self) -> None:
        operator, told = self.operator, self.told
        told.interrupted_at = time.monotonic()
        answer = operator.interrupt('a person steps in')
        told.acknowledged_at, told.acknowledged_ns = time.monotonic(), time.time_ns()
        told.interrupt_epoch, told.ack_ticks = answer.epoch, answer.ack_ticks
        self.say(f'{answer.message} ({answer.ack_ticks} ticks carried out after the request)')
        self._stand()  # an action of the old epoch would have time to show
        told.resumed_at = time.monotonic()
        back = operator.resume()
        told.reentry_ms = back.reentry_ms
        self.say(f'warm re-entry: first action after {back.reentry_ms:.0f} ms')

    def _second(self) -> None:
        operator, told = self.operator, self.told
        told.reset_at = time.monotonic()
        answer = operator.reset()
        told.epochs.append(answer.epoch)
        told.reset_ms = answer.reset_ms
        self.say(f'reset in {answer.reset_ms:.0f} ms; episode 2 from the restored start')
        if not self._until(lambda: self.operator.ended(2), EPISODE_S):
            told.trouble.append(f'episode 2 did not end within {EPISODE_S:.0f} s')
        self._close()

    def _close(self) -> None:
        episode = self.operator.episode
        assert episode is not None
        self.told.outcomes.append(episode.outcome or episode.state)
        if episode.state == states.FAULT:
            raise FlashrtError(f'fault: {episode.reason}')
        self._stand()

    def _stand(self) -> None:
        """Leave the robot as it is for a moment."""
        self.operator.until(lambda: False, PAUSE_S)

    def _until(self, holds: Callable[[], bool], timeout: float) -> bool:
        """Wait until ``holds()``, for at most ``timeout`` seconds; look after the processes."""
        deadline = time.monotonic() + timeout
        while not self.operator.until(holds, LOOK_S):
            self._alive()
            if time.monotonic() > deadline:
                return False
        return True

    def _in_motion(self, epoch: int) -> bool:
        """Whether actions under the second subgoal have gone out for long enough."""
        newest = [m for _, m in self.told.record.sent[-2 * INTO_MOTION :]]
        moving = [m for m in newest if m.epoch == epoch and m.generation == 2 and not m.held]
        return len(moving) >= INTO_MOTION


def done(record: Record, epochs: set[int], text: str, index: int) -> bool:
    """Return whether subgoal ``index`` of the plan was reported reached in these epochs."""
    return any(
        m.status == Subgoal.STATUS_DONE and m.text == text and m.index == index
        for _, m in record.subgoals
        if m.epoch in epochs
    )
