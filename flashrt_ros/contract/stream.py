"""Stream and Event: queues of device work, and marks in them. On the CPU there is one order."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from flashrt_ros.contract.backend import Backend


class Event:
    """A mark in a stream, made by `Context.event`."""

    def __init__(self, name: str, backend: Backend) -> None:
        self.name = name
        self._backend = backend
        self._native: Any = backend.make_event()

    def record(self, stream: Stream) -> None:
        """Mark the end of what `stream` has been given so far."""
        self._backend.record(self._native, stream._native)

    def reached(self) -> bool:
        """True when everything before the mark has happened; does not wait."""
        return self._backend.reached(self._native)


class Stream:
    """A queue of device work, made by `Context.stream`. A lower number is a higher priority."""

    def __init__(self, name: str, backend: Backend, native: Any, priority: int = 0) -> None:
        self.name = name
        self.priority = priority
        self._backend = backend
        self._native = native

    def use(self) -> AbstractContextManager[Any]:
        """Within the block, device work goes to this stream."""
        return self._backend.use(self._native)

    def wait(self, event: Event) -> None:
        """Later work of this stream starts after `event`; the host does not wait."""
        self._backend.wait(self._native, event._native)

    def synchronize(self) -> None:
        """The host waits until the stream is empty."""
        self._backend.synchronize(self._native)

    @property
    def native(self) -> Any:
        """The device's own stream object (torch.cuda.Stream), None on the CPU."""
        return self._native

    def __repr__(self) -> str:
        return f'Stream({self.name!r}, priority={self.priority})'
