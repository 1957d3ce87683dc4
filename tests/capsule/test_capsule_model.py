"""Random histories against a plain model that copies everything: every byte, every time.

The sequences mix appends, announced and unannounced rewrites, snapshots, restores, rollbacks,
forks, demotions, promotions, evictions and dropped references over tight budgets.
"""

from __future__ import annotations

import copy
import os
import random
from typing import Any

import pytest
import torch

from flashrt_ros.capsule.closure import Closure
from flashrt_ros.capsule.cursor import Cursor
from flashrt_ros.capsule.errors import BudgetError, PinnedError
from flashrt_ros.capsule.fingerprint import Fingerprint
from flashrt_ros.capsule.registry import Registry
from flashrt_ros.capsule.segment import MEMORY, Segment
from flashrt_ros.capsule.session import Session
from flashrt_ros.contract.context import Context

SEED = int(os.environ.get('FLASHRT_TEST_SEED', '') or random.SystemRandom().randrange(1 << 32))
SEQUENCES = 2000
CAPACITY = 24
FINGERPRINT = Fingerprint({'model': 'toy'})
OPERATIONS = {
    'append': 6, 'rewrite': 3, 'truncate': 2, 'scribble': 2, 'fixed': 3, 'polled': 2,
    'snapshot': 8, 'restore': 6, 'rollback': 3, 'fork': 1, 'switch': 2, 'demote': 3,
    'promote': 2, 'evict': 2, 'drop': 2, 'pin': 1, 'unpin': 1, 'settle': 1,
}  # fmt: skip
Operation = tuple[str, int, int]


class History:
    """The real thing and its model, side by side."""

    def __init__(self) -> None:
        self.ctx = Context('cpu')
        self.cursor = Cursor('cache')
        self.host = {'n': 0, 'polled': 0}
        self.fixed = self.ctx.buffer('fixed', (5,), torch.float32)
        self.keys = self.ctx.buffer('keys', (2, CAPACITY, 3), torch.bfloat16)
        self.bits = self.ctx.buffer('bits', (CAPACITY,), torch.uint8)
        self.other = self.ctx.buffer('other', (CAPACITY, 2), torch.int32)
        closure = Closure('toy').fixed(self.fixed)
        closure.append(self.keys, 1, self.cursor).append(self.bits, 0, self.cursor)
        closure.append(self.other, 0, lambda: self.host['polled'])
        closure.host('host', lambda: dict(self.host), self.host.update)
        self.registry = Registry(self.ctx, gpu_bytes=640, host_bytes=320)
        self.sessions = [Session(self.ctx, closure, FINGERPRINT, registry=self.registry)]
        self.session = self.sessions[0]
        self.model: list[tuple[Any, dict[str, Any]]] = []  # (capsule, everything copied)
        self.value = 0

    def fresh(self) -> int:
        """A value that was not written before, within a byte."""
        self.value = (self.value + 1) % 251
        return self.value

    def live(self) -> dict[str, Any]:
        """Copies of everything that is valid now."""
        length, polled = self.cursor.length, self.host['polled']
        return {
            'fixed': self.fixed.tensor.clone(),
            'keys': self.keys.tensor[:, :length].clone(),
            'bits': self.bits.tensor[:length].clone(),
            'other': self.other.tensor[:polled].clone(),
            'host': copy.deepcopy(self.host),
            'length': length,
        }

    def require(self, expected: dict[str, Any]) -> None:
        """The live state is the expected one."""
        for name, value in self.live().items():
            want = expected[name]
            same = torch.equal(value, want) if isinstance(value, torch.Tensor) else value == want
            assert same, f'{name} is {value}, must be {want}'

    def append(self, a: int, b: int) -> None:
        """Announced: positions from the length on."""
        count = min(a % 6, CAPACITY - self.cursor.length)
        with self.cursor.appending(count):
            start = self.cursor.length
            self.keys.tensor[:, start : start + count] = self.fresh()
            self.bits.tensor[start : start + count] = self.fresh()

    def truncate(self, a: int, b: int) -> None:
        """Give positions up."""
        self.cursor.truncate(a % (self.cursor.length + 1))

    def rewrite(self, a: int, b: int) -> None:
        """Give positions up and write others there."""
        self.truncate(a, b)
        self.append(b, a)

    def scribble(self, a: int, b: int) -> None:
        """Unannounced: somewhere below the length."""
        if self.cursor.length:
            self.bits.tensor[a % self.cursor.length] = self.fresh()

    def fixed_(self, a: int, b: int) -> None:
        """Change the fixed part and the host state."""
        self.fixed.tensor[a % 5] = self.fresh()
        self.host['n'] = b

    def polled(self, a: int, b: int) -> None:
        """A cache whose length somebody else keeps."""
        start = a % CAPACITY
        self.other.tensor[start] = self.fresh()
        self.host['polled'] = b % CAPACITY

    def snapshot(self, a: int, b: int) -> None:
        """Freeze, and copy everything into the model."""
        try:
            capsule = self.session.snapshot('s', a)
        except BudgetError:
            return
        self.model.append((capsule, self.live()))

    def pick(self, a: int) -> tuple[Any, dict[str, Any]] | None:
        """Some capsule."""
        return self.model[a % len(self.model)] if self.model else None

    def restore(self, a: int, b: int) -> None:
        """Everything is as it was, or, without room, as it is."""
        picked, before = self.pick(a), self.live()
        if picked is not None:
            try:
                self.session.restore(picked[0])
            except BudgetError:
                self.require(before)
            else:
                self.require(picked[1])

    def rollback(self, a: int, b: int) -> None:
        """To the parent."""
        head = self.session.head
        for capsule, expected in self.model:
            if head is not None and capsule is head.parent:
                try:
                    self.session.rollback(capsule)
                except BudgetError:
                    return
                self.require(expected)
                return

    def fork(self, a: int, b: int) -> None:
        """Two more sessions."""
        picked = self.pick(a)
        if picked is not None and len(self.sessions) < 6:
            self.sessions += self.session.fork(picked[0], 2)

    def switch(self, a: int, b: int) -> None:
        """Another session goes on from the live state."""
        self.session = self.sessions[a % len(self.sessions)]

    def demote(self, a: int, b: int) -> None:
        """To the host's memory."""
        picked = self.pick(a)
        if picked is not None:
            try:
                self.registry.demote(picked[0], 'host', wait=bool(b % 2))
            except (BudgetError, PinnedError):
                return

    def promote(self, a: int, b: int) -> None:
        """And back."""
        picked = self.pick(a)
        if picked is not None:
            try:
                self.registry.promote(picked[0], 'gpu')
            except BudgetError:
                return

    def evict(self, a: int, b: int) -> None:
        """For good."""
        picked = self.pick(a)
        if picked is not None:
            try:
                self.registry.evict(picked[0])
            except PinnedError:
                return
            self.model = [entry for entry in self.model if entry[0] is not picked[0]]

    def drop(self, a: int, b: int) -> None:
        """Evict the oldest, whatever it was shared with."""
        self.evict(0, b)

    def pin(self, a: int, b: int) -> None:
        """In place."""
        picked = self.pick(a)
        if picked is not None:
            picked[0].pin(self.session)

    def unpin(self, a: int, b: int) -> None:
        """All pins of the session."""
        self.session.close()

    def settle(self, a: int, b: int) -> None:
        """Finish what is under way."""
        self.registry.settle()

    def account(self) -> None:
        """Each tier uses what the distinct segments of its capsules take, and not a byte more."""
        self.registry.settle()
        for live in self.registry.lives:
            live.let_go()
        for tier in MEMORY:
            segments: dict[int, Segment] = {}
            for capsule in self.registry.capsules:
                if tier in capsule.tiers:
                    for tip in capsule.tips:
                        segment: Segment | None = tip
                        while segment is not None:
                            segments[id(segment)] = segment
                            segment = segment.parent
            taken = sum(segment.blocks[tier].size for segment in segments.values())
            assert self.registry.usage(tier).used == taken


