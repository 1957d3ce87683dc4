"""What happened between a planner and an actor, in order; what the checks look at."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from flashrt_ros.control.types import Command

from .link import Message


@dataclass(frozen=True)
class Post:
    """A subgoal that was written into the mailbox.

    Attributes:
        generation: the mailbox's number of it.
        row: int32 [L], as it was to be written.
        message: what it came from.
        tick: at which it was written; -1 before the first tick.
        epoch: that was in force.
    """

    generation: int
    row: np.ndarray
    message: Message
    tick: int
    epoch: int


@dataclass(frozen=True)
class Read:
    """One inference.

    Attributes:
        tick: of the observation.
        epoch: it was begun in.
        generation: of the subgoal, as the chunk says.
        before: the live row when the replay began, int32 [L].
        after: the live row when it had ended, int32 [L].
        actions: float32 [H, A].
        posts: how many posts there had been when it began.
    """

    tick: int
    epoch: int
    generation: int
    before: np.ndarray
    after: np.ndarray
    actions: np.ndarray
    posts: int


@dataclass(frozen=True)
class Given:
    """A command, with the epoch that was in force when it was given."""

    command: Command
    epoch: int


@dataclass(frozen=True)
class Change:
    """An epoch began: by a start, an interrupt or a restore."""

    tick: int
    epoch: int
    why: str


@dataclass
class Trace:
    """Everything, each kind in order.

    Attributes:
        subgoal_delay: ticks from a post to the first inference that may see it.
        raced: posts came from another thread, at no tick in particular.
        sent: subgoals that the planner decided on.
        refused: what arrived and did not count, with the reason.
        posts: what was written into the mailbox.
        reads: inferences.
        given: commands.
        changes: epochs.
    """

    subgoal_delay: int = 1
    raced: bool = False
    sent: list[Message] = field(default_factory=list)
    refused: list[tuple[Message, str]] = field(default_factory=list)
    posts: list[Post] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    given: list[Given] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)

    def text_of(self, generation: int) -> str:
        """The subgoal of a generation, the newest where a restore went back; empty if none."""
        texts = [p.message.text for p in self.posts if p.generation == generation]
        return texts[-1] if texts else ''

    def subgoals(self) -> list[str]:
        """The subgoals that commands were given under, in order, each stretch once."""
        found: list[str] = []
        for one in self.given:
            text = self.text_of(one.command.generation)
            if text and not one.command.held and found[-1:] != [text]:
                found.append(text)
        return found
