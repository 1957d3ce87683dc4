"""Triton kernel of `vla.joint`: one program a head, from the residual stream to what it gathers.

Heads that share keys make these each for themselves: their weights are read again, from the
cache, and no program waits for another. Every side of a tile is 64 or more (`launch.LEAST_SIDE`).
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from flashrt_policies.kernels.launch import begin, early, fetch, side, stages
from flashrt_policies.kernels.vla.linear import Stream
from flashrt_policies.kernels.vla.matrix import Matrix
from flashrt_policies.kernels.vla.rope import Heads, Rotary
from flashrt_policies.kernels.vla.rope_triton import angles

DEPTH = 64  # of a tile of weights
LOADS = 5  # of them in flight
KEYS = 128  # of the prefix in a tile
WARPS = 4


@triton.jit
def turn(y, cos, sin, R: tl.constexpr, D: tl.constexpr):
    """Rotate adjacent pairs of a tile [R, D]."""
    first, second = tl.split(tl.reshape(y, (R, D // 2, 2)))
    return tl.reshape(tl.join(first * cos - second * sin, second * cos + first * sin), (R, D))


@triton.jit
def dressed(
    acc, inverse, first, there, w_scale_ptr, bias_ptr, FLOAT8: tl.constexpr, BIAS: tl.constexpr,
    D: tl.constexpr,
):  # fmt: skip
    """Return a product [R, D] with its norm, its scale per channel and its bias."""
    j = first + tl.arange(0, D)
    acc *= inverse[:, None]
    if FLOAT8:
        acc *= tl.load(w_scale_ptr + j, mask=there, other=0.0)[None, :]
    if BIAS:
        acc += tl.load(bias_ptr + j, mask=there, other=0.0)[None, :]
    return tl.where(there[None, :], acc, 0.0)


@triton.jit
def gather(q, k, v, seen, high, total, acc, scale):
    """Take more keys [S, D] into the running softmax of queries [R, D]; `seen` is [R, S]."""
    score = tl.dot(q, tl.trans(k), input_precision='tf32x3') * scale  # base 2
    score = tl.where(seen, score, float('-inf'))
    top = tl.maximum(high, tl.max(score, 1))
    safe = tl.where(top == float('-inf'), 0.0, top)
    weight = tl.exp2(score - safe[:, None])
    fade = tl.exp2(high - safe)
    total = total * fade + tl.sum(weight, 1)
    acc = tl.dot(weight.to(v.dtype), v, acc * fade[:, None], input_precision='tf32x3')
    return top, total, acc


@triton.jit
def project_attend_kernel(
    x_ptr, scale_ptr, squares_ptr, w_ptr, w_scale_ptr, bias_ptr, position_ptr, cos_ptr, sin_ptr,
    rank_q_ptr, rank_k_ptr, k_ptr, v_ptr, out_ptr,
    rows, depth, x_row, tiles, squares_row, eps, prefix, queries, keys, group, dim, k_row, v_row,
    attend_scale,
    NORM: tl.constexpr, FLOAT8: tl.constexpr, BIAS: tl.constexpr, OWN: tl.constexpr,
    HALF: tl.constexpr, R: tl.constexpr, D: tl.constexpr, K: tl.constexpr, S: tl.constexpr,
    STAGES: tl.constexpr, KEY_STAGES: tl.constexpr, TILES: tl.constexpr, LINES: tl.constexpr,
    KEY_LINES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One head: norm and projection, rotation, prefix, and with OWN the tokens themselves.

    NORM is 1 for one that is done here, 2 for one that is prepared but for its division.
    """
    head = tl.program_id(0)
    shared = head // group * dim  # where its keys are in a row of them
    i, d, c = tl.arange(0, R), tl.arange(0, D), tl.arange(0, K)
    live, there = i < rows, d < dim
    row = tl.minimum(d, dim - 1)
    q_first, k_first, v_first = head * dim, queries + shared, queries + keys + shared
    q_row = (q_first + row).to(tl.int64) * depth
    k_row_at, v_row_at = (k_first + row).to(tl.int64) * depth, (v_first + row).to(tl.int64) * depth
    if PDL > 0:
        step: tl.constexpr = 128 // (w_ptr.dtype.element_ty.primitive_bitwidth // 8)
        line = tl.minimum(tl.arange(0, LINES) * step, depth - 1)[None, :]
        fetch(w_ptr + q_row[:, None] + line)
        if OWN:
            fetch(w_ptr + k_row_at[:, None] + line)
            fetch(w_ptr + v_row_at[:, None] + line)
        each = tl.minimum(tl.arange(0, KEY_LINES), prefix - 1).to(tl.int64)
        fetch(k_ptr + each * k_row + shared)
        fetch(v_ptr + each * v_row + shared)
    begin(PDL)
    squares = tl.zeros((R,), tl.float32)
    if NORM == 2:
        t = tl.arange(0, TILES)[:, None]
        sums = squares_ptr + t * squares_row + i[None, :]
        squares = tl.sum(tl.load(sums, mask=(t < tiles) & live[None, :], other=0.0), 0)
    position = tl.load(position_ptr + i, mask=live, other=0)
    cos, sin = angles(position, 0, cos_ptr, sin_ptr, dim, HALF=HALF, N=D)
    rank_q = tl.load(rank_q_ptr + i, mask=live, other=0)

    x_at = x_ptr + i[:, None].to(tl.int64) * x_row + c[None, :]
    q = tl.zeros((R, D), tl.float32)
    k = tl.zeros((R, D), tl.float32)
    v = tl.zeros((R, D), tl.float32)
    for start in tl.range(0, depth, K, num_stages=STAGES):
        left = c < depth - start
        x = tl.load(x_at + start, mask=live[:, None] & left[None, :], other=0.0)
        w_at = w_ptr + start + c[:, None]
        w = tl.load(w_at + q_row[None, :], mask=left[:, None], other=0.0)
        if NORM == 1:
            wide = x.to(tl.float32)
            squares += tl.sum(wide * wide, 1)
            scale = tl.load(scale_ptr + start + c, mask=left, other=0.0)
            x = (wide * scale[None, :]).to(x_ptr.dtype.element_ty)
        q = tl.dot(x, w.to(x.dtype), q, input_precision='tf32x3')
        if OWN:
            w = tl.load(w_at + k_row_at[None, :], mask=left[:, None], other=0.0)
            k = tl.dot(x, w.to(x.dtype), k, input_precision='tf32x3')
            w = tl.load(w_at + v_row_at[None, :], mask=left[:, None], other=0.0)
            v = tl.dot(x, w.to(x.dtype), v, input_precision='tf32x3')
    inverse = tl.rsqrt(squares / depth + eps)
    kind = out_ptr.dtype.element_ty
    y = dressed(q, inverse, q_first, there, w_scale_ptr, bias_ptr, FLOAT8=FLOAT8, BIAS=BIAS, D=D)
    query = turn(y, cos, sin, R=R, D=D).to(kind)

    high = tl.full((R,), float('-inf'), tl.float32)
    total = tl.zeros((R,), tl.float32)
    acc = tl.zeros((R, D), tl.float32)
    if OWN:  # first: its tiles need not be kept
        y = dressed(
            k, inverse, k_first, there, w_scale_ptr, bias_ptr, FLOAT8=FLOAT8, BIAS=BIAS, D=D
        )
        own = turn(y, cos, sin, R=R, D=D).to(kind)
        y = dressed(
            v, inverse, v_first, there, w_scale_ptr, bias_ptr, FLOAT8=FLOAT8, BIAS=BIAS, D=D
        )
        rank_k = tl.load(rank_k_ptr + prefix + i, mask=live, other=2147483647)
        seen = rank_k[None, :] <= rank_q[:, None]
        high, total, acc = gather(query, own, y.to(kind), seen, high, total, acc, attend_scale)
    for start in tl.range(0, prefix, S, num_stages=KEY_STAGES):
        s = start + tl.arange(0, S)
        place, mask = s[:, None].to(tl.int64), (s < prefix)[:, None] & there[None, :]
        old = tl.load(k_ptr + place * k_row + (shared + d)[None, :], mask=mask, other=0.0)
        rank_s = tl.load(rank_k_ptr + s, mask=s < prefix, other=2147483647)
        worth = tl.load(v_ptr + place * v_row + (shared + d)[None, :], mask=mask, other=0.0)
        open_s = rank_s[None, :] <= rank_q[:, None]
        high, total, acc = gather(query, old, worth, open_s, high, total, acc, attend_scale)
    at = out_ptr + i[:, None].to(tl.int64) * queries + (q_first + d)[None, :]
    tl.store(at, (acc / total[:, None]).to(kind), mask=live[:, None] & there[None, :])