def run(operations: list[Operation]) -> None:
    """One history; at its end every capsule is restored, and without capsules tiers are empty."""
    history = History()
    for name, a, b in operations:
        getattr(history, 'fixed_' if name == 'fixed' else name)(a, b)
    history.account()
    for session in history.sessions:
        session.close()
    for index in range(len(history.model)):
        history.restore(index, 0)
    history.account()
    for capsule, _ in history.model:
        history.registry.evict(capsule)
    history.account()
    assert [history.registry.usage(tier).used for tier in MEMORY] == [0, 0]


def sequences(seed: int, count: int) -> list[list[Operation]]:
    """Random histories, for the planted faults."""
    source = random.Random(seed)
    names, weights = list(OPERATIONS), list(OPERATIONS.values())
    return [
        [(name, source.randrange(1 << 10), source.randrange(1 << 10))
         for name in source.choices(names, weights, k=source.randrange(4, 30))]
        for _ in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize('part', range(2))
def test_random_histories_give_every_byte_back(part: int) -> None:
    """Hypothesis draws the histories and shrinks the one that fails; the seed is printed."""
    hypothesis = pytest.importorskip('hypothesis', reason='hypothesis is not installed')
    strategies = hypothesis.strategies
    print(f'FLASHRT_TEST_SEED={SEED}')
    weighted = [name for name, weight in OPERATIONS.items() for _ in range(weight)]
    number = strategies.integers(0, 1023)
    step = strategies.tuples(strategies.sampled_from(weighted), number, number)

    @hypothesis.seed(SEED + part)
    @hypothesis.settings(
        max_examples=SEQUENCES // 2,
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(strategies.lists(step, min_size=10, max_size=40))
    def check(operations: list[Operation]) -> None:
        run(operations)

    check()


def planted(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """Break one thing that laziness depends on."""
    from flashrt_ros.capsule import cursor, live, segment

    if fault == 'rewrites are not noticed':
        monkeypatch.setattr(cursor.Cursor, 'intact', lambda self: self._length)
    elif fault == 'unannounced writes are not noticed':
        monkeypatch.setattr(cursor.Cursor, 'intact', lambda self: self._intact)
    elif fault == 'the live state is taken for another text':
        monkeypatch.setattr(segment.Text, 'common', lambda self, other: self.length)
    elif fault == 'a polled length counts as untouched':
        monkeypatch.setattr(cursor.Polled, 'intact', lambda self: self._settled)
    elif fault == 'a restore forgets the fixed part':
        monkeypatch.setattr(live.Live, 'load', lambda self, block, texts: self.settle(texts))
    elif fault == 'a shared segment is freed with its first owner':

        def release(self: Segment, tier: str) -> None:
            block = self.blocks.get(tier)
            if block is not None:
                block.arena.give(block)
            self.holders[tier] = 0

        monkeypatch.setattr(segment.Segment, 'release', release)


@pytest.mark.parametrize(
    'fault',
    [
        'rewrites are not noticed',
        'unannounced writes are not noticed',
        'the live state is taken for another text',
        'a polled length counts as untouched',
        'a restore forgets the fixed part',
        'a shared segment is freed with its first owner',
    ],
)
def test_the_model_catches_what_it_must(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """Negative controls: each planted fault is found within a few hundred histories."""
    for operations in sequences(7, 20):
        run(operations)  # sound as it is
    planted(monkeypatch, fault)
    with pytest.raises((AssertionError, KeyError, RuntimeError)):
        for operations in sequences(7, 400):
            run(operations)
