"""Mover: copies between the live buffers and segments, on the sessions' stream."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Protocol

import torch

from flashrt_ros.capsule.arena import Block
from flashrt_ros.capsule.layout import Layout, RopeLayout
from flashrt_ros.contract.stream import Stream

# (rope, block, begin, end, first, last): positions first..last of a block that holds begin..end.
Piece = tuple[int, Block, int, int, int, int]

# From here on torch's threads are quicker than one memmove (bytes).
_LARGE = 256 << 10


class Mover(Protocol):
    """Copies in the order of calls, without waiting for them."""

    def save(self, fixed: Block, pieces: Sequence[Piece]) -> None:
        """Live buffers into blocks: the fixed part, and at most one piece per rope."""

    def load(self, fixed: Block, pieces: Sequence[Piece]) -> None:
        """Blocks into the live buffers: the fixed part, and any pieces."""


class TensorMover:
    """One torch copy per buffer: simple, on any device, and the reference for faster ones."""

    def __init__(self, layout: Layout, stream: Stream) -> None:
        self._stream = stream
        self._ropes = layout.ropes
        self._fixed = [
            (buffer.tensor.reshape(-1).view(torch.uint8), offset, offset + buffer.nbytes)
            for buffer, offset in layout.fixed
        ]

    def save(self, fixed: Block, pieces: Sequence[Piece]) -> None:
        """Live buffers into blocks."""
        flat = fixed.tensor
        with self._stream.use(), torch.no_grad():
            for live, start, end in self._fixed:
                flat[start:end].copy_(live)
            for rope, block, begin, _, first, last in pieces:
                for kept, live in _pairs(self._ropes[rope], block, first - begin, first, last):
                    kept.copy_(live)

    def load(self, fixed: Block, pieces: Sequence[Piece]) -> None:
        """Blocks into the live buffers."""
        flat = fixed.tensor
        with self._stream.use(), torch.no_grad():
            for live, start, end in self._fixed:
                live.copy_(flat[start:end])
            for rope, block, begin, _, first, last in pieces:
                for kept, live in _pairs(self._ropes[rope], block, first - begin, first, last):
                    live.copy_(kept)


def _pairs(
    layout: RopeLayout, block: Block, skip: int, first: int, last: int
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Views of the same positions in the block and in the live buffers, row by row."""
    views = layout.views(block.tensor)
    pairs = []
    for row in layout.rows:
        buffer, dim = row.entry.buffer, row.entry.dim
        kept = views[row.entry.name].narrow(dim, skip, last - first)
        pairs.append((kept, buffer.tensor.narrow(dim, first, last - first)))
    return pairs


class HostMover:
    """Copies within the host's memory from a table of addresses, made with the session.

    A torch operation costs more than copying a small buffer does, so those go by memmove.
    """

    def __init__(self, layout: Layout) -> None:
        self._small: list[tuple[int, int, int]] = []  # live address, offset in the block, bytes
        self._large: list[tuple[torch.Tensor, int, int]] = []
        for buffer, offset in layout.fixed:
            if buffer.nbytes < _LARGE:
                self._small.append((buffer.address, offset, buffer.nbytes))
            else:
                flat = buffer.tensor.reshape(-1).view(torch.uint8)
                self._large.append((flat, offset, offset + buffer.nbytes))
        self._ropes = []  # per row: live bytes, its start there, bytes per position, bytes before
        for rope in layout.ropes:
            rows: list[tuple[torch.Tensor, int, int, int]] = []
            for row in rope.rows:
                buffer = row.entry.buffer
                flat = buffer.tensor.reshape(-1).view(torch.uint8)
                span = buffer.shape[row.entry.dim] * row.inner
                rows += [
                    (flat, outer * span, row.inner, row.before + outer * row.inner)
                    for outer in range(row.outer)
                ]
            self._ropes.append(rows)

    def save(self, fixed: Block, pieces: Sequence[Piece]) -> None:
        """Live buffers into blocks."""
        move, address = ctypes.memmove, fixed.address
        for live, offset, nbytes in self._small:
            move(address + offset, live, nbytes)
        if self._large:
            flat = fixed.tensor
            with torch.no_grad():
                for tensor, start, end in self._large:
                    flat[start:end].copy_(tensor)
        for piece in pieces:
            self._rope(piece, save=True)

    def load(self, fixed: Block, pieces: Sequence[Piece]) -> None:
        """Blocks into the live buffers."""
        move, address = ctypes.memmove, fixed.address
        for live, offset, nbytes in self._small:
            move(live, address + offset, nbytes)
        if self._large:
            flat = fixed.tensor
            with torch.no_grad():
                for tensor, start, end in self._large:
                    tensor.copy_(flat[start:end])
        for piece in pieces:
            self._rope(piece, save=False)

    def _rope(self, piece: Piece, save: bool) -> None:
        rope, block, begin, end, first, last = piece
        for live, start, inner, before in self._ropes[rope]:
            here = start + first * inner
            there = before * (end - begin) + (first - begin) * inner
            nbytes = (last - first) * inner
            if nbytes < _LARGE:
                one, other = live.data_ptr() + here, block.address + there
                ctypes.memmove(*((other, one) if save else (one, other)), nbytes)
            else:
                inside = live[here : here + nbytes]
                kept = block.tensor[there : there + nbytes]
                with torch.no_grad():
                    kept.copy_(inside) if save else inside.copy_(kept)


def choose(layout: Layout, stream: Stream, device: torch.device) -> Mover:
    """Fused kernels where Triton and a GPU are there, copies by address on the CPU."""
    if device.type == 'cpu':
        return HostMover(layout)
    if device.type == 'cuda':
        try:
            from flashrt_ros.capsule.mover_triton import TritonMover
        except ImportError:  # torch without Triton
            pass
        else:
            return TritonMover(layout, stream, device)
    return TensorMover(layout, stream)
