"""Movers: the fused kernels copy exactly what the plain copies do, whatever the shapes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from flashrt_ros.capsule.arena import Arena, Block
from flashrt_ros.capsule.closure import Closure
from flashrt_ros.capsule.cursor import Cursor
from flashrt_ros.capsule.layout import Layout
from flashrt_ros.capsule.mover import Mover, Piece, TensorMover, choose
from flashrt_ros.contract.context import Context

SHAPES = {
    'wide rows': ((1, 2, 100, 8), torch.bfloat16, torch.float32),
    'odd rows': ((2, 50, 3), torch.bfloat16, torch.uint8),
    'long rows': ((1, 2, 100, 256), torch.bfloat16, torch.bfloat16),
    'long and narrow rows': ((2, 60, 64), torch.bfloat16, torch.int32),
}


class Case:
    """A closure with awkward sizes, the mover of its device and the plain one."""

    def __init__(self, ctx: Context, shape: str) -> None:
        size, key_dtype, value_dtype = SHAPES[shape]
        dim = len(size) - 2
        self.fixed = [
            ctx.buffer(f'fixed{index}', (n,), torch.uint8)
            for index, n in enumerate((5, 16, 17, 40_000, 8, 1, 16_384, 16_385))
        ]
        narrow = size[: dim + 1] if 'and' in shape else size  # 4 bytes a position
        self.ropes = [
            ctx.buffer('k', size, key_dtype),
            ctx.buffer('v', narrow, value_dtype),
        ]
        cursor = Cursor('c')
        closure = Closure('x').fixed(*self.fixed)
        for buffer in self.ropes:
            closure.append(buffer, dim, cursor)
        self.layout = Layout(closure)
        stream = ctx.current_stream()
        self.mover: Mover = choose(self.layout, stream, ctx.device)
        self.plain = TensorMover(self.layout, stream)
        self.arena = Arena(4 << 20, ctx.backend.reserve)
        for buffer in (*self.fixed, *self.ropes):
            raw(buffer.tensor).random_(0, 255)

    def block(self, nbytes: int) -> Block:
        """A block filled with a known pattern."""
        made = self.arena.take(nbytes)
        assert made is not None
        made.tensor.fill_(170)
        return made


def raw(tensor: torch.Tensor) -> torch.Tensor:
    """Its bytes."""
    return tensor.reshape(-1).view(torch.uint8)


@pytest.fixture(params=list(SHAPES))
def case(request: pytest.FixtureRequest, ctx: Context) -> Case:
    """Every shape on every device."""
    return Case(ctx, request.param)


def test_the_fixed_part_goes_out_and_in(case: Case) -> None:
    """Tails of any length included; nothing beyond a buffer is touched."""
    ours, plain = case.block(case.layout.fixed_bytes), case.block(case.layout.fixed_bytes)
    case.mover.save(ours, [])
    case.plain.save(plain, [])
    assert torch.equal(ours.tensor, plain.tensor)
    before = [raw(buffer.tensor).clone() for buffer in case.fixed]
    for buffer in case.fixed:
        buffer.tensor.zero_()
    case.mover.load(ours, [])
    for buffer, content in zip(case.fixed, before, strict=True):
        assert torch.equal(raw(buffer.tensor), content)


@pytest.mark.parametrize(('begin', 'end'), [(0, 50), (7, 37), (3, 4)])
def test_positions_go_out_and_parts_of_them_in(case: Case, begin: int, end: int) -> None:
    """A segment of [begin, end), of which only some positions are loaded."""
    stride = case.layout.ropes[0].stride
    fixed = case.block(case.layout.fixed_bytes)
    ours, plain = (case.block(stride * (end - begin)) for _ in range(2))
    case.mover.save(fixed, [(0, ours, begin, end, begin, end)])
    case.plain.save(fixed, [(0, plain, begin, end, begin, end)])
    assert torch.equal(ours.tensor, plain.tensor)
    first, last = begin + (end - begin) // 3, end - (end - begin) // 4
    loaded = []
    for mover in (case.mover, case.plain):
        for buffer in case.ropes:
            raw(buffer.tensor).fill_(9)
        mover.load(fixed, [(0, ours, begin, end, first, last)])
        loaded.append([raw(buffer.tensor).clone() for buffer in case.ropes])
    for one, other in zip(*loaded, strict=True):
        assert torch.equal(one, other)
    assert any(bool((content != 9).any()) for content in loaded[0])


def test_many_pieces_go_in_at_once(case: Case) -> None:
    """Pieces of any size and order of one rope, and the fixed part, in one call."""
    stride = case.layout.ropes[0].stride
    fixed = case.block(case.layout.fixed_bytes)
    case.plain.save(fixed, [])
    pieces: list[Piece] = []
    for begin, end in ((0, 9), (9, 10), (10, 40), (40, 50)):
        block = case.block(stride * (end - begin))
        block.tensor.random_(0, 255)
        pieces.append((0, block, begin, end, begin, end - (end - begin) // 3))
    loaded = []
    for mover in (case.mover, case.plain):
        for buffer in (*case.fixed, *case.ropes):
            raw(buffer.tensor).fill_(9)
        mover.load(fixed, pieces)
        loaded.append([raw(b.tensor).clone() for b in (*case.fixed, *case.ropes)])
    for one, other in zip(*loaded, strict=True):
        assert torch.equal(one, other)


def test_the_kernels_copy_the_same_bytes_in_the_interpreter() -> None:
    """What a GPU would run, for rows of 16 bytes, odd ones and both together, without a GPU."""
    pytest.importorskip('triton', reason='the kernels need Triton')
    script = Path(__file__).with_name('mover_cases.py')
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count('the same bytes') == 3
