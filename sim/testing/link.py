"""What carries subgoals from a planner to an actor, and what may become of them on the way."""

from __future__ import annotations

from dataclasses import dataclass

from flashrt_ros.errors import FlashrtError


@dataclass(frozen=True)
class Message:
    """A subgoal on its way, stamped as on the Subgoal topic.

    Attributes:
        text: in words.
        number: of the subgoal in the planner's count, from 1; raised by one with each.
        tick: control tick of the decision; -1 for before the first tick.
        episode: it belongs to.
        epoch: it was decided in.
    """

    text: str
    number: int
    tick: int
    episode: int
    epoch: int


@dataclass(frozen=True)
class Fault:
    """What becomes of the subgoals numbered `which`, when each is sent for the first time.

    Attributes:
        delay: ticks until it arrives.
        drop: it never arrives.
        copies: how often it arrives; with `again` ticks between.
        again: ticks from one copy to the next.
        late: it is held back until the subgoal after it has arrived, or the epoch is over.
        which: numbers of the subgoals; empty = all.
    """

    delay: int = 0
    drop: bool = False
    copies: int = 1
    again: int = 3
    late: bool = False
    which: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.delay < 0 or self.copies < 1 or self.again < 0:
            raise FlashrtError(
                f'fault: delay {self.delay}, copies {self.copies}, again {self.again}; want at '
                'least 0, 1 and 0'
            )


# One of each kind; the second subgoal is the one that goes wrong, so that the first is there.
FAULTS = {
    'none': Fault(),
    'delayed': Fault(delay=11, which=(2,)),
    'dropped': Fault(drop=True, which=(2,)),
    'duplicated': Fault(copies=2, again=9, which=(2,)),
    'late': Fault(late=True, which=(2,)),
}


class Link:
    """Messages in, messages out at the tick they arrive. Without faults, at once and in order.

    Args:
        fault: what goes wrong.
    """

    def __init__(self, fault: Fault | None = None) -> None:
        self.fault = fault or Fault()
        self._waiting: list[tuple[int, Message]] = []  # (tick of arrival, message)
        self._held: list[Message] = []
        self._hit: set[tuple[int, int]] = set()  # episode and number of what went wrong already

    def send(self, message: Message, at: int) -> None:
        """Take a message at tick `at`."""
        fault = self.fault
        held, self._held = self._held, []
        name = (message.episode, message.number)
        if name in self._hit or (fault.which and message.number not in fault.which):
            self._waiting += [(at, message), *((at, old) for old in held)]
            return
        self._hit.add(name)
        if fault.late:
            self._held = [*held, message]
            return
        arrivals = [at + fault.delay + n * fault.again for n in range(fault.copies)]
        self._waiting += [(arrival, message) for arrival in arrivals if not fault.drop]
        self._waiting += [(at, old) for old in held]

    def over(self, tick: int) -> None:
        """The epoch is over: what was held back comes now."""
        self._waiting += [(tick, message) for message in self._held]
        self._held = []

    def arrived(self, tick: int) -> list[Message]:
        """Take out what has arrived up to `tick`."""
        found = [message for at, message in self._waiting if at <= tick]
        self._waiting = [(at, message) for at, message in self._waiting if at > tick]
        return found
