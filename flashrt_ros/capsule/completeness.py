"""Is the closure complete, and is everything in it needed? A check for anybody's tests.

A snapshot that misses one buffer works until the day that buffer differs. So: freeze, go on and
note what comes out, overwrite everything, restore, go on again. The outputs must be the same
bits; and when one entry of the closure is left out of the restore, they must not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from flashrt_ros.capsule import host_state
from flashrt_ros.capsule.capsule import Capsule
from flashrt_ros.capsule.errors import IncompleteError
from flashrt_ros.capsule.session import Session
from flashrt_ros.contract.buffer import Buffer

Step = Callable[[], Any]


@dataclass
class Report:
    """What the check found; names of closure entries, and of buffers outside it."""

    needed: list[str] = field(default_factory=list)
    superfluous: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


def assert_complete(
    session: Session,
    step: Step,
    steps: int = 2,
    disturb: Callable[[], object] | None = None,
    constant: Iterable[str] = (),
    superfluous: Iterable[str] = (),
    seed: int = 0,
) -> Report:
    """Prove that the session's closure is all that `step` depends on, and nothing more.

    Call it in the middle of an episode, when caches are filled and queues are not empty.

    Args:
        session: whose closure is checked. Its live state is the same afterwards.
        step: goes on by one step from the live state and returns what to compare bit by bit:
            tensors, arrays, plain values, and lists and dicts of them.
        steps: how often it is called for one comparison.
        disturb: brings the live state somewhere else, for instance to another prompt or episode.
            By default: a step, and then every buffer of the context is overwritten.
        constant: buffers that are never written after start, weights say; left alone.
        superfluous: entries that are in the closure although this check cannot tell why.
        seed: of the overwriting values.

    Raises:
        IncompleteError: the outputs differ after a restore (names the missing buffer where it is
            one), or do not although an entry was left out (names the entry).
    """
    check = _Check(session, step, steps, disturb, frozenset(constant), seed)
    try:
        return check.run(frozenset(superfluous))
    finally:
        session.restore(check.start)


class _Check:
    def __init__(
        self,
        session: Session,
        step: Step,
        steps: int,
        disturb: Callable[[], object] | None,
        constant: frozenset[str],
        seed: int,
    ) -> None:
        self.session = session
        self.step = step
        self.steps = steps
        self.disturb = disturb
        closure, ctx = session.closure, session.context
        self.inside = {buffer.name: buffer for buffer in closure.buffers}
        self.outside = {
            name: buffer
            for name, buffer in ctx.buffers.items()
            if name not in self.inside and name not in constant
        }
        self.generator = torch.Generator().manual_seed(seed)
        self.start: Capsule = session.snapshot('completeness')
        self.before = {name: buffer.tensor.clone() for name, buffer in self.outside.items()}
        self.expected = self.outputs()

    def outputs(self) -> list[str]:
        """Digests of what the next steps return."""
        return [_digest(self.step()) for _ in range(self.steps)]

    def elsewhere(self) -> None:
        """Leave the state in which everything is different."""
        if self.disturb is not None:
            self.disturb()
        else:
            self.step()
            for buffer in (*self.inside.values(), *self.outside.values()):
                self.overwrite(buffer)

    def overwrite(self, buffer: Buffer) -> None:
        """Other values than it has, small ones, so that an index stays an index."""
        tensor = buffer.tensor
        if tensor.dtype.is_floating_point:
            noise = torch.randn(tensor.shape, generator=self.generator)
            tensor.copy_(noise.to(device=tensor.device, dtype=tensor.dtype))
        else:
            tensor.copy_((tensor <= 0).to(tensor.dtype))

    def run(self, known: frozenset[str]) -> Report:
        """Restore everything, then everything but one."""
        report = Report()
        self.elsewhere()
        self.session.restore(self.start)
        if self.outputs() != self.expected:
            report.missing = self.find_missing()
            names = ', '.join(map(repr, report.missing)) or 'state outside buffers (a host entry?)'
            raise IncompleteError(
                f'closure {self.session.closure.name!r} is not complete: the outputs differ after '
                f'a restore; it misses {names}: add it with fixed, append or host'
            )
        for name in self.session.closure.entries:
            same = self.without(name) == self.expected
            (report.superfluous if same else report.needed).append(name)
        found = [name for name in report.superfluous if name not in known]
        if found:
            raise IncompleteError(
                f'closure {self.session.closure.name!r} names {", ".join(map(repr, found))}, '
                'without which the outputs are the same: leave it out, or run the check where it '
                'matters, or list it as superfluous='
            )
        return report

    def without(self, name: str) -> list[str]:
        """Outputs when everything but one entry is restored."""
        self.elsewhere()
        buffer = self.inside.get(name)
        if buffer is not None:
            other = buffer.tensor.clone()
            if torch.equal(other, self.as_started(name)):
                self.overwrite(buffer)
                other = buffer.tensor.clone()
            self.session.restore(self.start)
            buffer.tensor.copy_(other)
        else:
            entry = self.session.closure.host_entries[name]
            state = host_state.copy(entry.get(), name)
            self.session.restore(self.start)
            entry.set(state)
        return self.outputs()

    def as_started(self, name: str) -> torch.Tensor:
        """A buffer's content at the start, by restoring it and going back to the disturbance."""
        buffer = self.inside[name]
        disturbed = buffer.tensor.clone()
        self.session.restore(self.start)
        content = buffer.tensor.clone()
        buffer.tensor.copy_(disturbed)
        return content

    def find_missing(self) -> list[str]:
        """Buffers outside the closure that make the difference: one, or all of them together."""
        singles = [name for name in self.outside if self.put_back([name]) == self.expected]
        if singles:
            return singles[:1]
        everything = list(self.outside)
        return everything if self.put_back(everything) == self.expected else []

    def put_back(self, names: list[str]) -> list[str]:
        """Outputs when some buffers outside the closure are restored as well."""
        self.elsewhere()
        self.session.restore(self.start)
        for name in names:
            self.outside[name].tensor.copy_(self.before[name])
        return self.outputs()


def _digest(value: Any) -> str:
    hasher = hashlib.sha256()
    _update(hasher, value)
    return hasher.hexdigest()


def _update(hasher: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        if value.dtype == torch.bfloat16:
            value = value.view(torch.int16)
        value = value.numpy()
    if isinstance(value, np.ndarray):
        hasher.update(f'{value.dtype}{value.shape}'.encode())
        hasher.update(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, dict):
        for key, item in sorted(value.items()):
            hasher.update(repr(key).encode())
            _update(hasher, item)
    elif isinstance(value, list | tuple):
        hasher.update(f'{len(value)}'.encode())
        for item in value:
            _update(hasher, item)
    elif value is None:
        raise IncompleteError('step returned None: return the outputs to compare')
    else:
        hasher.update(repr(value).encode())
