"""Triton kernel of `vla.linear`: one tile of few rows, with its norm in front and what follows.

A norm needs the root mean square of the whole row, which is known when the loop over the row
ends: the input is multiplied by the norm's scale on the way in, the sum of squares is kept beside
the product, and the result is divided at the end. So a norm costs no pass of its own. Better
still, whoever wrote the row has multiplied it already and left the squares by tiles of columns:
then nothing stands between loading and multiplying.

Where the device allows it, a tile asks for its weights while the kernel before still runs: they
are on their way when its input is there. A long input is cut in parts that are summed by whoever
of a tile's programs comes last, in the order of the parts: a replay has the same bits.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from flashrt_policies.kernels.launch import begin, early, fetch, processors, stages
from flashrt_policies.kernels.vla.linear import Euler, Stream
from flashrt_policies.kernels.vla.matrix import Matrix
from flashrt_policies.kernels.vla.norm_triton import act
from flashrt_policies.kernels.vla.rope import Heads, Rotary
from flashrt_policies.kernels.vla.rope_triton import angles, place_heads

ROWS = 64  # of a tile, or 16 where there are no more
DEPTH = 128  # of a tile
LOADS = 5  # in flight
WARPS = 4
# Columns of a tile, the widest where a product has several tiles of rows alone. On an H200 it took
# SmolVLA's prefix from 0.70 to 0.64 ms, and π0.5's steps, one tile of rows each, from 7.0 to 7.4.
WIDTHS = (128, 64, 32, 16)
# Of the processors, what a choice of tiles should keep busy. Less than half: the next kernel's
# tiles find room beside them, and ask for their weights meanwhile.
BUSY = 0.3
DEEP = 2048  # an input from here on is cut in parts
PARTS, PART_WIDTH = 2, 32  # so many, for tiles of so many columns
COUNTERS = 8192  # tiles of one launch


@triton.jit
def few_rows_kernel(
    x_ptr, scale_ptr, w_ptr, w_scale_ptr, bias_ptr, gate_ptr, out_ptr,
    cos_ptr, sin_ptr, k_ptr, v_ptr, part_ptr, count_ptr,
    scaled_ptr, squares_ptr, target_ptr, held_ptr,
    rows, columns, depth, x_row, out_row, eps, queries, keys, k_row, v_row, tiles, squares_row,
    time, pull, length,
    NORM: tl.constexpr, FLOAT8: tl.constexpr, BIAS: tl.constexpr, KIND: tl.constexpr,
    END: tl.constexpr, GATE: tl.constexpr, NEXT: tl.constexpr, HALF: tl.constexpr,
    R: tl.constexpr, N: tl.constexpr, K: tl.constexpr, EVEN: tl.constexpr, STAGES: tl.constexpr,
    SPLITS: tl.constexpr, LINES: tl.constexpr, TILES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Tile [R, N] of act(norm(x) @ w.T + bias), and its END: store, add, gate, heads or flow.

    NORM is 0 for none, 1 for one done here, 2 for one that is prepared but for its division; NEXT
    prepares the one that reads the result.
    """
    i = tl.program_id(1) * R + tl.arange(0, R)
    j = tl.program_id(0) * N + tl.arange(0, N)
    k = tl.arange(0, K)
    share = depth // SPLITS
    low = tl.program_id(2) * share
    real = (i < rows)[:, None]  # what is not costs no traffic
    x_at = x_ptr + i[:, None].to(tl.int64) * x_row + (low + k)[None, :]
    w_at = w_ptr + tl.minimum(j, columns - 1)[None, :].to(tl.int64) * depth + (low + k)[:, None]
    if LINES > 0 and PDL > 0:
        step: tl.constexpr = 128 // (w_ptr.dtype.element_ty.primitive_bitwidth // 8)
        line = tl.minimum(tl.arange(0, LINES) * step, share - 1)
        row = tl.minimum(j, columns - 1).to(tl.int64) * depth + low
        fetch(w_ptr + row[:, None] + line[None, :])
    # What the end needs is asked for now: it is there when the products are.
    there = j < columns
    live = real & there[None, :]
    spot = out_ptr + i[:, None].to(tl.int64) * out_row + j[None, :]
    if FLOAT8:
        w_scale = tl.load(w_scale_ptr + j, mask=there, other=0.0)
    if BIAS:
        bias = tl.load(bias_ptr + j, mask=there, other=0.0)
    if GATE:
        gate = tl.load(gate_ptr + j, mask=there, other=0.0)
    if NEXT:
        next_scale = tl.load(scale_ptr + j, mask=there, other=0.0)
    begin(PDL)
    if NORM == 2:
        t = tl.arange(0, TILES)[:, None]
        sums = squares_ptr + t * squares_row + i[None, :]
        sums = tl.load(sums, mask=(t < tiles) & (i < rows)[None, :], other=0.0)
    if END == 'heads':
        row = tl.minimum(i, rows - 1)
        cos, sin = angles(
            row, tl.program_id(0) * N, cos_ptr, sin_ptr, queries + keys, HALF=HALF, N=N
        )
    if END == 'add' or END == 'flow':
        before = tl.load(spot, mask=live, other=0.0).to(tl.float32)
    if END == 'flow':
        target = tl.load(target_ptr + i[:, None] * columns + j[None, :], mask=live, other=0.0)
        held = tl.load(held_ptr + i, mask=i < rows, other=0.0)
    acc = tl.zeros((R, N), tl.float32)
    squares = tl.zeros((R,), tl.float32)
    for start in tl.range(0, share, K, num_stages=STAGES):
        if EVEN:
            w = tl.load(w_at + start)
            x = tl.load(x_at + start, mask=real, other=0.0)
        else:
            w = tl.load(w_at + start, mask=(k < depth - start)[:, None], other=0.0)
            x = tl.load(x_at + start, mask=real & (k < depth - start)[None, :], other=0.0)
        if FLOAT8:
            w = w.to(x_ptr.dtype.element_ty)
        if NORM == 1:
            if EVEN:
                scale = tl.load(scale_ptr + start + k)
            else:
                scale = tl.load(scale_ptr + start + k, mask=k < depth - start, other=0.0)
            wide = x.to(tl.float32)
            squares += tl.sum(wide * wide, 1)
            x = (wide * scale[None, :]).to(w.dtype)
        acc = tl.dot(x.to(w.dtype), w, acc, input_precision='tf32x3')
    if NORM == 2:
        squares = tl.sum(sums, 0)
    last = True
    if SPLITS > 1:
        size = rows * columns
        at = part_ptr + i[:, None].to(tl.int64) * columns + j[None, :]
        tl.store(at + tl.program_id(2) * size, acc, mask=live)
        tl.debug_barrier()
        counter = count_ptr + tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
        last = tl.atomic_add(counter, 1, sem='acq_rel') == SPLITS - 1
        if last:
            acc = tl.zeros((R, N), tl.float32)
            for part in tl.static_range(SPLITS):  # all asked for before the first is there
                acc += tl.load(at + part * size, mask=live, other=0.0, cache_modifier='.cg')
            tl.store(counter, 0)
    if NORM > 0:
        acc *= tl.rsqrt(squares / depth + eps)[:, None]
    if FLOAT8:
        acc *= w_scale[None, :]
    if BIAS:
        acc += bias[None, :]
    kind = out_ptr.dtype.element_ty
    if END == 'heads':
        place_heads(
            acc, i, j, live, cos, sin, out_ptr, k_ptr, v_ptr, queries, keys, k_row, v_row,
            R=R, N=N,
        )  # fmt: skip
    elif END == 'gated':
        opening, up = tl.split(tl.reshape(acc, (R, N // 2, 2)))
        half = tl.program_id(0) * (N // 2) + tl.arange(0, N // 2)
        at = out_ptr + i[:, None].to(tl.int64) * out_row + half[None, :]
        mask = real & (half < columns // 2)[None, :]
        tl.store(at, (act(opening, KIND) * up).to(kind), mask=mask)
    else:
        if KIND != '':
            acc = act(acc, KIND)
        if GATE:
            acc *= gate[None, :]
        if END == 'add':
            acc += before
        elif END == 'flow':
            missing = (target - (before - time * acc)) * held[:, None]
            acc = before - length * (acc - pull * missing)
        y = acc.to(kind)
        tl.store(spot, y, mask=live & last)
        if NEXT:
            wide = tl.where(live, y.to(tl.float32), 0.0)
            at = scaled_ptr + i[:, None].to(tl.int64) * columns + j[None, :]
            tl.store(at, (wide * next_scale[None, :]).to(kind), mask=live & last)
            sums = squares_ptr + tl.program_id(0) * squares_row + i
            tl.store(sums, tl.sum(wide * wide, 1), mask=(i < rows) & last)


@functools.cache
def counters(device: torch.device) -> Tensor:
    """Return the counters of a device's tiles: zero before and after every launch."""
    return torch.zeros(COUNTERS, dtype=torch.int32, device=device)


def _tile(rows: int, columns: int, depth: int, end: str, like: Tensor) -> tuple[int, int]:
    """Return the columns of a tile, and the parts that its input is cut in."""
    if end == 'add' and depth >= DEEP and depth % (PARTS * DEPTH) == 0:
        return PART_WIDTH, PARTS
    least = 32 if end == 'gated' else 16
    tiles = triton.cdiv(rows, ROWS)
    busy = BUSY * processors(like.device) / tiles
    widths = WIDTHS if tiles > 1 else WIDTHS[1:]
    return next((n for n in widths if n >= least and columns / n >= busy), least), 1


def _launch(
    x: Tensor | Stream,
    weight: Matrix,
    end: str,
    out: Tensor,
    bias: Tensor | None = None,
    scale: Tensor | None = None,
    eps: float = 0.0,
    kind: str = '',
    gate: Tensor | None = None,
    place: tuple[Rotary, Heads, Tensor, Tensor] | None = None,
    following: Stream | None = None,
    step: Euler | None = None,
) -> None:
    """Launch the kernel.

    Args:
        x: [M, K], or a stream of it, whose norm may be prepared.
        weight: [N, K].
        end: what is done with the product.
        out: where to.
        bias: float32 [N].
        scale: float32 [K] of a norm in front; [N] of the norm behind, with `following`.
        eps: of the norm in front.
        kind: an activation.
        gate: float32 [N].
        place: of queries, keys and values.
        following: the stream of the norm behind, to be prepared.
        step: of the flow.
    """
    norm, squares = int(scale is not None), None
    if isinstance(x, Stream):
        prepared = x.scaled is not None and x.squares is not None
        norm, squares = (2, x.squares) if prepared else (1, None)
        x = x.scaled if x.scaled is not None else x.x
    rows, depth = x.shape
    columns = weight.data.shape[0]
    n, parts = _tile(rows, columns, depth, end, x)
    r = 16 if rows <= 16 else ROWS
    k = min(DEPTH, max(16, triton.next_power_of_2(depth)))
    if x.element_size() == 4:
        k = min(k, 32)
    while k > 32 and stages(x, (r + n) * k, LOADS) < min(3, LOADS):
        k //= 2  # many small loads in flight rather than few large ones
    row_bytes = depth * weight.data.element_size()
    none = out  # stands for pointers that are not read
    part = count = none
    if parts > 1:
        part = torch.empty((parts, rows, columns), dtype=torch.float32, device=x.device)
        count = counters(x.device)
    turns, heads, keys, values = place or (Rotary(none, none), Heads(0, 0, 2), none, none)
    scaled = none
    if following is not None and following.scaled is not None:
        norm, scaled, squares = 0, following.scaled, following.squares
    few_rows_kernel[(triton.cdiv(columns, n), triton.cdiv(rows, r), parts)](
        x, none if scale is None else scale, weight.data,
        none if weight.scale is None else weight.scale, none if bias is None else bias,
        none if gate is None else gate, out, turns.cos, turns.sin, keys, values,
        part, count, scaled, none if squares is None else squares,
        *((none, none) if step is None else (step.target, step.held)),
        rows, columns, depth, x.stride(0), out.stride(0), eps, heads.queries * heads.dim,
        heads.kv * heads.dim, keys.stride(0), values.stride(0),
        *((0, 0) if squares is None else (squares.shape[0], squares.stride(0))),
        *((0.0, 0.0, 0.0) if step is None else (step.time, step.pull, step.length)),
        NORM=norm, FLOAT8=weight.scale is not None,
        BIAS=bias is not None, KIND=kind, END=end, GATE=gate is not None,
        NEXT=following is not None, HALF=heads.dim // 2,
        R=r, N=n, K=k, EVEN=depth % k == 0, STAGES=stages(x, (r + n) * k, LOADS),
        SPLITS=parts, TILES=1 if squares is None else triton.next_power_of_2(squares.shape[0]),
        LINES=triton.next_power_of_2(triton.cdiv(row_bytes // parts, 128)),
        num_warps=WARPS, **early(x, step=True),
    )  # fmt: skip


def project(x: Tensor, weight: Matrix, bias: Tensor | None, kind: str) -> Tensor:
    """Launch `vla.linear.project` on CUDA."""
    shape = x.shape[0], weight.data.shape[0]
    out = torch.empty(shape, dtype=weight.data.dtype, device=x.device)
    _launch(x, weight, 'store', out, bias, kind=kind)
    return out


def project_flow(
    stream: Stream, weight: Matrix, bias: Tensor, scale: Tensor, eps: float, step: Euler
) -> None:
    """Launch `vla.linear.project_flow` on CUDA."""
    _launch(stream, weight, 'flow', step.x, bias, scale, eps, step=step)


def project_heads(
    stream: Stream,
    weight: Matrix,
    bias: Tensor | None,
    scale: Tensor,
    eps: float,
    turns: Rotary,
    heads: Heads,
    k: Tensor,
    v: Tensor,
) -> Tensor:
    """Launch `vla.linear.project_heads` on CUDA."""
    x = stream.x
    q = torch.empty((x.shape[0], heads.queries, heads.dim), dtype=x.dtype, device=x.device)
    _launch(stream, weight, 'heads', q, bias, scale, eps, place=(turns, heads, k, v))
    return q


def project_gated(
    stream: Stream, weight: Matrix, bias: Tensor | None, scale: Tensor, eps: float, kind: str
) -> Tensor:
    """Launch `vla.linear.project_gated` on CUDA."""
    x = stream.x
    out = torch.empty((x.shape[0], weight.data.shape[0] // 2), dtype=x.dtype, device=x.device)
    _launch(stream, weight, 'gated', out, bias, scale, eps, kind)
    return out


def project_add(
    stream: Stream, y: Tensor, weight: Matrix, gate: Tensor | None, following: Tensor
) -> None:
    """Launch `vla.linear.project_add` on CUDA."""
    rows, columns = stream.x.shape
    n, _ = _tile(rows, columns, y.shape[1], 'add', y)
    stream.scaled = torch.empty_like(stream.x)
    stream.squares = torch.empty(
        (triton.cdiv(columns, n), rows), dtype=torch.float32, device=y.device
    )
    _launch(y, weight, 'add', stream.x, scale=following, gate=gate, following=stream)
