"""The GPU's copy kernels in Triton's interpreter, against plain copies: run as a script.

In a process of its own, because the interpreter must be chosen before Triton is imported.
"""

from __future__ import annotations

import mmap
import os
import platform

os.environ['TRITON_INTERPRET'] = '1'

import numpy as np
import torch
import triton.runtime.interpreter as interpreter

from flashrt_ros.capsule import mover_triton as kernels
from flashrt_ros.capsule.arena import Arena
from flashrt_ros.capsule.closure import Closure
from flashrt_ros.capsule.cursor import Cursor
from flashrt_ros.capsule.layout import Layout
from flashrt_ros.capsule.mover import Piece, TensorMover
from flashrt_ros.contract.context import Context

SHAPES = {
    'wide': ((1, 2, 100, 256), torch.bfloat16, torch.bfloat16),
    'odd': ((2, 50, 3), torch.bfloat16, torch.uint8),
    'mixed': ((2, 60, 16), torch.bfloat16, torch.int32),
}


def low(numbers: torch.Tensor) -> torch.Tensor:
    """Return a copy below 2 GiB, where the processor allows that: its address fits 32 bits."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    flags |= 0x40 if platform.machine() == 'x86_64' else 0  # MAP_32BIT
    memory = mmap.mmap(-1, numbers.nbytes, flags=flags)
    copy = torch.frombuffer(memory, dtype=numbers.dtype).reshape(numbers.shape)
    return copy.copy_(numbers)


def numbers_from_arrays() -> None:
    """Let Triton 3.6's interpreter read one-element arrays as numbers under numpy 2.4."""
    patch = interpreter._patch_lang_tensor

    def patched(tensor: type, scope: object) -> None:
        patch(tensor, scope)
        tensor.__index__ = lambda self: int(self.handle.data.item())

    interpreter._patch_lang_tensor = patched


def check(shape: str) -> None:
    """Save and load by the kernels what the plain mover saves and loads."""
    torch.manual_seed(3)
    ctx = Context('cpu')
    size, key, value = SHAPES[shape]
    dim, cursor = len(size) - 2, Cursor('c')
    fixed = [ctx.buffer(f'f{n}', (n,), torch.uint8) for n in (5, 16, 17, 20_000)]
    narrow = size[: dim + 1] if shape == 'mixed' else size  # 4 bytes a position
    rope = [ctx.buffer('k', size, key), ctx.buffer('v', narrow, value)]
    closure = Closure('x').fixed(*fixed)
    for buffer in rope:
        closure.append(buffer, dim, cursor)
    layout = Layout(closure)
    plain = TensorMover(layout, ctx.current_stream())
    arena = Arena(4 << 20, ctx.backend.reserve)
    lives = [b.tensor.reshape(-1).view(torch.uint8) for b in (*fixed, *rope)]
    for live in lives:
        live.random_(0, 255)
    chunk = kernels.CHUNK
    rows = torch.tensor(
        [
            (buffer.address + start, offset + start, min(chunk, buffer.nbytes - start))
            for buffer, offset in layout.fixed
            for start in range(0, buffer.nbytes, chunk)
        ]
    )
    rows = low(rows) if shape == 'odd' else rows
    table = kernels.RopeTable(layout.ropes[0], ctx.device)

    def both(save: bool, block: int, piece: Piece) -> None:
        _, kept, begin, end, first, last = piece
        chunks = table.chunks(last - first)
        kernels.copy_both[(len(rows) + table.rows * chunks, 1, 1)](
            rows.data_ptr(), block, len(rows), table.address, kept.address,
            begin, end - begin, first, last - first, chunks, SAVE=save, CHUNK=chunk,
        )  # fmt: skip

    blocks = [arena.take(layout.fixed_bytes) for _ in '12']
    pieces = [
        (0, arena.take(layout.ropes[0].stride * 43), 7, 50, 7, 50),
        (0, arena.take(layout.ropes[0].stride * 43), 7, 50, 7, 50),
    ]
    for block in (*blocks, pieces[0][1], pieces[1][1]):
        block.tensor.fill_(170)
    both(True, blocks[0].address, pieces[0])
    plain.save(blocks[1], [pieces[1]])
    assert torch.equal(blocks[0].tensor, blocks[1].tensor)
    assert torch.equal(pieces[0][1].tensor, pieces[1][1].tensor)

    part = (*pieces[0][:4], 11, 44)
    more = []
    for begin, end in ((0, 9), (9, 10), (10, 40), (40, 50)):
        block = arena.take(layout.ropes[0].stride * (end - begin))
        block.tensor.random_(0, 255)
        more.append((0, block, begin, end, begin, end - (end - begin) // 3))
    found = []
    for ours in (True, False):
        for live in lives:
            live.fill_(9)
        if ours:
            both(False, blocks[0].address, part)
            for live in lives[: len(fixed)]:
                live.fill_(9)  # the next launch loads them as well
            units = kernels.describe(more, table.longest)
            assert units.dtype == np.int64
            kernels.copy_many[(len(rows) + len(units) * table.rows, 1, 1)](
                rows.data_ptr(), blocks[0].address, len(rows),
                units.ctypes.data, table.address, table.rows,
                SAVE=False, CHUNK=chunk, MANY=kernels.MANY_CHUNK,
            )  # fmt: skip
        else:
            plain.load(blocks[0], [part, *more])
        found.append([live.clone() for live in lives])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


if __name__ == '__main__':
    numbers_from_arrays()
    for name in SHAPES:
        check(name)
        print(f'{name}: the same bytes')
