"""Layout: where each closure entry's bytes stand inside a segment."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch

from flashrt_ros.capsule.closure import Append, Closure, Rope
from flashrt_ros.capsule.segment import Node, Segment
from flashrt_ros.contract.buffer import Buffer

_ALIGN = 16  # bytes; the widest load of a GPU thread


@dataclass(frozen=True)
class Row:
    """One append buffer inside a segment of n positions: n * before .. n * (before + stride)."""

    entry: Append
    before: int  # bytes per position of the rows in front
    outer: int  # product of the sizes before `dim`
    inner: int  # bytes per position and outer index

    @property
    def stride(self) -> int:
        """Bytes per position."""
        return self.outer * self.inner


class RopeLayout:
    """Rows one after the other.

    Those whose positions are a multiple of the highest power of two come first: every row then
    starts at a multiple of its own, whatever the number of positions, and rows of 16 bytes and
    more are copied 16 bytes at a time beside narrow ones.
    """

    def __init__(self, rope: Rope) -> None:
        self.rope = rope
        self.rows: list[Row] = []
        self.stride = 0  # bytes per position, all rows
        for entry in sorted(rope.entries, key=lambda entry: -_power(_inner(entry))):
            outer, inner = prod(entry.buffer.shape[: entry.dim]), _inner(entry)
            self.rows.append(Row(entry, self.stride, outer, inner))
            self.stride += outer * inner

    def views(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        """Segment bytes, uint8 [n * stride], as tensors shaped like the buffers with n at dim."""
        count = flat.numel() // self.stride
        made: dict[str, torch.Tensor] = {}
        for row in self.rows:
            buffer, dim = row.entry.buffer, row.entry.dim
            part = flat[count * row.before : count * (row.before + row.stride)]
            shape = (*buffer.shape[:dim], count, *buffer.shape[dim + 1 :])
            made[row.entry.name] = part.view(buffer.dtype).view(shape)
        return made


def _inner(entry: Append) -> int:
    """Bytes per position and outer index."""
    return prod(entry.buffer.shape[entry.dim + 1 :]) * entry.buffer.dtype.itemsize


def _power(number: int) -> int:
    """The highest power of two that divides it."""
    return number & -number


class Layout:
    """The fixed part, buffers one after the other, and every rope."""

    def __init__(self, closure: Closure) -> None:
        self.schema = closure.schema()
        self.ropes = [RopeLayout(rope) for rope in closure.ropes]
        self.fixed: list[tuple[Buffer, int]] = []
        self._prefix = closure.prefix
        offset = 0
        for buffer in closure.fixed_buffers.values():
            self.fixed.append((buffer, offset))
            offset += -(-buffer.nbytes // _ALIGN) * _ALIGN
        self.fixed_bytes = offset

    def label(self, buffer: Buffer) -> str:
        """The name that stands for a buffer in files, as `Closure.label`."""
        return buffer.name.removeprefix(self._prefix)

    def views(self, segment: Segment, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        """A segment's bytes as tensors by name."""
        if isinstance(segment, Node):
            return self.ropes[segment.rope].views(flat)
        return self.fixed_views(flat)

    def fixed_views(self, flat: torch.Tensor) -> dict[str, torch.Tensor]:
        """Segment bytes, uint8 [fixed_bytes], as tensors shaped like the buffers."""
        return {
            self.label(buffer): flat[offset : offset + buffer.nbytes]
            .view(buffer.dtype)
            .view(buffer.shape)
            for buffer, offset in self.fixed
        }
