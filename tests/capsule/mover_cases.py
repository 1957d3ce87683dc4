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
from flashrt_ros.capsule.mover import TensorMover
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


launches: list[int] = []  # programs of each


class Interpreted:
    """Stands in for the launcher: the interpreter runs the programs."""

    def __init__(self, kernel, stream, device, args, warps, **constants) -> None:  # type: ignore[no-untyped-def]
        self.kernel, self.constants = kernel, constants

    def start(self, programs: int, *args: int) -> None:
        """Run so many programs."""
        launches.append(programs)
        self.kernel[(programs, 1, 1)](*args, **self.constants)


class Units:
    """Stands in for the table on the device."""

    def __init__(self, *args: object) -> None:
        self.table = np.zeros((99, 6), np.int64)
        self.address = self.table.ctypes.data

    def fill(self, rows: np.ndarray) -> None:
        """What is launched next finds `rows`."""
        assert rows.dtype == np.int64
        self.table[: len(rows)] = rows


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
    ours = kernels.TritonMover(layout, ctx.current_stream(), ctx.device)
    if shape == 'odd':
        ours._table = low(ours._table)
        ours._address = ours._table.data_ptr()
    blocks = [arena.take(layout.fixed_bytes) for _ in '12']
    pieces = [
        (0, arena.take(layout.ropes[0].stride * 43), 7, 50, 7, 50),
        (0, arena.take(layout.ropes[0].stride * 43), 7, 50, 7, 50),
    ]
    for block in (*blocks, pieces[0][1], pieces[1][1]):
        block.tensor.fill_(170)
    ours.save(blocks[0], [pieces[0]])
    plain.save(blocks[1], [pieces[1]])
    assert torch.equal(blocks[0].tensor, blocks[1].tensor)
    assert torch.equal(pieces[0][1].tensor, pieces[1][1].tensor)

    part = (*pieces[0][:4], 11, 44)
    more = []
    for begin, end in ((0, 9), (9, 10), (10, 40), (40, 50)):
        block = arena.take(layout.ropes[0].stride * (end - begin))
        block.tensor.random_(0, 255)
        more.append((0, block, begin, end, begin, end - (end - begin) // 3))
    many = len(kernels.describe(more, ours._ropes[0].longest))
    for loads in ([], [part], more):
        launches.clear()
        found = []
        for mover in (ours, plain):
            for live in lives:
                live.fill_(9)
            mover.load(blocks[0], loads)
            found.append([live.clone() for live in lives])
        assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
        assert len(launches) == 1, launches
    assert launches == [len(ours._table) + many * ours._ropes[0].rows]


if __name__ == '__main__':
    numbers_from_arrays()
    kernels.Launcher, kernels._Units = Interpreted, Units  # type: ignore[misc, assignment]
    torch.cuda.synchronize = lambda device: None
    for name in SHAPES:
        check(name)
        print(f'{name}: the same bytes')
