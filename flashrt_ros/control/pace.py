"""How chunks follow each other, for policies that begin a chunk as the one before goes on.

Real-time chunking (arXiv 2506.07339) needs two numbers before it plans: how long ago the chunk
that is being executed began, and how many ticks will pass before the new one takes effect. The
first is known. The second is promised by the rhythm of the loop and measured afterwards: a chunk
that came late is remembered, and the next ones reckon with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

WINDOW = 10  # chunks whose delay is remembered


class Pace:
    """Delays as they were seen, and what they say about the next chunk.

    Args:
        delay: ticks from an observation to its chunk's first use, as promised.
        horizon: actions in a chunk.
    """

    def __init__(self, delay: int, horizon: int) -> None:
        self._delay, self._horizon = delay, horizon
        self._seen: deque[int] = deque(maxlen=WINDOW)
        self._newest = -1  # tick of the chunk that is being executed

    def begin(self) -> None:
        """Nothing is being executed: a start, a restore, or a chunk that was refused.

        What a warm-up or another episode took says nothing about this one: it is forgotten.
        """
        self._seen.clear()
        self._newest = -1

    def refuse(self) -> None:
        """The newest chunk will not be executed: the next follows none."""
        self._newest = -1

    def next(self, tick: int) -> tuple[int, int]:
        """Return what `RealTimePolicy.pace` takes for an observation of ``tick``.

        Returns:
            ticks since the executed chunk's observation (0 = there is none), and ticks until the
            new chunk takes effect.
        """
        delay = max((self._delay, *self._seen))
        elapsed = tick - self._newest if self._newest >= 0 else 0
        return (elapsed if 0 < elapsed < self._horizon else 0), delay

    def took(self, tick: int, effective: int) -> None:
        """The chunk of ``tick`` was queued and takes effect at tick ``effective``."""
        self._seen.append(effective - tick)
        self._newest = tick

    def state(self) -> dict[str, object]:
        """Return everything as numbers, for a capsule."""
        return {'seen': list(self._seen), 'newest': self._newest}

    def set_state(self, state: dict) -> None:
        """Put back what `state` gave."""
        seen: Sequence[int] = state['seen']
        self._seen = deque(map(int, seen), maxlen=WINDOW)
        self._newest = int(state['newest'])
