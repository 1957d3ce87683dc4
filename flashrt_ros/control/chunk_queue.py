"""Queue of action chunks, addressed by control tick.

A chunk computed from the observation of tick ``t`` takes effect at tick ``due`` whenever it
happened to be ready before; so what is done at a tick depends on ticks alone and not on how fast
this machine was. Wall time only decides whether a chunk came late.
"""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np

from flashrt_ros.control.types import Chunk, Command, HoldRule

COUNTERS = ('pushed', 'late', 'expired', 'old_epoch', 'out_of_order', 'held')
CAPACITY = 8  # chunks waiting for their due tick; more means that nobody takes them


class ChunkQueue:
    """Chunks in, one command per tick out. Thread-safe.

    Rules, for ``take(tick)``:

    * The chunk with the newest observation among those in effect gives the action
      ``actions[tick - chunk.tick]``.
    * A chunk pushed after its due tick was taken counts as late and takes effect at the next
      tick; the actions it had for the ticks that passed are dropped.
    * A chunk with nothing left for the future is refused and counted as expired.
    * Other episode or epoch: refused and counted. Observation older than the newest accepted
      one: refused and counted.
    * Nothing in effect, or the chunk in effect is used up: hold.
    * Taking a tick twice gives the same command twice.

    Args:
        hold: How the robot stands still; its ``action_dim`` is A.
        horizon: Actions in one chunk, H.
    """

    def __init__(self, hold: HoldRule, horizon: int) -> None:
        self.hold = hold
        self.horizon = horizon
        self.counters = dict.fromkeys(COUNTERS, 0)
        self._lock = threading.RLock()
        self.episode = 0
        self.epoch = 0
        self._waiting: list[tuple[int, Chunk]] = []  # (effective tick, chunk), by observation tick
        self._active: Chunk | None = None
        self._taken: Command | None = None
        self._newest = -1  # tick of the newest observation accepted
        self._last = hold.neutral()  # [A]

    def start(self, episode: int, epoch: int) -> None:
        """Begin an episode: everything is forgotten but the counters."""
        with self._lock:
            self.episode, self.epoch = episode, epoch
            self._last = self.hold.neutral()
            self._clear()

    def flush(self, epoch: int, episode: int | None = None) -> None:
        """Drop every chunk and take up ``epoch``: what was pushed before never comes out."""
        with self._lock:
            self.epoch = epoch
            self.episode = self.episode if episode is None else episode
            self._clear()

    def _clear(self) -> None:
        self._waiting.clear()
        self._active = None
        self._taken = None
        self._newest = -1

    @property
    def depth(self) -> int:
        """Chunks that wait for their due tick."""
        with self._lock:
            return len(self._waiting)

    @property
    def last_tick(self) -> int:
        """The tick taken last; -1 before the first."""
        with self._lock:
            return -1 if self._taken is None else self._taken.tick

    def push(self, chunk: Chunk) -> Chunk | None:
        """Queue ``chunk``; return it with ``late`` set as it was, or None when it was refused.

        Raises:
            ValueError: Its actions are not [horizon, action_dim].
        """
        if chunk.actions.shape != (self.horizon, self.hold.action_dim):
            raise ValueError(
                f'chunk of shape {list(chunk.actions.shape)}; this queue takes '
                f'[{self.horizon}, {self.hold.action_dim}]'
            )
        with self._lock:
            if (chunk.episode, chunk.epoch) != (self.episode, self.epoch):
                self.counters['old_epoch'] += 1
                return None
            if chunk.tick <= self._newest:
                self.counters['out_of_order'] += 1
                return None
            upcoming = self.last_tick + 1
            late = chunk.due < upcoming
            effective = max(chunk.due, upcoming)
            if effective - chunk.tick >= self.horizon:
                self.counters['expired'] += 1
                return None
            if len(self._waiting) == CAPACITY:
                self._waiting.pop(0)
                self.counters['expired'] += 1
            chunk = replace(chunk, late=late)
            self._waiting.append((effective, chunk))
            self._newest = chunk.tick
            self.counters['pushed'] += 1
            self.counters['late'] += late
            return chunk

    def take(self, tick: int) -> Command:
        """Return the command for ``tick``. Ticks may be skipped but not taken backwards.

        Raises:
            ValueError: ``tick`` lies before the one taken last.
        """
        with self._lock:
            if self._taken is not None:
                if tick == self._taken.tick:
                    return self._taken
                if tick < self._taken.tick:
                    raise ValueError(
                        f'tick {tick} after tick {self._taken.tick}: ticks run forward only; '
                        'flush the queue first'
                    )
            for effective, chunk in self._waiting:
                if effective <= tick and (self._active is None or chunk.tick > self._active.tick):
                    self._active = chunk
            self._waiting = [item for item in self._waiting if item[0] > tick]
            self._taken = self._command(tick)
            self._last = self._taken.action
            self.counters['held'] += self._taken.held
            return self._taken

    def _command(self, tick: int) -> Command:
        chunk = self._active
        if chunk is None:
            return self.holding(tick, 'no chunk is due yet')
        index = tick - chunk.tick
        if index >= self.horizon:
            return self.holding(tick, f'the chunk of tick {chunk.tick} is used up')
        action = np.array(chunk.actions[index], dtype=np.float32)  # [A]
        return Command(action, tick, self.episode, self.epoch, chunk.generation)

    def holding(self, tick: int, reason: str) -> Command:
        """Return a hold for ``tick`` that follows the last command taken."""
        with self._lock:
            generation = self._active.generation if self._active is not None else 0
            action = self.hold(self._last)
            return Command(action, tick, self.episode, self.epoch, generation, True, reason)

    def state(self) -> dict[str, object]:
        """Return the whole queue as numbers and arrays, for a capsule."""
        with self._lock:
            chunks = [chunk for _, chunk in self._waiting]
            if self._active is not None:
                chunks.insert(0, self._active)
            rows = [(c.tick, c.due, c.generation, int(c.late)) for c in chunks]
            taken = self._taken
            return {
                'last': self._last.copy(),
                'newest': self._newest,
                'active': self._active is not None,
                'actions': np.array([c.actions for c in chunks], dtype=np.float32).reshape(
                    len(chunks), self.horizon, self.hold.action_dim
                ),  # [chunks, H, A]
                'rows': np.array(rows, dtype=np.int64).reshape(len(chunks), 4),
                'effective': np.array([e for e, _ in self._waiting], dtype=np.int64),
                'taken': -1 if taken is None else taken.tick,
                'taken_action': self._last.copy() if taken is None else taken.action.copy(),
                'taken_generation': 0 if taken is None else taken.generation,
                'taken_held': False if taken is None else taken.held,
                'taken_reason': '' if taken is None else taken.reason,
            }

    def set_state(self, state: dict) -> None:
        """Put back what `state` gave; episode and epoch stay those in force."""
        with self._lock:
            stamp = (self.episode, self.epoch)
            chunks = [
                Chunk(np.array(a, np.float32), int(t), int(d), *stamp, int(g), 0.0, bool(late))
                for a, (t, d, g, late) in zip(state['actions'], state['rows'], strict=True)
            ]
            self._active = chunks.pop(0) if state['active'] else None
            self._waiting = [(int(e), c) for e, c in zip(state['effective'], chunks, strict=True)]
            self._newest = int(state['newest'])
            self._last = np.array(state['last'], dtype=np.float32)
            self._taken = None
            if state['taken'] >= 0:
                self._taken = Command(
                    np.array(state['taken_action'], dtype=np.float32),
                    int(state['taken']),
                    *stamp,
                    int(state['taken_generation']),
                    bool(state['taken_held']),
                    str(state['taken_reason']),
                )
