"""One launch for a snapshot or a restore, on a GPU.

The kernels work from tables of addresses that are written once, when the session is made: a
snapshot or restore passes the segments' addresses and a few numbers, and allocates nothing. A
restore of many segments (a history of several turns) first writes their numbers into a table.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl

from flashrt_ros.capsule.arena import Block
from flashrt_ros.capsule.launcher import Launcher
from flashrt_ros.capsule.layout import Layout, RopeLayout
from flashrt_ros.capsule.mover import Piece
from flashrt_ros.contract.stream import Stream

CHUNK = 4096  # bytes per program: 32 a thread, as few as the device's own copy
MANY_CHUNK = 32768  # bytes per program of many pieces, whose descriptors come from the host
STEP = tl.constexpr(512)  # bytes at a time where addresses are odd
_UNITS = 8192  # programs' descriptors per launch of many pieces
_COLUMNS = 6


@triton.jit
def _copy(source, target, size, CHUNK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Copy `size` <= CHUNK bytes, none when it is negative; 16 at a time where addresses allow."""
    from_bytes = source.to(tl.pointer_type(tl.uint8))
    to_bytes = target.to(tl.pointer_type(tl.uint8))
    if (source | target) % 16 == 0:
        words = tl.multiple_of(size // 16 * 4, 4)  # of 4 bytes; four of them make one wide load
        at = tl.arange(0, CHUNK // 4)
        from_words = tl.multiple_of(source.to(tl.pointer_type(tl.int32)), 16)
        to_words = tl.multiple_of(target.to(tl.pointer_type(tl.int32)), 16)
        value = tl.load(from_words + at, mask=at < words)
        tl.store(to_words + at, value, mask=at < words)
        rest = words * 4 + tl.arange(0, 16)
        tail = tl.load(from_bytes + rest, mask=rest < size)
        tl.store(to_bytes + rest, tail, mask=rest < size)
    else:
        # Step by step: held all at once, bytes would take the registers of the wide way as well.
        for start in range(0, CHUNK, STEP):
            each = start + tl.arange(0, STEP)
            byte = tl.load(from_bytes + each, mask=each < size)
            tl.store(to_bytes + each, byte, mask=each < size)


@triton.jit
def _numbers(address):  # type: ignore[no-untyped-def]
    """Point to 64-bit numbers; an address below 2 GiB is passed in 32 bits."""
    return address.to(tl.int64).to(tl.pointer_type(tl.int64))


@triton.jit
def _fixed_part(table, block, program, SAVE: tl.constexpr, CHUNK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Copy table[program] = (live address, offset in the block, bytes <= CHUNK)."""
    row = _numbers(table) + program * 3
    live = tl.load(row)
    kept = block + tl.load(row + 1)
    source, target = (live, kept) if SAVE else (kept, live)
    _copy(source, target, tl.load(row + 2), CHUNK)


@triton.jit
def _rope_part(  # type: ignore[no-untyped-def]
    table,
    block,
    begin,
    count,
    first,
    many,
    row,
    chunk,
    SAVE: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Copy the chunk-th CHUNK bytes of a row of positions [first, first + many).

    The segment holds `count` positions from `begin` on. table[row] is (live address of position
    0, bytes per position, bytes per position of the rows in front).
    """
    at_row = _numbers(table) + row * 3
    inner = tl.load(at_row + 1)
    start = chunk.to(tl.int64) * CHUNK
    live = tl.load(at_row) + first * inner + start
    kept = block + tl.load(at_row + 2) * count + (first - begin) * inner + start
    source, target = (live, kept) if SAVE else (kept, live)
    _copy(source, target, tl.minimum(many * inner - start, CHUNK), CHUNK)


@triton.jit(do_not_specialize=['fixed_rows', 'begin', 'count', 'first', 'many', 'chunks'])
def copy_both(  # type: ignore[no-untyped-def]
    fixed_table,
    fixed_block,
    fixed_rows,
    rope_table,
    rope_block,
    begin,
    count,
    first,
    many,
    chunks,
    SAVE: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """The first `fixed_rows` programs copy the fixed part, the others one piece of a rope."""
    program = tl.program_id(0)
    if program < fixed_rows:
        _fixed_part(fixed_table, fixed_block, program, SAVE, CHUNK)
    else:
        row = (program - fixed_rows) // chunks
        chunk = (program - fixed_rows) % chunks
        _rope_part(rope_table, rope_block, begin, count, first, many, row, chunk, SAVE, CHUNK)


@triton.jit(do_not_specialize=['fixed_rows', 'rows'])
def copy_many(  # type: ignore[no-untyped-def]
    fixed_table,
    fixed_block,
    fixed_rows,
    units,
    rope_table,
    rows,
    SAVE: tl.constexpr,
    CHUNK: tl.constexpr,
    MANY: tl.constexpr,
):
    """As `copy_both`, but any pieces of a rope: program u * rows + r copies row r of units[u].

    A unit is (block, begin, count, first, many, chunk), as in `_rope_part`.
    """
    program = tl.program_id(0)
    if program < fixed_rows:
        _fixed_part(fixed_table, fixed_block, program, SAVE, CHUNK)
    else:
        program -= fixed_rows
        unit = _numbers(units) + (program // rows) * 6
        block = tl.load(unit)
        begin = tl.load(unit + 1)
        count = tl.load(unit + 2)
        first = tl.load(unit + 3)
        many = tl.load(unit + 4)
        chunk = tl.load(unit + 5)
        row = program % rows
        _rope_part(rope_table, block, begin, count, first, many, row, chunk, SAVE, MANY)


class RopeTable:
    """Addresses of one rope's rows."""

    def __init__(self, layout: RopeLayout, device: torch.device) -> None:
        rows = []
        for row in layout.rows:
            buffer, span = row.entry.buffer, row.entry.buffer.shape[row.entry.dim] * row.inner
            for outer in range(row.outer):
                start = buffer.address + outer * span
                rows.append((start, row.inner, row.before + outer * row.inner))
        self.table = torch.tensor(rows, dtype=torch.int64, device=device)  # [rows, 3]
        self.address = self.table.data_ptr()
        self.rows = len(rows)
        self.longest = max(row.inner for row in layout.rows)

    def chunks(self, positions: int) -> int:
        """Programs per row for so many positions."""
        return -(-positions * self.longest // CHUNK) or 1


def describe(pieces: Sequence[Piece], longest: int) -> np.ndarray:
    """Descriptors of the programs per row, int64 [units, 6]; see `copy_many`."""
    plain = np.array(
        [(block.address, a, b - a, first, last - first) for _, block, a, b, first, last in pieces],
        np.int64,
    )
    chunks = np.maximum(1, -(-plain[:, 4] * longest // MANY_CHUNK))
    before = np.cumsum(chunks) - chunks
    chunk = np.arange(chunks.sum()) - np.repeat(before, chunks)
    return np.column_stack((np.repeat(plain, chunks, axis=0), chunk))


class _Units:
    """A table on the device that the host fills in the order of the stream."""

    def __init__(self, stream: Stream, device: torch.device) -> None:
        self._stream = stream
        self._table = torch.zeros(_UNITS, _COLUMNS, dtype=torch.int64, device=device)
        self.address = self._table.data_ptr()
        # Two, so that the host need not wait for the restore before.
        self._pinned = [torch.zeros_like(self._table, device='cpu').pin_memory() for _ in '12']
        self._read = [torch.cuda.Event(), torch.cuda.Event()]

    def fill(self, rows: np.ndarray) -> None:
        """What is launched on the stream next finds `rows`, int64 [<= _UNITS, 6]."""
        self._pinned.reverse()
        self._read.reverse()
        self._read[0].synchronize()  # the device has taken what stood here
        count = len(rows)
        self._pinned[0].numpy()[:count] = rows
        with self._stream.use():
            self._table[:count].copy_(self._pinned[0][:count], non_blocking=True)
        self._read[0].record(self._stream.native)


class TritonMover:
    """Fused copies on `stream`. Everything is compiled when it is made."""

    def __init__(self, layout: Layout, stream: Stream, device: torch.device) -> None:
        rows = [
            (buffer.address + start, offset + start, min(CHUNK, buffer.nbytes - start))
            for buffer, offset in layout.fixed
            for start in range(0, buffer.nbytes, CHUNK)
        ]
        self._rows = len(rows)
        self._table = torch.tensor(rows or [(0, 0, 0)], dtype=torch.int64, device=device)
        self._address = self._table.data_ptr()  # [rows, 3]
        # Instead of a piece of a rope, which no program copies then.
        self._no_piece = (self._address, self._address, 0, 0, 0, 0, 1)
        self._ropes = [RopeTable(rope, device) for rope in layout.ropes]
        self._units = _Units(stream, device) if self._ropes else None
        scratch = torch.zeros(256, dtype=torch.uint8, device=device)
        zeros = torch.zeros(8, dtype=torch.int64, device=device)
        block, table = scratch.data_ptr(), zeros.data_ptr()  # a table of rows of no bytes
        torch.cuda.synchronize(device)  # the tables were written on another stream
        self._save, self._load = (
            Launcher(
                copy_both, stream, device, (table, block, 1, table, block, 0, 0, 0, 0, 1),
                warps=4, SAVE=save, CHUNK=CHUNK,
            )
            for save in (True, False)
        )  # fmt: skip
        self._many = Launcher(
            copy_many, stream, device, (table, block, 1, table, table, 1),
            warps=8, SAVE=False, CHUNK=CHUNK, MANY=MANY_CHUNK,
        )  # fmt: skip
        stream.synchronize()

    def save(self, fixed: Block, pieces: Sequence[Piece]) -> None:
        """Live buffers into blocks; one launch, and one more per further rope."""
        self._each(self._save, fixed.address, self._rows, pieces)

    def load(self, fixed: Block, pieces: Sequence[Piece]) -> None:
        """Blocks into the live buffers; one launch, and one more per further rope."""
        rows = self._rows
        if len(pieces) < 2:
            self._each(self._load, fixed.address, rows, pieces)
            return
        for rope in dict.fromkeys([piece[0] for piece in pieces]):
            of_rope = [piece for piece in pieces if piece[0] == rope]
            if len(of_rope) == 1:
                self._each(self._load, fixed.address, rows, of_rope)
            else:
                self._all(fixed.address, rows, rope, of_rope)
            rows = 0

    def _each(self, way: Launcher, block: int, rows: int, pieces: Sequence[Piece]) -> None:
        table = self._address
        if not pieces and rows:
            way.start(rows, table, block, rows, *self._no_piece)
        for index, kept, begin, end, first, last in pieces:
            rope, many = self._ropes[index], last - first
            chunks = rope.chunks(many)
            way.start(
                rows + rope.rows * chunks, table, block, rows,
                rope.address, kept.address, begin, end - begin, first, many, chunks,
            )  # fmt: skip
            rows = 0

    def _all(self, block: int, rows: int, index: int, pieces: Sequence[Piece]) -> None:
        rope = self._ropes[index]
        assert self._units is not None
        units = describe(pieces, rope.longest)
        for start in range(0, len(units), _UNITS):
            part = units[start : start + _UNITS]
            self._units.fill(part)
            self._many.start(
                rows + len(part) * rope.rows, self._address, block, rows,
                self._units.address, rope.address, rope.rows,
            )  # fmt: skip
            rows = 0
