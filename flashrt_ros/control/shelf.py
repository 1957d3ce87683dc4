"""Capsules by name: the newest of a name counts, the oldest goes first, some names stay.

Brain, robot and supervisor each keep a shelf of one size, filled in one order, so what one of them
has, the others have.
"""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

from flashrt_ros.errors import FlashrtError

T = TypeVar('T')
START = 'episode-start'
INTERRUPTED = 'interrupt'
SUBGOAL = 'subgoal-'  # + its place in the plan, counted from 1
SHORT = 12  # digits of a digest that people are shown, and that are enough to name it


class ShelfError(FlashrtError, KeyError):
    """There is no such capsule."""

    def __str__(self) -> str:
        return str(self.args[0])


class Shelf(Generic[T]):
    """Things under a key and a name. Thread-safe.

    Args:
        whose: What the things are, for errors: 'the brain'.
        size: How many are kept; the oldest goes first.
        keep: Names whose newest thing is never dropped.
    """

    def __init__(self, whose: str, size: int, keep: tuple[str, ...] = (START,)) -> None:
        self._whose, self._size, self._keep = whose, size, keep
        self._things: dict[str, tuple[str, T]] = {}  # key -> name, thing; oldest first
        self._lock = threading.Lock()

    def put(self, key: str, name: str, thing: T) -> None:
        """Keep ``thing``; drop the oldest that may go where there are too many."""
        with self._lock:
            self._things.pop(key, None)
            self._things[key] = (name, thing)
            newest = {self._newest(kept) for kept in self._keep}
            for old in list(self._things):
                if len(self._things) <= self._size:
                    break
                if old not in newest and old != key:
                    self._things.pop(old)

    def _newest(self, name: str) -> str:
        return next((k for k in reversed(self._things) if self._things[k][0] == name), '')

    def find(self, wanted: str) -> T:
        """Return the thing of a key, of a name (the newest), or of a key's first digits.

        Raises:
            ShelfError: There is none, or the digits fit several; the message lists what there is.
        """
        with self._lock:
            key = wanted if wanted in self._things else self._newest(wanted)
            if not key and len(wanted) >= SHORT:
                fitting = [k for k in self._things if k.startswith(wanted)]
                key = fitting[0] if len(fitting) == 1 else ''
            if key:
                return self._things[key][1]
            known = [f'{name} ({k[:SHORT]})' for k, (name, _) in self._things.items()]
        there = ', '.join(known) or 'none: start an episode first'
        raise ShelfError(f'no capsule {wanted!r} of {self._whose}; there is: {there}')

    def all(self) -> list[T]:
        """Return every thing, oldest first."""
        with self._lock:
            return [thing for _, thing in self._things.values()]

    def __len__(self) -> int:
        return len(self._things)
