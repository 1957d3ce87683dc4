"""CPU backend: a captured callable is replayed eagerly, in order, over the same buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from flashrt_ros.contract.backend import Launch
from flashrt_ros.contract.observe import AllocationObserver


class CpuBackend:
    """One queue, always empty: every call has happened when it returns."""

    def __init__(self) -> None:
        self.device = torch.device('cpu')

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Zero-filled contiguous memory."""
        return torch.zeros(shape, dtype=dtype)

    def reserve(self, nbytes: int) -> torch.Tensor:
        """Memory that the system provides page by page, as it is used."""
        return torch.empty(nbytes, dtype=torch.uint8)

    def allocate_host(self, nbytes: int) -> torch.Tensor:
        """Plain memory."""
        return self.reserve(nbytes)

    def make_stream(self, priority: int) -> Any:
        """Streams are names here; there is one order of execution."""
        return None

    def current_stream(self) -> Any:
        """The one order of execution."""
        return None

    def use(self, stream: Any) -> AbstractContextManager[Any]:
        """Nothing to switch."""
        return nullcontext()

    def make_event(self) -> Any:
        """Nothing to mark."""
        return None

    def record(self, event: Any, stream: Any) -> None:
        """Everything before has happened."""

    def reached(self, event: Any) -> bool:
        """Everything before has happened."""
        return True

    def wait(self, stream: Any, event: Any) -> None:
        """What the event marks has happened."""

    def synchronize(self, stream: Any = None) -> None:
        """Nothing is pending."""

    def warm(self, fn: Launch) -> None:
        """Run `fn` once."""
        with torch.no_grad():
            fn()

    def capture(self, fn: Launch, pool: str) -> Launch:
        """Replaying is calling; what `fn` allocates is scratch, as in a graph's pool."""

        def launch() -> None:
            with torch.no_grad():
                fn()

        return launch

    @contextmanager
    def guard_allocations(self, replaying: Callable[[], bool]) -> Iterator[list[str]]:
        """Collect the operations that made new memory outside replays."""
        observer = AllocationObserver(replaying)
        with observer:
            yield observer.seen
