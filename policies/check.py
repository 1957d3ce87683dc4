"""check_policy: what the robot loop relies on, tried out on any policy.

Six checks, each of which refuses with `PolicyFault`, one line, naming itself:

- ``shape``: chunks are float32 [horizon, A], finite, and a copy of their own.
- ``determinism``: the same seed, observation and subgoal give the same bits; another seed does not
  change what is seen, and an observation or a subgoal that differs is noticed.
- ``closure``: what `close_over` names, with the subgoal port, is all that the next chunk depends
  on (freeze, go on, overwrite every buffer, restore, go on: the same bits).
- ``reset``: nothing of the episode before is left: the first chunk after a reset is the one of a
  fresh policy.
- ``nan``: a bad observation raises `ObservationError` and leaves every buffer as it was.
- ``graph``: after a freeze of the context nothing is made or captured any more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from flashrt_policies.base import ObservationError, Policy, SubgoalPort
from flashrt_ros.capsule.closure import Closure
from flashrt_ros.capsule.fingerprint import Fingerprint
from flashrt_ros.capsule.session import Session
from flashrt_ros.contract.context import Context
from flashrt_ros.errors import FlashrtError

Make = Callable[[Context, SubgoalPort], Policy]
WORDS = ('open the top drawer', 'press the button')


class PolicyFault(FlashrtError, AssertionError):
    """A policy breaks what the robot loop relies on; `check` names what."""

    def __init__(self, check: str, message: str) -> None:
        super().__init__(f'{check}: {message}')
        self.check = check


class Port:
    """A subgoal port of two slots, as the mailbox makes one."""

    def __init__(self, ctx: Context, length: int) -> None:
        self.slots = ctx.buffer('check/slots', (2, length), torch.int32)
        self.live = ctx.buffer('check/live', (1,), torch.int64)

    def say(self, text: str) -> None:
        """Write the idle slot and make it live."""
        idle = 1 - int(self.live.tensor)
        data = np.frombuffer(text.encode(), np.uint8)[: self.slots.shape[1]]
        row = torch.zeros(self.slots.shape[1], dtype=torch.int32)
        row[: len(data)] = torch.from_numpy(data.astype(np.int32) + 1)
        self.slots.tensor[idle].copy_(row)
        self.live.tensor.fill_(idle)


def check_policy(make: Make, subgoal_length: int, device: str = 'cpu', seed: int = 0) -> None:
    """Try a policy; return when all is well.

    Args:
        make: builds the policy in a context of its own.
        subgoal_length: bytes in a row of its subgoal port.
        device: where.
        seed: of the observations.

    Raises:
        PolicyFault: a check failed; its message says which, and what would be right.
    """
    bench = _Bench(make, subgoal_length, device, seed)
    for check in (shape, determinism, graph, nan, reset, closure):
        check(bench)


class _Bench:
    """A policy under test, with observations to show it."""

    def __init__(self, make: Make, length: int, device: str, seed: int) -> None:
        self.make, self.length, self.device = make, length, device
        self.ctx = Context(device)
        self.port = Port(self.ctx, length)
        self.policy = make(self.ctx, self.port)
        self.rng = np.random.default_rng(seed)
        self.seen = [self._observation() for _ in range(2)]

    def _observation(self) -> tuple[dict[str, np.ndarray], np.ndarray]:
        spec = self.policy.spec
        images = {
            name: self.rng.integers(0, 256, (*spec.hw(name), 3), np.uint8) for name in spec.cameras
        }
        return images, self.rng.uniform(-1, 1, spec.proprio_dim).astype(np.float32)

    def chunk(self, index: int = 0, seed: int = 1, text: str = WORDS[0]) -> np.ndarray:
        """Return the first chunk after a reset."""
        self.policy.reset(seed)
        self.port.say(text)
        self.policy.observe(*self.seen[index])
        return self.policy.plan()


def shape(bench: _Bench) -> None:
    """Chunks are what the spec says."""
    spec, chunk = bench.policy.spec, bench.chunk()
    want = (spec.horizon, spec.action_dim)
    if not isinstance(chunk, np.ndarray) or chunk.shape != want or chunk.dtype != np.float32:
        kind = getattr(chunk, 'dtype', type(chunk).__name__)
        found = list(getattr(chunk, 'shape', ()))
        raise PolicyFault('shape', f'plan returned {kind} {found}; want float32 {list(want)}')
    if not np.isfinite(chunk).all():
        raise PolicyFault('shape', 'plan returned NaN or infinity; want finite actions')
    kept = chunk.copy()
    bench.chunk(1, 2)
    if not np.array_equal(chunk, kept):
        raise PolicyFault('shape', 'a later plan changed the chunk before; want a copy each time')


def determinism(bench: _Bench) -> None:
    """Same input, same bits; other input, other actions."""
    first = bench.chunk()
    if not np.array_equal(first, bench.chunk()):
        raise PolicyFault(
            'determinism', 'two resets to one seed gave different actions; want the noise from '
            'the seed and counter in buffers',
        )  # fmt: skip
    if np.array_equal(first, bench.chunk(1)):
        raise PolicyFault('determinism', 'another observation gave the same actions')
    if np.array_equal(first, bench.chunk(text=WORDS[1])):
        raise PolicyFault('determinism', 'another subgoal gave the same actions')


def reset(bench: _Bench) -> None:
    """Nothing of an episode is left after a reset."""
    fresh = _Bench(bench.make, bench.length, bench.device, 0)
    fresh.seen = bench.seen
    want = fresh.chunk()
    bench.chunk(1, 5, WORDS[1])
    bench.policy.plan()
    if not np.array_equal(bench.chunk(), want):
        raise PolicyFault(
            'reset', 'the first chunk after a reset differs from that of a fresh policy; want '
            'every cache, counter and seed set',
        )  # fmt: skip


def nan(bench: _Bench) -> None:
    """A bad observation is refused before a byte is written."""
    bench.chunk()
    before = {name: buffer.tensor.clone() for name, buffer in bench.ctx.buffers.items()}
    images, proprio = bench.seen[1]
    bad = proprio.copy()
    bad[-1] = np.nan
    wrong = {name: image[:-1] for name, image in images.items()}
    faults: list[tuple[str, Any, Any]] = [('NaN proprioception', images, bad)]
    faults.append(('an image of another size', wrong, proprio))
    for what, pictures, vector in faults:
        try:
            bench.policy.observe(pictures, vector)
        except ObservationError:
            pass
        else:
            raise PolicyFault('nan', f'observe took {what}; want an ObservationError')
        for name, buffer in bench.ctx.buffers.items():
            if not torch.equal(buffer.tensor, before[name]):
                raise PolicyFault('nan', f'{what} was refused, but buffer {name!r} has changed')


def graph(bench: _Bench) -> None:
    """Once the context is frozen, acting makes nothing new."""
    made = _Bench(bench.make, bench.length, bench.device, 0)
    made.ctx.freeze()
    try:
        made.chunk()
        made.policy.plan()
    except FlashrtError as error:
        raise PolicyFault('graph', f'acting in a frozen context failed: {error}') from None
    if not made.ctx.graphs:
        raise PolicyFault('graph', 'no graph was captured; want plan to replay captured graphs')


def closure(bench: _Bench) -> None:
    """What is named is all that counts."""
    named = Closure('policy')
    bench.policy.close_over(named)
    named.fixed(bench.port.slots, bench.port.live)
    prints = Fingerprint.of(named, device=bench.ctx.device, **bench.policy.fingerprint())
    session = Session(bench.ctx, named, prints)
    bench.chunk()
    bench.policy.plan()
    for again in (False, True):  # with an observation not planned on yet, and without
        if again:
            bench.policy.observe(*bench.seen[1])
        capsule = session.snapshot('check')
        want = [bench.policy.plan(), bench.policy.plan()]
        bench.chunk(1, 9, WORDS[1])
        for name, buffer in bench.ctx.buffers.items():
            _overwrite(buffer.tensor, len(name))
        session.restore(capsule)
        found = [bench.policy.plan(), bench.policy.plan()]
        session.restore(capsule)
        if not all(np.array_equal(a, b) for a, b in zip(want, found, strict=True)):
            raise PolicyFault(
                'closure', 'after a restore the policy acted differently; want every buffer and '
                'all host state that the next chunk reads named in close_over',
            )  # fmt: skip


def _overwrite(tensor: torch.Tensor, seed: int) -> None:
    """Fill a buffer with other, small values."""
    if tensor.dtype.is_floating_point:
        noise = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(seed))
        tensor.copy_(noise.to(tensor.dtype))
    else:
        tensor.copy_((tensor <= 0).to(tensor.dtype))
