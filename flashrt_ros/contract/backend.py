"""What the contract needs from a device: a small protocol, and the choice between its backends."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from flashrt_ros.contract.errors import DeviceError

Launch = Callable[[], None]


class Backend(Protocol):
    """One device kind. Streams and events are the device's own objects, opaque to the caller."""

    device: torch.device

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Zero-filled contiguous memory."""

    def reserve(self, nbytes: int) -> torch.Tensor:
        """Device memory of any content; uint8 [nbytes]."""

    def allocate_host(self, nbytes: int) -> torch.Tensor:
        """Host memory that the device copies from and to at full speed; uint8 [nbytes]."""

    def make_stream(self, priority: int) -> Any:
        """A queue of work; a lower number is a higher priority."""

    def current_stream(self) -> Any:
        """The queue that work goes to now."""

    def use(self, stream: Any) -> AbstractContextManager[Any]:
        """Within the block, work goes to `stream`."""

    def make_event(self) -> Any:
        """A mark in a queue."""

    def record(self, event: Any, stream: Any) -> None:
        """Put the mark at the end of the queue."""

    def reached(self, event: Any) -> bool:
        """True when everything before the mark has happened."""

    def wait(self, stream: Any, event: Any) -> None:
        """Later work of `stream` starts after the mark; the host does not wait."""

    def synchronize(self, stream: Any = None) -> None:
        """The host waits for the queue, or for the whole device."""

    def warm(self, fn: Launch) -> None:
        """Run `fn` once where a capture of it would run."""

    def capture(self, fn: Launch, pool: str) -> Launch:
        """Capture `fn`; graphs of one pool share scratch memory and never run at once."""

    def guard_allocations(
        self, replaying: Callable[[], bool]
    ) -> AbstractContextManager[list[str]]:
        """Collect what was allocated within the block, outside replays, one line each."""


def choose(device: str) -> Backend:
    """The backend for 'cpu', 'cuda' or 'cuda:N'.

    Raises:
        DeviceError: the name is none of these, or the device is not there.
    """
    kind, _, index = device.partition(':')
    if kind == 'cpu' and not index:
        from flashrt_ros.contract.backend_cpu import CpuBackend

        return CpuBackend()
    if kind != 'cuda' or (index and not index.isdigit()):
        raise DeviceError(f"unknown device {device!r}: use 'cpu', 'cuda' or 'cuda:0'")
    if not torch.cuda.is_available() or int(index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise DeviceError(f"device {device!r} is not there ({count} CUDA devices): use 'cpu'")
    from flashrt_ros.contract.backend_cuda import CudaBackend

    return CudaBackend(int(index or 0))
