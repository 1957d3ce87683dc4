"""Context: one device with its buffers, graphs, streams and events."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

import torch

from flashrt_ros.contract.backend import choose
from flashrt_ros.contract.buffer import Buffer
from flashrt_ros.contract.errors import (
    AllocationError,
    CaptureError,
    DuplicateNameError,
    FrozenError,
    ThreadError,
    WriteError,
)
from flashrt_ros.contract.graph import Graph, Ports
from flashrt_ros.contract.stream import Event, Stream


class Context:
    """Owns everything that lives on one device.

    Args:
        device: 'cpu', 'cuda' or 'cuda:N'.

    Raises:
        DeviceError: the device is unknown or not there.
    """

    def __init__(self, device: str = 'cpu') -> None:
        self.backend = choose(device)
        self._buffers: dict[str, Buffer] = {}
        self._graphs: dict[str, Graph] = {}
        self._frozen = False
        self._busy: str | None = None  # the capture or replay that runs now
        self._replaying = False
        self._thread: threading.Thread | None = None

    @property
    def device(self) -> torch.device:
        """The torch device."""
        return self.backend.device

    @property
    def buffers(self) -> Mapping[str, Buffer]:
        """All buffers by name, in the order they were made."""
        return MappingProxyType(self._buffers)

    @property
    def graphs(self) -> Mapping[str, Graph]:
        """All graphs by name."""
        return MappingProxyType(self._graphs)

    @property
    def frozen(self) -> bool:
        """True once nothing new may be made."""
        return self._frozen

    def buffer(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Buffer:
        """Make a zero-filled buffer at an address that never changes.

        Raises:
            DuplicateNameError: the name is taken.
            WriteError: the shape has no elements.
            FrozenError, CaptureError: the context makes nothing new now.
        """
        self.require_configuring(f'make buffer {name!r}')
        if name in self._buffers:
            raise DuplicateNameError(f'buffer {name!r} exists: give every buffer its own name')
        if any(size < 1 for size in shape):
            raise WriteError(f'buffer {name!r} of shape {tuple(shape)} is empty: no size below 1')
        with torch.inference_mode(False):  # inference tensors count no versions
            made = Buffer(name, self.backend.allocate(tuple(shape), dtype))
        self._buffers[name] = made
        return made

    def graph(
        self, name: str, reads: Ports = (), writes: Ports = (), bound: int = 8, pool: str = 'main'
    ) -> Graph:
        """Make a graph with named ports; see `Graph`."""
        self.require_configuring(f'make graph {name!r}')
        if name in self._graphs:
            raise DuplicateNameError(f'graph {name!r} exists: give every graph its own name')
        made = Graph(self, name, reads, writes, bound, pool)
        self._graphs[name] = made
        return made

    def stream(self, name: str, priority: int = 0) -> Stream:
        """Make a stream; priority -1 goes before 0."""
        self.require_configuring(f'make stream {name!r}')
        return Stream(name, self.backend, self.backend.make_stream(priority), priority)

    def current_stream(self) -> Stream:
        """The stream that device work goes to now."""
        return Stream('current', self.backend, self.backend.current_stream())

    def event(self, name: str) -> Event:
        """Make an event."""
        return Event(name, self.backend)

    def synchronize(self) -> None:
        """The host waits for everything on the device."""
        self.backend.synchronize()

    def freeze(self) -> None:
        """From now on: no new buffer, graph or stream, and no capture. Replays only."""
        self._frozen = True

    def bind_thread(self) -> None:
        """From now on only the calling thread may replay; calling it again moves the binding."""
        self._thread = threading.current_thread()

    @contextmanager
    def guard_allocations(self) -> Iterator[list[str]]:
        """Within the block nothing may be allocated but a replay's own scratch.

        CUDA counts its caching allocator's allocations, whoever makes them. The CPU sees the
        torch operations outside replays that make new memory; it does not see numpy or C++.

        Raises:
            AllocationError: at the end of the block, when something was allocated.
        """
        with self.backend.guard_allocations(lambda: self._replaying) as seen:
            yield seen
        if seen:
            raise AllocationError(
                f'{seen[0]} ({len(seen)} in all) where only replays are allowed: '
                'make buffers when configuring and write into them'
            )

    def require_configuring(self, what: str) -> None:
        """Raise unless something new may be made now."""
        if self._busy is not None:
            raise CaptureError(f'cannot {what} inside {self._busy}: do it when configuring')
        if self._frozen:
            raise FrozenError(f'cannot {what}: the context is frozen; do it before freeze()')

    def require_thread(self, what: str) -> None:
        """Raise unless the calling thread may replay."""
        bound = self._thread
        if bound is not None and bound.ident != threading.get_ident():
            here = threading.current_thread()
            raise ThreadError(
                f'{what} belongs to thread {bound.name!r} ({bound.ident}), but thread '
                f'{here.name!r} ({here.ident}) called it: hand the work to {bound.name!r}'
            )

    @contextmanager
    def occupied(self, what: str, replaying: bool = False) -> Iterator[None]:
        """Within the block nothing new may be made; the block is named `what` in errors."""
        if self._busy is not None:
            raise CaptureError(f'cannot start {what} inside {self._busy}: call it from outside')
        self._busy, self._replaying = what, replaying
        try:
            yield
        finally:
            self._busy, self._replaying = None, False

    def __repr__(self) -> str:
        return f'Context({str(self.device)!r}, {len(self._buffers)} buffers)'