def project_attend(
    stream: Stream,
    weight: Matrix,
    bias: Tensor | None,
    scale: Tensor,
    eps: float,
    table: Rotary,
    positions: Tensor,
    ranks: tuple[Tensor, Tensor],
    heads: Heads,
    kv: Tensor,
) -> Tensor:
    """Launch `vla.joint.project_attend` on CUDA; the tokens' own rows of `kv` stay as they are."""
    ahead = stream.scaled is not None and stream.squares is not None
    x = stream.scaled if stream.scaled is not None else stream.x
    squares = stream.squares
    rows, depth = x.shape
    prefix = kv.shape[1] - rows
    out = torch.empty((rows, heads.queries, heads.dim), dtype=x.dtype, device=x.device)
    none = out  # stands for pointers that are not read
    d = side(heads.dim)
    own = weight.data.shape[0] > heads.queries * heads.dim
    tile = (side(rows) + (3 if own else 1) * d) * DEPTH
    row_lines = triton.cdiv(depth * weight.data.element_size(), 128)
    project_attend_kernel[(heads.queries,)](
        x, scale, none if squares is None else squares, weight.data,
        none if weight.scale is None else weight.scale, none if bias is None else bias,
        positions, table.cos, table.sin, ranks[0], ranks[1], kv[0], kv[1], out,
        rows, depth, x.stride(0),
        *((0, 0) if squares is None else (squares.shape[0], squares.stride(0))), eps,
        prefix, heads.queries * heads.dim, heads.kv * heads.dim, heads.queries // heads.kv,
        heads.dim, kv.stride(1), kv.stride(1),
        heads.dim**-0.5 * 1.4426950408889634,
        NORM=2 if ahead else 1, FLOAT8=weight.scale is not None, BIAS=bias is not None, OWN=own,
        HALF=heads.dim // 2, R=side(rows), D=d, K=DEPTH, S=KEYS, STAGES=stages(x, tile, LOADS),
        KEY_STAGES=stages(x, 2 * KEYS * d, 2),
        TILES=1 if squares is None else triton.next_power_of_2(squares.shape[0]),
        LINES=triton.next_power_of_2(row_lines), KEY_LINES=triton.next_power_of_2(prefix),
        num_warps=WARPS, **early(x, step=True),
    )  # fmt: skip
    return out
