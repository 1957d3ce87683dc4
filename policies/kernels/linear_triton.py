"""Triton kernels of `linear`: products whose rows keep their bits whatever stands around them.

Every element is summed over K in one ascending chain of matrix instructions, for every tile size;
K is never split. So a row's bits depend neither on the number of rows nor on the tile, as far as
the GPU's matrix instructions of different widths sum alike: seen on an H200 (`check_lm.py
products`), promised by nobody. The library's product (cuBLAS) is taken for tall inputs of two-byte
types where trials show the same bits. A single row goes through a kernel of its own, bound by the
weights' bytes.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from flashrt_policies.kernels.activation_triton import silu_mul
from flashrt_policies.kernels.launch import begin, early, fetch, processors, stages
from flashrt_policies.kernels.norm_triton import add_rms_norm

# Rows, columns of a tile, warps, and how fast a processor works on such tiles, relatively.
TILES = (
    (128, 256, 8, 1.0),
    (128, 128, 8, 0.8),
    (128, 64, 4, 0.6),
    (64, 128, 4, 0.6),
    (64, 64, 4, 0.45),
    (64, 32, 4, 0.28),
    (64, 16, 4, 0.16),
)
DEPTH = 64
# Lines of 128 bytes of every weight row that are fetched early for a short input.
FETCH = 16
# From this many outputs on a short input's product is bound by memory alone: outputs of a program
# and its warps then.
VAST, HEAD = 32768, (16, 4)
# From this many rows on the library's product is tried.
LIBRARY_ROWS = 128
# Different orders of summing show in about one of a thousand rounded outputs: one trial has enough
# of them. The others have other magnitudes: all of one sign, and a wide spread.
TRIALS = 3
_library: dict[tuple[int, int, int, torch.dtype, torch.device], bool] = {}


@triton.jit
def matmul_kernel(
    x_ptr, weight_ptr, bias_ptr, out_ptr, rows, columns, depth,
    BIAS: tl.constexpr, PAIR: tl.constexpr, SPLITS: tl.constexpr, R: tl.constexpr,
    N: tl.constexpr, K: tl.constexpr, GROUP: tl.constexpr, EVEN: tl.constexpr,
    STAGES: tl.constexpr, FETCH: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One tile [R, N] of x @ weight.T; tiles are numbered so that neighbours share weights.

    With PAIR the weight holds 2 * columns rows, and silu(first) * second is written. With SPLITS
    above one, each of as many programs sums its share of the depth and writes it in float32.
    FETCH lines of each weight row are on their way before the predecessor has ended.
    """
    pid, split = tl.program_id(0), tl.program_id(1)
    wide = columns * 2 if PAIR else columns
    down, across = tl.cdiv(rows, R), tl.cdiv(wide, N)
    span = GROUP * across
    base = pid // span * GROUP
    height = tl.minimum(down - base, GROUP)
    tile_row = base + pid % span % height
    tile_column = pid % span // height
    i = tile_row * R + tl.arange(0, R)
    n, k = tile_column * N + tl.arange(0, N), tl.arange(0, K)
    # Rows past the end read the last one again: no mask in the loop.
    j = tl.minimum(n, wide - 1)
    if PAIR:  # a column of the first half, and beside it its partner of the second
        j = j // 2 + j % 2 * columns
    share = depth // SPLITS
    low = split * share
    w_row = weight_ptr + j.to(tl.int64) * depth + low
    if FETCH > 0 and PDL > 0:
        line = tl.arange(0, FETCH) * (128 // (weight_ptr.dtype.element_ty.primitive_bitwidth // 8))
        fetch(w_row[:, None] + tl.minimum(line, share - 1)[None, :])
    begin(PDL)
    x_at = x_ptr + tl.minimum(i, rows - 1)[:, None].to(tl.int64) * depth + (low + k)[None, :]
    w_at = w_row[None, :] + k[:, None]
    acc = tl.zeros((R, N), tl.float32)
    for start in tl.range(0, share, K, num_stages=STAGES):
        if EVEN:
            x = tl.load(x_at + start)
            w = tl.load(w_at + start)
        else:
            x = tl.load(x_at + start, mask=(k < share - start)[None, :], other=0.0)
            w = tl.load(w_at + start, mask=(k < share - start)[:, None], other=0.0)
        acc = tl.dot(x, w, acc, input_precision='tf32x3')
    if BIAS:
        acc += tl.load(bias_ptr + n, mask=n < columns, other=0.0).to(tl.float32)[None, :]
    if PAIR:
        kind = out_ptr.dtype.element_ty
        gate, up = tl.split(tl.reshape(acc.to(kind).to(tl.float32), (R, N // 2, 2)))
        n = tile_column * (N // 2) + tl.arange(0, N // 2)
        y = gate * tl.sigmoid(gate) * up
    else:
        y = acc
    mask = (i < rows)[:, None] & (n < columns)[None, :]
    spot = out_ptr + (split * rows + i[:, None]).to(tl.int64) * columns + n[None, :]
    tl.store(spot, y.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def row_kernel(
    x_ptr, scale_ptr, weight_ptr, bias_ptr, add_ptr, out_ptr, columns, depth, eps,
    NORM: tl.constexpr, BIAS: tl.constexpr, ADD: tl.constexpr, PAIR: tl.constexpr,
    N: tl.constexpr, K: tl.constexpr, FETCH: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """N outputs of a single row: out = [norm](x) @ weight.T [+ bias] [+ add].

    With PAIR the weight holds 2 * columns rows and the output is silu(first) * second. Programs
    of the same columns and other rows run side by side, so the weights are read once.
    """
    x_ptr += tl.program_id(0).to(tl.int64) * depth
    add_ptr += tl.program_id(0).to(tl.int64) * columns
    out_ptr += tl.program_id(0).to(tl.int64) * columns
    j = tl.program_id(1) * N + tl.arange(0, N)
    k = tl.arange(0, K)
    rows = j[:, None].to(tl.int64) * depth
    if FETCH > 0 and PDL > 0:
        line = tl.arange(0, FETCH) * (128 // (weight_ptr.dtype.element_ty.primitive_bitwidth // 8))
        spot = tl.minimum(j, columns - 1)[:, None].to(tl.int64) * depth
        spot = spot + tl.minimum(line, depth - 1)[None, :]
        fetch(weight_ptr + spot)
        if PAIR:
            fetch(weight_ptr + columns.to(tl.int64) * depth + spot)
    begin(PDL)
    acc = tl.zeros((N, K), tl.float32)
    more = tl.zeros((N, K), tl.float32)
    square = tl.zeros((K,), tl.float32)
    for start in range(0, depth, K):
        at = start + k
        mask = (j < columns)[:, None] & (at < depth)[None, :]
        w = tl.load(weight_ptr + rows + at[None, :], mask=mask, other=0.0)
        x = tl.load(x_ptr + at, mask=at < depth, other=0.0).to(tl.float32)
        if NORM:
            square += x * x
            x = x * tl.load(scale_ptr + at, mask=at < depth, other=0.0)
        acc += w.to(tl.float32) * x[None, :]
        if PAIR:
            after = weight_ptr + columns.to(tl.int64) * depth
            up = tl.load(after + rows + at[None, :], mask=mask, other=0.0)
            more += up.to(tl.float32) * x[None, :]
    y = tl.sum(acc, 1)
    inverse = 1.0
    if NORM:
        inverse = tl.rsqrt(tl.sum(square, 0) / depth + eps)
        y = y * inverse
    if PAIR:
        y = y * tl.sigmoid(y) * (tl.sum(more, 1) * inverse)
    if BIAS:
        y += tl.load(bias_ptr + j, mask=j < columns, other=0.0).to(tl.float32)
    if ADD:
        y += tl.load(add_ptr + j, mask=j < columns, other=0.0).to(tl.float32)
    tl.store(out_ptr + j, y.to(out_ptr.dtype.element_ty), mask=j < columns)


def choose_tile(rows: int, columns: int, count: int) -> tuple[int, int, int]:
    """Return rows, columns and warps of the tile that keeps `count` processors busiest."""

    def cost(tile: tuple[int, int, int, float]) -> float:
        tiles = triton.cdiv(rows, tile[0]) * triton.cdiv(columns, tile[1])
        return triton.cdiv(tiles, count) * tile[0] * tile[1] / tile[3]

    best = min(TILES, key=cost)
    return best[0], best[1], best[2]


def choose(x: Tensor, columns: int, depth: int) -> tuple[int, int, int, int, int]:
    """Return rows, columns and depth of a tile, loads in flight, and warps."""
    high, wide, warps = choose_tile(x.shape[0], columns, processors(x.device))
    deep, many = DEPTH, 4
    if x.dtype == torch.float32:
        high, wide, warps = 64, 64, 4  # three products per turn: see `launch.LEAST_SIDE`
    elif x.shape[0] <= 64 and depth % (2 * DEPTH) == 0:  # bound by the weights' way to the tile
        deep, many = 2 * DEPTH, 5 if wide > 16 else 7
    return high, wide, deep, stages(x, deep * (high + wide), many), warps


def matmul(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    pair: bool = False,
    splits: int = 1,
    tile: tuple[int, ...] | None = None,
) -> Tensor:
    """Return ``x @ weight.T + bias`` by the Triton kernel.

    Args:
        x: [M, K].
        weight: [N, K], or [2 N, K] with `pair`.
        bias: [N], or None.
        pair: return ``silu(first half) * second half``, both rounded to the type of x before.
        splits: parts of the depth that are summed apart; above one they are returned so, float32
            [splits, M, N].
        tile: rows, columns, depth, loads in flight and warps; None chooses.

    Returns:
        [M, N].
    """
    rows, depth = x.shape
    columns = weight.shape[0] // 2 if pair else weight.shape[0]
    high, wide, deep, many, warps = tile or choose(x, weight.shape[0], depth // splits)
    kind = x.dtype if splits == 1 else torch.float32
    out = torch.empty((splits, rows, columns), dtype=kind, device=x.device)
    grid = (triton.cdiv(rows, high) * triton.cdiv(weight.shape[0], wide), splits)
    matmul_kernel[grid](
        x, weight, x if bias is None else bias, out, rows, columns, depth,
        BIAS=bias is not None, PAIR=pair, SPLITS=splits, R=high, N=wide, K=deep, GROUP=8,
        EVEN=depth // splits % deep == 0, STAGES=many,
        FETCH=FETCH if rows <= 64 else 0, num_warps=warps, **early(x),
    )  # fmt: skip
    return out if splits > 1 else out[0]


def library_agrees(x: Tensor, weight: Tensor) -> bool:
    """Return whether the library's product of this shape has the bits of `matmul`, by trials.

    Call it once outside a capture for every shape; the answer is kept.
    """
    key = (x.shape[0], *weight.shape, x.dtype, x.device)
    if key not in _library:
        generator = torch.Generator(device=x.device).manual_seed(x.shape[0])
        agrees = True
        for turn in range(TRIALS):
            trial = torch.empty_like(x).normal_(generator=generator)
            if turn == 1:
                trial.abs_()
            elif turn == 2:
                trial.pow_(5)
            agrees = agrees and torch.equal(torch.mm(trial, weight.T), matmul(trial, weight))
        _library[key] = agrees
    return _library[key]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Launch `linear.linear` on CUDA."""
    if x.shape[0] == 1:
        return row(x, weight, bias=bias)
    x = x.contiguous()
    tall = x.shape[0] >= LIBRARY_ROWS and x.element_size() == 2
    if bias is None and tall and library_agrees(x, weight):
        return torch.mm(x, weight.T)
    return matmul(x, weight, bias)


def gated(x: Tensor, weight: Tensor) -> Tensor:
    """Launch `linear.gated` on CUDA."""
    if x.shape[0] >= LIBRARY_ROWS:
        return silu_mul(linear(x, weight))
    return matmul(x.contiguous(), weight, pair=True)


def project(
    y: Tensor, weight: Tensor, bias: Tensor | None, x: Tensor, scale: Tensor, eps: float
) -> Tensor:
    """Launch `linear.project` on CUDA."""
    if bias is None and y.shape[0] >= LIBRARY_ROWS:
        return add_rms_norm(x, linear(y, weight), scale, eps)
    return add_rms_norm(x, matmul(y.contiguous(), weight), scale, eps, bias)


def row(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    scale: Tensor | None = None,
    eps: float = 0.0,
    add: Tensor | None = None,
    pair: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """Return the product of one row with a weight, with what stands around it fused in.

    A few rows may be given; each has the bits that it has alone.

    Args:
        x: [R, K].
        weight: [N, K], or [2 N, K] with `pair`.
        bias: [N], or None.
        scale: float32 [K]; given, x is normalised first.
        eps: of that norm.
        add: [R, N] of the output's type, the residual stream; it receives the result in place.
        pair: return ``silu(first half) * second half``.
        out: [R, N] of any type to write to; None makes one of the type of x.
    """
    rows, depth = x.shape
    columns = weight.shape[0] // 2 if pair else weight.shape[0]
    if add is not None:
        out = add
    elif out is None:
        out = torch.empty((rows, columns), dtype=x.dtype, device=x.device)
    block = min(1024 if depth % 1024 == 0 else 512, triton.next_power_of_2(depth))
    # Few outputs: fewer of them per program, so that every processor has some.
    per, warps = (4 if columns < 2048 or pair else 8, 4) if columns < VAST else HEAD
    row_kernel[(rows, triton.cdiv(columns, per))](
        x, x if scale is None else scale, weight, x if bias is None else bias, out, out,
        columns, depth, eps,
        NORM=scale is not None, BIAS=bias is not None, ADD=add is not None, PAIR=pair,
        N=per, K=block, FETCH=FETCH if columns < VAST else 0, num_warps=warps, **early(x, True),
    )  # fmt: skip
    return out
