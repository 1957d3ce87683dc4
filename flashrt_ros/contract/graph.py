"""Graph: exact shape keys to captured variants, with named ports."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

import torch

from flashrt_ros.contract.buffer import Buffer
from flashrt_ros.contract.errors import CaptureError, MissingVariantError
from flashrt_ros.contract.observe import Observer
from flashrt_ros.contract.stream import Stream

if TYPE_CHECKING:
    from flashrt_ros.contract.context import Context

Ports: TypeAlias = 'Mapping[str, Buffer] | Iterable[Buffer]'


class ShapeKey:
    """An exact, hashable set of named sizes: `ShapeKey(tokens=64, batch=1)`."""

    __slots__ = ('_items',)

    def __init__(self, **sizes: int | str) -> None:
        for name, value in sizes.items():
            if type(value) not in (int, str):
                raise TypeError(f'ShapeKey {name}={value!r}: use int or str')
        self._items = tuple(sorted(sizes.items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShapeKey) and self._items == other._items

    def __hash__(self) -> int:
        return hash(self._items)

    def __repr__(self) -> str:
        return f'ShapeKey({", ".join(f"{name}={value!r}" for name, value in self._items)})'


def _named(ports: Ports) -> Mapping[str, Buffer]:
    if not isinstance(ports, Mapping):
        ports = {buffer.name: buffer for buffer in ports}
    return MappingProxyType(dict(ports))


class Graph:
    """A table of captured variants over static buffers, made by `Context.graph`.

    Args:
        ctx: the context that owns the buffers.
        name: unique in the context.
        reads: ports that the callables read, by name (or buffers, named by themselves).
        writes: ports that they write; a port they also read need not stand in `reads`.
        bound: how many variants are kept; a capture beyond it drops the least recently used.
        pool: graphs of one pool share scratch memory and are never run at once.
    """

    def __init__(
        self, ctx: Context, name: str, reads: Ports, writes: Ports, bound: int, pool: str
    ) -> None:
        if bound < 1:
            raise CaptureError(f'graph {name!r}: bound {bound} holds no variant; use 1 or more')
        self.name = name
        self.reads = _named(reads)
        self.writes = _named(writes)
        self.bound = bound
        self.pool = pool
        self._ctx = ctx
        self._variants: OrderedDict[ShapeKey, Callable[[], None]] = OrderedDict()
        self._ports = tuple({**self.reads, **self.writes}.items())
        self._written = tuple(self.writes.values())
        for port, buffer in (*self.reads.items(), *self.writes.items()):
            if ctx.buffers.get(buffer.name) is not buffer:
                raise CaptureError(
                    f'graph {name!r}: port {port!r} is no buffer of this context; '
                    'make it with ctx.buffer(...)'
                )

    @property
    def keys(self) -> tuple[ShapeKey, ...]:
        """Captured keys, least recently used first."""
        return tuple(self._variants)

    def capture(self, key: ShapeKey, fn: Callable[[], None]) -> None:
        """Warm `fn` up and capture it as the variant `key`. No byte of any buffer changes.

        `fn` works in place on the graph's ports and returns nothing. It must be fit for a CUDA
        graph on every backend: no value read back to the host, no shape that depends on data,
        no torch random numbers, no result that leaves other than by a buffer.

        Raises:
            CaptureError: `fn` breaks one of these rules or uses a buffer that is no port.
            FrozenError: the context is frozen.
        """
        what = f'capture of graph {self.name!r} {key!r}'
        self._ctx.require_configuring(f'start {what}')
        self.check()
        backend = self._ctx.backend
        with _Untouched(self._ctx) as untouched, self._ctx.occupied(what):
            backend.warm(fn)  # lazy initialisation happens here, unobserved
            observer = Observer()

            def observed() -> None:
                with observer:
                    fn()

            backend.warm(observed)
            self._require_fit(what, observer, untouched.changed())
            try:
                launch = backend.capture(fn, self.pool)
            except RuntimeError as error:
                raise CaptureError(f'{what} failed: {error}') from error
        self.check()
        self._variants.pop(key, None)
        while len(self._variants) >= self.bound:
            self._variants.popitem(last=False)
        self._variants[key] = launch

    def _require_fit(self, what: str, observer: Observer, changed: set[str]) -> None:
        if observer.unsafe:
            raise CaptureError(
                f'{what}: {observer.unsafe[0]} reads back to the host, has a shape that depends '
                "on data or draws from torch's generator; keep values, sizes and random "
                'counters in buffers'
            )
        escaped = observer.escaped()
        if escaped:
            raise CaptureError(
                f'{what}: the result of {escaped[0]} outlives the callable; '
                'copy it into a buffer and drop the reference'
            )
        writes = {buffer.name for buffer in self.writes.values()}
        ports = writes | {buffer.name for buffer in self.reads.values()}
        for name, buffer in self._ctx.buffers.items():
            storage = int(buffer.tensor.untyped_storage()._cdata)
            if name not in writes and (storage in observer.writes or name in changed):
                raise CaptureError(f'{what} writes buffer {name!r}: name it among the writes')
            if name not in ports and storage in observer.reads:
                raise CaptureError(f'{what} reads buffer {name!r}: name it among the reads')

    def check(self) -> None:
        """Raise `ReboundError`, with the port's name, when a port's memory was replaced."""
        for port, buffer in self._ports:
            if buffer._tensor.data_ptr() != buffer._address:
                try:
                    buffer.check()
                except RuntimeError as error:
                    raise type(error)(f'graph {self.name!r} port {port!r}: {error}') from None

    def require(self, key: ShapeKey) -> Callable[[], None]:
        """The captured variant, ready to launch.

        Raises:
            MissingVariantError: nothing was captured for `key`.
        """
        try:
            return self._variants[key]
        except KeyError:
            keys = ', '.join(map(repr, self._variants)) or 'none'
            raise MissingVariantError(
                f'graph {self.name!r} has no variant {key!r}; it has {keys}; capture it first'
            ) from None

    def replay(self, key: ShapeKey, stream: Stream | None = None) -> None:
        """Launch the variant on `stream` (default: the current one); does not wait for it.

        Raises:
            MissingVariantError: nothing was captured for `key`.
            ReboundError: a port's memory is not the one that was captured.
            ThreadError: the context is bound to another thread.
        """
        self._ctx.require_thread(f'replay of graph {self.name!r}')
        launch = self.require(key)
        self.check()
        self._variants.move_to_end(key)
        with self._ctx.occupied(f'replay of graph {self.name!r} {key!r}', replaying=True):
            if stream is None:
                launch()
            else:
                with stream.use():
                    launch()
        for buffer in self._written:
            buffer._touches += 1

    def __repr__(self) -> str:
        return f'Graph({self.name!r}, keys={list(self._variants)})'


class _Untouched:
    """Keeps a copy of every buffer of a context for the time of a capture, and puts it back."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._saved: list[tuple[Buffer, torch.Tensor]] = []

    def __enter__(self) -> _Untouched:
        self._saved = [(buffer, buffer.tensor.clone()) for buffer in self._ctx.buffers.values()]
        return self

    def changed(self) -> set[str]:
        """Names of the buffers whose bytes differ from the copy."""
        return {buffer.name for buffer, saved in self._saved if not _same(buffer.tensor, saved)}

    def __exit__(self, *_: object) -> None:
        with torch.no_grad():
            for buffer, saved in self._saved:
                if buffer.tensor.shape == saved.shape:  # a rebound one is reported by `check`
                    buffer.tensor.copy_(saved)


def _same(left: torch.Tensor, right: torch.Tensor) -> bool:
    if left.shape != right.shape:
        return False
    return torch.equal(left.reshape(-1).view(torch.uint8), right.reshape(-1).view(torch.uint8))
