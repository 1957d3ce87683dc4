"""A training step as one captured CUDA graph per shape of batch: thousands of launches as one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from flashrt_policies.planner_lm.training.batches import Batch, Questions

WARM = 1  # steps of each shape that run eagerly, for libraries to settle; they count as steps


class GraphedStep:
    """Runs a step; on CUDA from its second batch of a shape on as a graph.

    Args:
        body: takes a batch on the device, does the whole step, returns the loss; it must not wait
            for the device, and its parameters' gradients must be None before it runs.
        clear: makes them None.
        device: where.
    """

    def __init__(
        self, body: Callable[[Batch], Tensor], clear: Callable[[], None], device: torch.device
    ) -> None:
        self._body, self._clear, self._device = body, clear, device
        self._seen: dict[tuple[int, ...], int] = {}
        self._graphs: dict[tuple[int, ...], tuple[torch.cuda.CUDAGraph, Batch, Tensor]] = {}
        self._pool: Any = None

    def __call__(self, batch: Batch) -> Tensor:
        """Take a step; return its loss, a scalar on the device."""
        key = (*batch.tokens.shape, batch.short.tokens.shape[2], batch.long.tokens.shape[2])
        self._seen[key] = self._seen.get(key, 0) + 1
        if self._device.type != 'cuda' or self._seen[key] <= WARM:
            self._clear()
            side = torch.cuda.Stream() if self._device.type == 'cuda' else None
            if side is None:
                return self._body(batch.to(self._device))
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                loss = self._body(batch.to(self._device))
            torch.cuda.current_stream().wait_stream(side)
            return loss
        moved = batch.to(self._device)
        if key not in self._graphs:
            self._clear()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool):
                loss = self._body(moved)
            self._pool = self._pool or graph.pool()
            self._graphs[key] = graph, moved, loss
        graph, still, loss = self._graphs[key]
        if still is not moved:
            _copy(still, moved)
        graph.replay()
        return loss.clone()


def _copy(into: Batch, batch: Batch) -> None:
    for field in fields(Batch):
        old, new = getattr(into, field.name), getattr(batch, field.name)
        if isinstance(old, Questions):
            for part in fields(Questions):
                getattr(old, part.name).copy_(getattr(new, part.name))
        else:
            old.copy_(new)
