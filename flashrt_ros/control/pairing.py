"""Finds the camera images (and joint states) that belong to a robot state.

A simulator stamps everything of one moment alike, and parts are paired exactly. Cameras of a real
robot run on their own: then the part nearest in time counts, if it is within ``slop`` of its
state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

S = TypeVar('S')


@dataclass(frozen=True)
class Moment(Generic[S]):
    """A state with everything that belongs to it.

    Attributes:
        state: The state.
        parts: Name -> part.
        oldest: Stamp of the oldest of all of it, in nanoseconds.
    """

    state: S
    parts: Mapping[str, Any]
    oldest: int


class Pairing(Generic[S]):
    """Collects states and parts by their stamps; gives a moment once all of it is there.

    Args:
        names: The parts that belong to a moment.
        slop: How far a part may be from its state, in nanoseconds; 0 = the same stamp.
        depth: States, and parts of each name, that may wait; older ones are dropped.
    """

    def __init__(self, names: tuple[str, ...], slop: int = 0, depth: int = 8) -> None:
        self.names = names
        self.slop = slop
        self._states: deque[tuple[int, S]] = deque(maxlen=depth)
        self._parts: dict[str, deque[tuple[int, Any]]] = {n: deque(maxlen=depth) for n in names}

    def state(self, stamp: int, state: S) -> Moment[S] | None:
        """Take a state; return its moment if all of it is there."""
        self._states.append((stamp, state))
        return self._complete()

    def part(self, name: str, stamp: int, part: Any) -> Moment[S] | None:
        """Take a part; return the newest moment that it completes."""
        self._parts[name].append((stamp, part))
        return self._complete()

    def _complete(self) -> Moment[S] | None:
        for index in reversed(range(len(self._states))):
            stamp, state = self._states[index]
            found = {name: self._nearest(name, stamp) for name in self.names}
            if any(part is None for part in found.values()):
                continue
            while self._states and self._states[0][0] <= stamp:
                self._states.popleft()
            whole = {name: part for name, part in found.items() if part is not None}
            oldest = min((at for at, _ in whole.values()), default=stamp)
            return Moment(state, {n: p for n, (_, p) in whole.items()}, min(stamp, oldest))
        return None

    def _nearest(self, name: str, stamp: int) -> tuple[int, Any] | None:
        near = min(self._parts[name], key=lambda item: abs(item[0] - stamp), default=None)
        return near if near is not None and abs(near[0] - stamp) <= self.slop else None
