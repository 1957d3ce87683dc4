"""Closure: the names of everything that the next step depends on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from flashrt_ros.capsule.cursor import Cursor, Length, Polled
from flashrt_ros.capsule.errors import ClosureError
from flashrt_ros.contract.buffer import Buffer

if TYPE_CHECKING:
    from flashrt_ros.capsule.live import Live

HostState = dict[str, Any]


@dataclass(frozen=True)
class Append:
    """A buffer that is valid over [0, length) along `dim`; `name` is the closure's for it."""

    buffer: Buffer
    dim: int
    name: str


@dataclass(frozen=True)
class Host:
    """Small state outside buffers: `get` reads it, `set` puts it back."""

    get: Callable[[], HostState]
    set: Callable[[HostState], None]


class Rope:
    """Append buffers that share one length."""

    def __init__(self, length: Length) -> None:
        self.length = length
        self.entries: list[Append] = []

    @property
    def capacity(self) -> int:
        """Positions that fit."""
        return min(entry.buffer.shape[entry.dim] for entry in self.entries)


class Closure:
    """Names the buffers and host state that a capsule holds.

    Args:
        name: of the whole, part of the schema.
        prefix: dropped from the buffers' names in the schema. Closures of one name over twin
            sets of buffers then have one schema, and a capsule of one is restored in another.
    """

    def __init__(self, name: str, prefix: str = '') -> None:
        self.name = name
        self.prefix = prefix
        self._fixed: dict[str, Buffer] = {}
        self._append: dict[str, Append] = {}
        self._host: dict[str, Host] = {}
        self._ropes: dict[int, tuple[object, Rope]] = {}  # by identity of the length's source
        self._sealed = False
        self.live: Live | None = None  # set by the first session

    def fixed(self, *buffers: Buffer) -> Closure:
        """Buffers that are copied whole."""
        for buffer in buffers:
            self._require_new(buffer.name)
            self._fixed[buffer.name] = buffer
        return self

    def append(
        self, buffer: Buffer, dim: int, length: Cursor | Buffer | Callable[[], int]
    ) -> Closure:
        """A buffer that is valid over [0, length) along `dim`.

        Args:
            buffer: of shape [..., capacity, ...], capacity at `dim`.
            dim: the dimension that grows.
            length: a `Cursor` (a snapshot then costs what changed), or a function or an integer
                buffer of one element (exact as well, but any write costs a full copy). Buffers
                given the same object grow together.
        """
        self._require_new(buffer.name)
        if not 0 <= dim < len(buffer.shape):
            raise ClosureError(
                f'closure {self.name!r}: buffer {buffer.name!r} of shape {buffer.shape} has no '
                f'dimension {dim}; use 0..{len(buffer.shape) - 1}'
            )
        if isinstance(length, Cursor):
            length.belong_to(self.name, id(self))
        if id(length) not in self._ropes:
            source: Length = length if isinstance(length, Cursor) else Polled(length)
            self._ropes[id(length)] = (length, Rope(source))
        rope = self._ropes[id(length)][1]
        entry = Append(buffer, dim, self.label(buffer))
        rope.entries.append(entry)
        rope.length.attach(buffer, dim)
        self._append[buffer.name] = entry
        return self

    def host(
        self, name: str, get: Callable[[], HostState], set: Callable[[HostState], None]
    ) -> Closure:
        """Host state: `get` returns a dict of plain values and arrays, `set` takes one back.

        `set` must change host state alone, and raise before it changes anything.
        """
        self._require_new(name)
        self._host[name] = Host(get, set)
        return self

    def _require_new(self, name: str) -> None:
        if self._sealed:
            raise ClosureError(
                f'closure {self.name!r} is in use by a session: add {name!r} before that'
            )
        if name in self.entries:
            raise ClosureError(f'closure {self.name!r} has an entry {name!r}: name each once')

    @property
    def entries(self) -> tuple[str, ...]:
        """All names: fixed, append, host."""
        return (*self._fixed, *self._append, *self._host)

    @property
    def fixed_buffers(self) -> Mapping[str, Buffer]:
        """Buffers copied whole, by name."""
        return MappingProxyType(self._fixed)

    @property
    def append_entries(self) -> Mapping[str, Append]:
        """Append buffers, by name."""
        return MappingProxyType(self._append)

    @property
    def host_entries(self) -> Mapping[str, Host]:
        """Host entries, by name."""
        return MappingProxyType(self._host)

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """All buffers, fixed ones first."""
        return (*self._fixed.values(), *(entry.buffer for entry in self._append.values()))

    @property
    def ropes(self) -> tuple[Rope, ...]:
        """Append buffers by their common length."""
        return tuple(rope for _, rope in self._ropes.values())

    def label(self, buffer: Buffer) -> str:
        """The name that stands for a buffer in the schema and in files."""
        return buffer.name.removeprefix(self.prefix)

    def seal(self) -> None:
        """No entry can be added any more."""
        if not self.entries:
            raise ClosureError(f'closure {self.name!r} is empty: name what the next step reads')
        self._sealed = True

    def schema(self) -> dict[str, list[Any]]:
        """Names, dtypes and shapes, in terms of JSON; what a capsule must match."""
        rows: dict[str, list[Any]] = {}
        for buffer in self._fixed.values():
            rows[self.label(buffer)] = ['fixed', str(buffer.dtype), list(buffer.shape)]
        for index, rope in enumerate(self.ropes):
            for entry in rope.entries:
                buffer = entry.buffer
                shape = [
                    buffer.shape[d] if d != entry.dim else -1 for d in range(len(buffer.shape))
                ]
                rows[entry.name] = ['append', str(buffer.dtype), shape, entry.dim, index]
        for name in self._host:
            rows[name] = ['host']
        return rows

    def digest(self) -> str:
        """sha256 of the schema, hexadecimal."""
        text = json.dumps([self.name, self.schema()], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()
