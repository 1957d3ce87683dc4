"""A branch: one of several futures of an episode that take turns on one simulator and brain."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flashrt_ros.capsule.capsule import Capsule

    from .episode import LiveEpisode, Moment


class Branch:
    """One future; made by `LiveEpisode.fork`.

    Use it as long as its turn lasts: `tick` goes on in it, whichever branch went on before.

    Args:
        live: the episode that was forked.
        capsule: where the branch stands; shared with its siblings until it moves.
        noise: seed of the policy's noise from its first turn on; None = as the capsule has it.

    Attributes:
        capsule: where it stood when its turn ended last.
    """

    def __init__(self, live: LiveEpisode, capsule: Capsule, noise: int | None) -> None:
        self._live, self.capsule, self._noise = live, capsule, noise

    @property
    def active(self) -> bool:
        """Whether it is this branch's turn."""
        return self._live.branch is self

    def enter(self) -> LiveEpisode:
        """Begin its turn: freeze the branch that went on until now, and go on in this one.

        A restore or a start of the episode itself ends a turn without freezing it: the branch
        then stands where its last turn began.
        """
        live = self._live
        if live.branch is not self:
            if live.branch is not None:
                live.branch.capsule = live.snapshot('branch')
            live.restore(self.capsule, noise=self._noise)
            live.branch, self._noise = self, None
        return live

    def tick(self) -> Moment:
        """One tick of this branch."""
        return self.enter().tick()
