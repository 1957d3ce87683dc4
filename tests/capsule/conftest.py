"""A toy brain on each device: state, an append cache, noise from a counter, a host-side queue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flashrt_ros.capsule.closure import Closure
from flashrt_ros.capsule.cursor import Cursor
from flashrt_ros.capsule.fingerprint import Fingerprint
from flashrt_ros.capsule.registry import Registry
from flashrt_ros.capsule.session import Session
from flashrt_ros.capsule.store import DiskStore
from flashrt_ros.contract.context import Context
from flashrt_ros.contract.graph import ShapeKey

torch.set_num_threads(2)
CAPACITY, WIDTH = 64, 8


class Brain:
    """Every step appends one position to a cache, mixes it into a state and queues a number."""

    def __init__(self, ctx: Context, complete: bool = True, capacity: int = CAPACITY) -> None:
        self.ctx = ctx
        self.state = ctx.buffer('state', (WIDTH,), torch.float32)
        self.count = ctx.buffer('count', (1,), torch.int64)
        self.flags = ctx.buffer('flags', (3,), torch.uint8)
        self.keys = ctx.buffer('keys', (1, 2, capacity, WIDTH), torch.bfloat16)
        self.odd = ctx.buffer('odd', (capacity, 3), torch.uint8)
        self.scratch = ctx.buffer('scratch', (WIDTH,), torch.float32)
        self.weight = ctx.buffer('weight', (WIDTH,), torch.float32)
        self.weight.tensor.copy_(torch.linspace(0.5, 1.5, WIDTH))
        self.mask = torch.arange(capacity, device=ctx.device)
        self.queue: list[int] = []
        self.cursor = Cursor('cache')
        self.graph = ctx.graph(
            'step',
            reads=(self.weight,),
            writes=(self.state, self.count, self.flags, self.keys, self.odd, self.scratch),
        )
        self.graph.capture(ShapeKey(), self._step)
        self.closure = Closure('brain').fixed(self.state, self.flags)
        if complete:
            self.closure.fixed(self.count)
        self.closure.append(self.keys, 2, self.cursor).append(self.odd, 0, self.cursor)
        self.closure.host('queue', self.get, self.set)

    def _step(self) -> None:
        at = self.count.tensor
        self.scratch.tensor.copy_(torch.sin(self.state.tensor * self.weight.tensor + at))
        row = self.scratch.tensor.to(torch.bfloat16).expand(1, 2, 1, WIDTH)
        self.keys.tensor.index_copy_(2, at, row)
        self.odd.tensor.index_copy_(0, at, (at + self.flags.tensor)[None].to(torch.uint8))
        valid = (self.mask <= at).float()
        past = (self.keys.tensor[0, 0].float() * valid[:, None]).sum(0)
        sums = (self.odd.tensor.float() * valid[:, None]).sum()
        self.state.tensor.copy_(torch.tanh(past + 0.01 * sums + self.flags.tensor.sum()))
        self.flags.tensor.add_(1)
        self.count.tensor.add_(1)

    def step(self) -> dict[str, object]:
        """One step; returns the state and what left the queue."""
        with self.cursor.appending(1):
            self.graph.replay(ShapeKey())
        self.queue.append(self.cursor.length)
        left = self.queue.pop(0) if len(self.queue) > 3 else -1
        return {'state': self.state.tensor.clone(), 'left': left}

    def get(self) -> dict[str, object]:
        """The queue, as host state."""
        return {'queue': list(self.queue), 'array': np.array(self.queue, np.int32)}

    def set(self, state: dict[str, object]) -> None:
        """Put the queue back."""
        if not isinstance(state['queue'], list):
            raise TypeError('queue is a list')
        self.queue[:] = state['queue']

    def bytes(self) -> dict[str, bytes]:
        """All valid bytes of the closure, straight from the buffers."""
        length = self.cursor.length
        valid = {
            'state': self.state.tensor,
            'count': self.count.tensor,
            'flags': self.flags.tensor,
            'keys': self.keys.tensor[:, :, :length],
            'odd': self.odd.tensor[:length],
        }
        found = {
            name: tensor.contiguous().view(torch.uint8).cpu().numpy().tobytes()
            for name, tensor in valid.items()
        }
        return {**found, 'queue': bytes(self.queue), 'length': str(length).encode()}

    def session(self, registry: Registry | None = None, **fields: str) -> Session:
        """A session over the closure."""
        fingerprint = Fingerprint.of(
            self.closure, self.ctx.device, **{'weights': 'w1', 'dtype': 'bfloat16', **fields}
        )
        return Session(self.ctx, self.closure, fingerprint, registry=registry)


@pytest.fixture(params=['cpu', pytest.param('cuda', marks=pytest.mark.cuda)])
def ctx(request: pytest.FixtureRequest) -> Context:
    """A fresh context on each device."""
    if request.param == 'cuda' and not torch.cuda.is_available():
        pytest.skip('no CUDA device: capsules are not tested on one here')
    return Context(request.param)


@pytest.fixture
def brain(ctx: Context) -> Brain:
    """A brain after three steps."""
    made = Brain(ctx)
    for _ in range(3):
        made.step()
    return made


@pytest.fixture
def make_brain() -> type[Brain]:
    """The class, for tests that make their own."""
    return Brain


@pytest.fixture
def stored(brain: Any, tmp_path: Path) -> tuple[Any, Any, list[Any], Path]:
    """A session with three capsules of one lineage on disk: (brain, session, capsules, path)."""
    path = tmp_path / 'capsules'
    session = brain.session(Registry(brain.ctx, gpu_bytes=1 << 20, store=DiskStore(path)))
    capsules = []
    for index in range(3):
        capsules.append((session.snapshot('turn', index, tier='disk'), brain.bytes()))
        brain.step()
    session.registry.settle()
    return brain, session, capsules, path
