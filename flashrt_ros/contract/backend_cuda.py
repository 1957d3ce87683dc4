"""CUDA backend: `torch.cuda.CUDAGraph`, whatever was launched inside (torch, Triton)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from flashrt_ros.contract.backend import Launch


class CudaBackend:
    """One CUDA device."""

    def __init__(self, index: int) -> None:
        self.device = torch.device('cuda', index)
        self._side = torch.cuda.Stream(self.device)  # warm-ups and captures
        self._pools: dict[str, Any] = {}  # scratch memory shared by the graphs of a pool
        self._last: dict[str, torch.cuda.Stream] = {}  # where a pool was replayed last

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Zero-filled contiguous memory, its own allocation."""
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def reserve(self, nbytes: int) -> torch.Tensor:
        """One allocation on the device."""
        return torch.empty(nbytes, dtype=torch.uint8, device=self.device)

    def allocate_host(self, nbytes: int) -> torch.Tensor:
        """Pinned memory."""
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def make_stream(self, priority: int) -> torch.cuda.Stream:
        """A CUDA stream; -1 is above the default 0."""
        return torch.cuda.Stream(self.device, priority=priority)

    def current_stream(self) -> torch.cuda.Stream:
        """The stream that torch launches on now."""
        return torch.cuda.current_stream(self.device)

    def use(self, stream: torch.cuda.Stream) -> AbstractContextManager[Any]:
        """Within the block torch launches on `stream`."""
        return torch.cuda.stream(stream)

    def make_event(self) -> torch.cuda.Event:
        """A CUDA event without timing."""
        return torch.cuda.Event()

    def record(self, event: torch.cuda.Event, stream: torch.cuda.Stream) -> None:
        """Record the event on the stream."""
        event.record(stream)

    def reached(self, event: torch.cuda.Event) -> bool:
        """Ask the event; does not wait."""
        return event.query()

    def wait(self, stream: torch.cuda.Stream, event: torch.cuda.Event) -> None:
        """The stream waits; the host goes on."""
        stream.wait_event(event)

    def synchronize(self, stream: torch.cuda.Stream | None = None) -> None:
        """The host waits for the stream, or for the device."""
        if stream is None:
            torch.cuda.synchronize(self.device)
        else:
            stream.synchronize()

    @contextmanager
    def _on_side(self) -> Iterator[None]:
        current = self.current_stream()
        self._side.wait_stream(current)
        with torch.cuda.stream(self._side), torch.no_grad():
            yield
        current.wait_stream(self._side)

    def warm(self, fn: Launch) -> None:
        """Run `fn` once on the side stream: libraries initialise, kernels compile."""
        with self._on_side():
            fn()
        self._side.synchronize()

    def capture(self, fn: Launch, pool: str) -> Launch:
        """Capture `fn` into a CUDA graph that takes its scratch memory from `pool`.

        Two graphs of a pool use the same scratch, so they must not overlap: a replay on another
        stream than the pool's last one first waits for that stream (on the device).
        """
        if pool not in self._pools:
            self._pools[pool] = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        with (
            torch.no_grad(),
            torch.cuda.device(self.device),
            torch.cuda.graph(
                graph, pool=self._pools[pool], stream=self._side, capture_error_mode='thread_local'
            ),
        ):
            fn()

        def launch(_kept: Launch = fn) -> None:  # the graph reads tensors that `fn` alone may hold
            current = torch.cuda.current_stream(self.device)
            last = self._last.get(pool)
            if last is not None and last != current:
                current.wait_stream(last)
            self._last[pool] = current
            graph.replay()

        return launch

    @contextmanager
    def guard_allocations(self, replaying: Callable[[], bool]) -> Iterator[list[str]]:
        """Count the caching allocator's allocations: a replay makes none."""
        seen: list[str] = []
        before = self._allocations()
        yield seen
        count = self._allocations() - before
        if count:
            seen.append(f'{count} allocations by the CUDA caching allocator')

    def _allocations(self) -> int:
        return int(torch.cuda.memory_stats(self.device).get('allocation.all.allocated', 0))
