"""One launch for the fixed part and one per rope segment, on a GPU.

Both kernels work from tables of addresses that are written once, when the session is made: a
snapshot or restore passes the segment's address and three numbers, and allocates nothing.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from flashrt_ros.capsule.arena import Block
from flashrt_ros.capsule.layout import Layout, RopeLayout
from flashrt_ros.contract.stream import Stream

_FIXED_CHUNK = 16384  # bytes per program of the fixed part
_ROPE_CHUNK = 32768  # bytes per program of a rope
_WARPS = 8


@triton.jit
def _aligned(address):  # type: ignore[no-untyped-def]
    """A pointer to 4-byte words whose address is a multiple of 16: loads become 16 bytes wide."""
    return tl.multiple_of(address.to(tl.pointer_type(tl.int32)), 16)


@triton.jit
def _copy_fixed(table, block, SAVE: tl.constexpr, CHUNK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Program p copies table[p] = (live address, offset in the block, bytes <= CHUNK)."""
    row = table.to(tl.pointer_type(tl.int64)) + tl.program_id(0) * 3
    live = tl.load(row)
    kept = block + tl.load(row + 1)
    size = tl.load(row + 2)
    source, target = (live, kept) if SAVE else (kept, live)
    words = tl.multiple_of(size // 16 * 4, 4)  # of 4 bytes; four of them make one wide load
    at = tl.arange(0, CHUNK // 4)
    value = tl.load(_aligned(source) + at, mask=at < words)
    tl.store(_aligned(target) + at, value, mask=at < words)
    rest = words * 4 + tl.arange(0, 16)
    tail = tl.load(source.to(tl.pointer_type(tl.uint8)) + rest, mask=rest < size)
    tl.store(target.to(tl.pointer_type(tl.uint8)) + rest, tail, mask=rest < size)


@triton.jit(do_not_specialize=['begin', 'count', 'first', 'many'])
def _copy_rope(  # type: ignore[no-untyped-def]
    table,
    block,
    begin,
    count,
    first,
    many,
    SAVE: tl.constexpr,
    WIDE: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Copy positions [first, first + many) of a segment that holds `count` from `begin` on.

    Row r of the table is (live address of position 0, bytes per position, bytes per position of
    the rows in front); program (c, r) copies the c-th CHUNK bytes of row r.
    """
    row = table.to(tl.pointer_type(tl.int64)) + tl.program_id(1) * 3
    inner = tl.load(row + 1)
    start = tl.program_id(0).to(tl.int64) * CHUNK
    live = tl.load(row) + first * inner + start
    kept = block + tl.load(row + 2) * count + (first - begin) * inner + start
    source, target = (live, kept) if SAVE else (kept, live)
    size = tl.minimum(many * inner - start, CHUNK)
    if WIDE:
        words = tl.multiple_of(size // 16 * 4, 4)
        at = tl.arange(0, CHUNK // 4)
        value = tl.load(_aligned(source) + at, mask=at < words)
        tl.store(_aligned(target) + at, value, mask=at < words)
    else:
        at = tl.arange(0, CHUNK)
        value = tl.load(source.to(tl.pointer_type(tl.uint8)) + at, mask=at < size)
        tl.store(target.to(tl.pointer_type(tl.uint8)) + at, value, mask=at < size)


class _Launch:
    """A kernel with its constants, compiled once and launched by its handle from then on."""

    def __init__(self, kernel: Any, device: torch.device, **constants: Any) -> None:
        self._kernel = kernel
        self._device = device
        self._constants = constants
        self._compiled: Any = None

    def __call__(self, grid: tuple[int, int, int], stream: Stream, *args: int) -> None:
        if self._compiled is None:
            with stream.use():
                self._compiled = self._kernel[grid](*args, num_warps=_WARPS, **self._constants)
            return
        queue = stream.native.cuda_stream
        if torch.cuda.current_device() == self._device.index:
            self._compiled[grid](*args, *self._constants.values(), stream=queue)
        else:
            with torch.cuda.device(self._device):
                self._compiled[grid](*args, *self._constants.values(), stream=queue)


class _RopeTable:
    """Addresses of one rope's rows, and the kernels for their width."""

    def __init__(self, layout: RopeLayout, device: torch.device) -> None:
        rows, widths = [], set()
        for row in layout.rows:
            buffer, span = row.entry.buffer, row.entry.buffer.shape[row.entry.dim] * row.inner
            for outer in range(row.outer):
                start = buffer.address + outer * span
                rows.append((start, row.inner, row.before + outer * row.inner))
                widths |= {row.inner % 16, start % 16, (row.before + outer * row.inner) % 16}
        self.table = torch.tensor(rows, dtype=torch.int64, device=device)  # [rows, 3]
        self.address = self.table.data_ptr()
        self.rows = len(rows)
        self.longest = max(row.inner for row in layout.rows)
        wide = widths == {0}
        self.save = _Launch(_copy_rope, device, SAVE=True, WIDE=wide, CHUNK=_ROPE_CHUNK)
        self.load = _Launch(_copy_rope, device, SAVE=False, WIDE=wide, CHUNK=_ROPE_CHUNK)

    def launch(self, way: _Launch, stream: Stream, *args: int) -> None:
        """Copy args = (block address, begin, count, first, many)."""
        chunks = max(1, -(-args[-1] * self.longest // _ROPE_CHUNK))
        way((chunks, self.rows, 1), stream, self.address, *args)


class TritonMover:
    """Fused copies on `stream`. Everything is compiled when it is made."""

    def __init__(self, layout: Layout, stream: Stream, device: torch.device) -> None:
        self._stream = stream
        rows = [
            (buffer.address + start, offset + start, min(_FIXED_CHUNK, buffer.nbytes - start))
            for buffer, offset in layout.fixed
            for start in range(0, buffer.nbytes, _FIXED_CHUNK)
        ]
        self._count = len(rows)
        self._table = torch.tensor(rows, dtype=torch.int64, device=device)
        self._address = self._table.data_ptr()  # [rows, 3]
        self._save = _Launch(_copy_fixed, device, SAVE=True, CHUNK=_FIXED_CHUNK)
        self._load = _Launch(_copy_fixed, device, SAVE=False, CHUNK=_FIXED_CHUNK)
        self._ropes = [_RopeTable(rope, device) for rope in layout.ropes]
        scratch = torch.zeros(256, dtype=torch.uint8, device=device)
        nothing = torch.zeros(3, dtype=torch.int64, device=device)
        torch.cuda.synchronize(device)  # the tables were written on another stream
        for way in (self._save, self._load):
            way((1, 1, 1), stream, nothing.data_ptr(), scratch.data_ptr())
        for rope in self._ropes:
            for way in (rope.save, rope.load):
                rope.launch(way, stream, scratch.data_ptr(), 0, 0, 0, 0)
        stream.synchronize()

    def save_fixed(self, block: Block) -> None:
        """Live buffers into the block; one launch."""
        if self._count:
            grid = (self._count, 1, 1)
            self._save(grid, self._stream, self._address, block.address)

    def load_fixed(self, block: Block) -> None:
        """The block into the live buffers; one launch."""
        if self._count:
            grid = (self._count, 1, 1)
            self._load(grid, self._stream, self._address, block.address)

    def save_rope(self, rope: int, block: Block, begin: int, end: int) -> None:
        """Live positions [begin, end) into a block that holds exactly these; one launch."""
        table, count = self._ropes[rope], end - begin
        table.launch(table.save, self._stream, block.address, begin, count, begin, count)

    def load_rope(
        self, rope: int, block: Block, begin: int, end: int, first: int, last: int
    ) -> None:
        """Positions [first, last) of a block that holds [begin, end); one launch."""
        table, count = self._ropes[rope], end - begin
        table.launch(table.load, self._stream, block.address, begin, count, first, last - first)
