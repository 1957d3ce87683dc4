"""Mover: copies between the live buffers and segments, on the current stream."""

from __future__ import annotations

from typing import Protocol

import torch

from flashrt_ros.capsule.arena import Block
from flashrt_ros.capsule.layout import Layout, RopeLayout
from flashrt_ros.contract.stream import Stream


class Mover(Protocol):
    """Copies in the order of calls, without waiting for them."""

    def save_fixed(self, block: Block) -> None:
        """Live buffers into the block."""

    def load_fixed(self, block: Block) -> None:
        """The block into the live buffers."""

    def save_rope(self, rope: int, block: Block, begin: int, end: int) -> None:
        """Live positions [begin, end) into a block that holds exactly these."""

    def load_rope(
        self, rope: int, block: Block, begin: int, end: int, first: int, last: int
    ) -> None:
        """Positions [first, last) of a block that holds [begin, end) into the live buffers."""


class TensorMover:
    """One torch copy per buffer: simple, on any device, and the reference for faster ones."""

    def __init__(self, layout: Layout, stream: Stream) -> None:
        self._stream = stream
        self._ropes = layout.ropes
        self._fixed = [
            (buffer.tensor.reshape(-1).view(torch.uint8), offset, offset + buffer.nbytes)
            for buffer, offset in layout.fixed
        ]

    def save_fixed(self, block: Block) -> None:
        """Live buffers into the block."""
        flat = block.tensor
        with self._stream.use(), torch.no_grad():
            for live, start, end in self._fixed:
                flat[start:end].copy_(live)

    def load_fixed(self, block: Block) -> None:
        """The block into the live buffers."""
        flat = block.tensor
        with self._stream.use(), torch.no_grad():
            for live, start, end in self._fixed:
                live.copy_(flat[start:end])

    def save_rope(self, rope: int, block: Block, begin: int, end: int) -> None:
        """Live positions [begin, end) into a block that holds exactly these."""
        layout = self._ropes[rope]
        with self._stream.use(), torch.no_grad():
            for name, kept in layout.views(block.tensor).items():
                live, dim = _find(layout, name)
                kept.copy_(live.narrow(dim, begin, end - begin))

    def load_rope(
        self, rope: int, block: Block, begin: int, end: int, first: int, last: int
    ) -> None:
        """Positions [first, last) of a block that holds [begin, end) into the live buffers."""
        layout, count = self._ropes[rope], last - first
        with self._stream.use(), torch.no_grad():
            for name, kept in layout.views(block.tensor).items():
                live, dim = _find(layout, name)
                live.narrow(dim, first, count).copy_(kept.narrow(dim, first - begin, count))


def _find(layout: RopeLayout, name: str) -> tuple[torch.Tensor, int]:
    for row in layout.rows:
        if row.entry.buffer.name == name:
            return row.entry.buffer.tensor, row.entry.dim
    raise KeyError(name)


def choose(layout: Layout, stream: Stream, device: torch.device) -> Mover:
    """Fused kernels where Triton and a GPU are there, torch copies otherwise."""
    if device.type == 'cuda':
        try:
            from flashrt_ros.capsule.mover_triton import TritonMover
        except ImportError:  # torch without Triton
            pass
        else:
            return TritonMover(layout, stream, device)
    return TensorMover(layout, stream)
