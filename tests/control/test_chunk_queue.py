"""The chunk queue against a plain model, and each of its rules by itself."""

import random
import threading

import numpy as np
import pytest

from flashrt_ros.control.chunk_queue import ChunkQueue
from flashrt_ros.control.types import Chunk, HoldRule

HOLD = HoldRule(2, keep=(1,))
HORIZON = 6


def chunk(tick: int, delay: int = 2, epoch: int = 1, generation: int = 1) -> Chunk:
    """Return a chunk whose actions say which observation and which tick they are for."""
    rows = [[tick, tick + i] for i in range(HORIZON)]
    actions = np.array(rows, dtype=np.float32)
    return Chunk(actions, tick, tick + delay, 1, epoch, generation)


def queue() -> ChunkQueue:
    """Return an empty queue in episode 1, epoch 1."""
    it = ChunkQueue(HOLD, HORIZON)
    it.start(1, 1)
    return it


def test_a_chunk_takes_effect_at_its_due_tick() -> None:
    """However early it is pushed, the action of a chunk comes out from ``due`` on, by tick."""
    it = queue()
    it.push(chunk(0, delay=3))
    commands = [it.take(t) for t in range(7)]
    assert [c.held for c in commands] == [True] * 3 + [False] * 3 + [True]
    assert [c.action.tolist() for c in commands[3:6]] == [[0, 3], [0, 4], [0, 5]]
    assert commands[6].action.tolist() == [0, 5]  # hold keeps entry 1, zeroes entry 0
    assert 'used up' in commands[6].reason


def test_a_late_chunk_loses_its_first_actions() -> None:
    """A chunk after its due tick is counted late and starts at the next tick."""
    it = queue()
    for t in range(4):
        it.take(t)
    pushed = it.push(chunk(0, delay=2))
    assert pushed is not None
    assert pushed.late
    assert it.counters['late'] == 1
    assert it.take(3).held  # the tick taken last stays what it was
    assert it.take(4).action.tolist() == [0, 4]


def test_refusals_are_counted() -> None:
    """Old epoch, older observation, nothing left: refused, each under its own counter."""
    it = queue()
    assert it.push(chunk(0, epoch=0)) is None
    it.push(chunk(4))
    assert it.push(chunk(4)) is None
    assert it.push(chunk(3)) is None
    it.take(30)
    assert it.push(chunk(8)) is None
    counters = it.counters
    assert (counters['old_epoch'], counters['out_of_order'], counters['expired']) == (1, 2, 1)
    with pytest.raises(ValueError, match=r'\[6, 2\]'):
        it.push(Chunk(np.zeros((5, 2), np.float32), 9, 9, 1, 1))


def test_ticks_run_forward() -> None:
    """A tick taken twice gives the same command; an earlier one is an error."""
    it = queue()
    it.push(chunk(0))
    assert it.take(2) is it.take(2)
    with pytest.raises(ValueError, match='forward'):
        it.take(1)


def test_flush_lets_nothing_old_out() -> None:
    """After a flush neither queued nor late chunks of the old epoch ever come out."""
    it = queue()
    it.push(chunk(0))
    it.take(2)
    it.flush(2)
    assert it.push(chunk(8)) is None
    assert all(it.take(t).held for t in range(3, 12))
    assert it.take(12).epoch == 2


class Model:
    """The rules of the docstring, written the slow and obvious way."""

    def __init__(self) -> None:
        self.accepted: list[tuple[int, Chunk]] = []
        self.last = -1

    def push(self, item: Chunk) -> bool:
        """Accept or refuse."""
        if any(item.tick <= other.tick for _, other in self.accepted):
            return False
        effective = max(item.due, self.last + 1)
        if effective >= item.tick + HORIZON:
            return False
        self.accepted.append((effective, item))
        return True

    def take(self, tick: int) -> list[float] | None:
        """Return the action, None for a hold."""
        self.last = tick
        ready = [c for effective, c in self.accepted if effective <= tick]
        if not ready:
            return None
        best = max(ready, key=lambda c: c.tick)
        return best.actions[tick - best.tick].tolist() if tick - best.tick < HORIZON else None


def test_agrees_with_the_plain_model() -> None:
    """500 random schedules of pushes, takes and skipped ticks: same actions, same refusals."""
    seed = random.randrange(2**32)
    print(f'seed {seed}')
    rng = random.Random(seed)
    for _ in range(500):
        it, model, tick = queue(), Model(), 0
        for _ in range(40):
            if rng.random() < 0.4:
                item = chunk(max(0, tick + rng.randint(-4, 2)), delay=rng.randint(0, 5))
                assert (it.push(item) is not None) == model.push(item)
            else:
                expected = model.take(tick)
                command = it.take(tick)
                assert command.held == (expected is None)
                if expected is not None:
                    assert command.action.tolist() == expected
                tick += rng.choice([1, 1, 1, 2, 5])


def test_state_is_the_whole_queue() -> None:
    """A queue with another's state continues alike; with one entry altered it does not."""
    one = queue()
    one.push(chunk(0))
    one.push(chunk(1, delay=4))
    for t in range(4):
        one.take(t)
    state = one.state()

    def rest(it: ChunkQueue) -> list:
        return [(c.action.tolist(), c.held) for c in (it.take(t) for t in range(3, 12))]

    other, broken = queue(), queue()
    other.set_state(state)
    altered = dict(state)
    altered['effective'] = state['effective'] + 1  # type: ignore[operator]
    broken.set_state(altered)
    expected = rest(one)
    assert rest(other) == expected
    assert rest(broken) != expected  # negative control


def test_threads_may_push_and_take_at_once() -> None:
    """With a pusher beside a taker, every command is one whole action of one chunk."""
    it = queue()
    stop = threading.Event()
    progress = [0]

    def push() -> None:
        while not stop.is_set():
            it.push(chunk(progress[0], delay=1))

    thread = threading.Thread(target=push)
    thread.start()
    try:
        moved = 0
        for t in range(2000):
            progress[0] = t
            command = it.take(t)
            moved += not command.held
            if not command.held:
                first, second = command.action.tolist()
                assert second == t
                assert t - HORIZON < first <= t
    finally:
        stop.set()
        thread.join()
    assert moved > 0
