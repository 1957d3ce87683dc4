"""A training step as one captured CUDA graph per shape of batch: thousands of launches as one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor

WARM = 1  # steps of each shape that run eagerly, for libraries to settle; they count as steps


class Movable(Protocol):
    """A batch: a dataclass of tensors, some perhaps None, and of further such dataclasses."""

    def to(self, device: torch.device) -> Any:
        """Return it on a device."""


B = TypeVar('B', bound=Movable)


class GraphedStep(Generic[B]):
    """Runs a step; where asked for, from its second batch of a shape on as a CUDA graph.

    Args:
        body: takes a batch on the device, does the whole step, returns the loss; to be captured
            it must neither wait for the device nor draw random numbers, and its parameters'
            gradients must be None before it runs.
        clear: makes them None.
        device: where.
        capture: whether to.
    """

    def __init__(
        self,
        body: Callable[[B], Tensor],
        clear: Callable[[], None],
        device: torch.device,
        capture: bool = True,
    ) -> None:
        self._body, self._clear, self._device = body, clear, device
        self._capture = capture and device.type == 'cuda'
        self._seen: dict[tuple, int] = {}
        self._graphs: dict[tuple, tuple[torch.cuda.CUDAGraph, B, Tensor]] = {}
        self._pool: Any = None

    def __call__(self, batch: B) -> Tensor:
        """Take a step; return its loss, a scalar on the device."""
        moved: B = batch.to(self._device)
        if not self._capture:
            self._clear()
            return self._body(moved)
        key = tuple(tuple(tensor.shape) for tensor in leaves(moved))
        self._seen[key] = self._seen.get(key, 0) + 1
        if self._seen[key] <= WARM:
            return self._aside(moved)
        if key not in self._graphs:
            self._graphs[key] = self._captured(moved)
        graph, still, loss = self._graphs[key]
        if still is not moved:
            for old, new in zip(leaves(still), leaves(moved), strict=True):
                old.copy_(new)
        graph.replay()
        return loss.clone()

    def _aside(self, batch: B) -> Tensor:
        """Take a step on a stream of its own, as a capture will."""
        self._clear()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            loss = self._body(batch)
        torch.cuda.current_stream().wait_stream(side)
        return loss

    def _captured(self, batch: B) -> tuple[torch.cuda.CUDAGraph, B, Tensor]:
        self._clear()
        graph = torch.cuda.CUDAGraph()
        # The loader's thread pins memory meanwhile; a capture that minds other threads would fail.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode='thread_local'):
            loss = self._body(batch)
        self._pool = self._pool or graph.pool()
        return graph, batch, loss


def leaves(batch: Any) -> Iterator[Tensor]:
    """Yield the tensors of a batch in the order of their fields; a field may be left out."""
    for entry in fields(batch):
        value = getattr(batch, entry.name)
        if is_dataclass(value):
            yield from leaves(value)
        elif value is not None:
            yield value
