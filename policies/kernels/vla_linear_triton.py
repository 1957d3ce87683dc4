"""Triton kernel of `vla_linear`: one tile of few rows, with its norm in front and what follows.

A norm needs the root mean square of the whole row, which is known when the loop over the row
ends: the input is multiplied by the norm's scale on the way in, the sum of squares is kept beside
the product, and the result is divided at the end. So a norm costs no pass of its own.

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
from flashrt_policies.kernels.vla_matrix import Matrix
from flashrt_policies.kernels.vla_norm_triton import act
from flashrt_policies.kernels.vla_rope import Heads, Rotary
from flashrt_policies.kernels.vla_rope_triton import place_heads

DEPTH = 128
WIDTHS = (64, 32, 16)  # columns of a tile
BUSY = 0.55  # of the processors that a choice of tiles should keep busy
DEEP = 2048  # an input from here on is cut in parts
PARTS, PART_WIDTH = 4, 32  # so many, for tiles of so many columns
COUNTERS = 8192  # tiles of one launch


@triton.jit
def few_rows_kernel(
    x_ptr, scale_ptr, w_ptr, w_scale_ptr, bias_ptr, gate_ptr, out_ptr,
    position_ptr, cos_ptr, sin_ptr, k_ptr, v_ptr, part_ptr, count_ptr,
    rows, columns, depth, x_row, out_row, eps, queries, keys, k_row, v_row,
    NORM: tl.constexpr, FLOAT8: tl.constexpr, BIAS: tl.constexpr, KIND: tl.constexpr,
    END: tl.constexpr, GATE: tl.constexpr, HALF: tl.constexpr,
    R: tl.constexpr, N: tl.constexpr, K: tl.constexpr, EVEN: tl.constexpr, STAGES: tl.constexpr,
    SPLITS: tl.constexpr, LINES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Tile [R, N] of act(norm(x) @ w.T + bias), and its END: store, add, gate or heads."""
    i = tl.program_id(1) * R + tl.arange(0, R)
    j = tl.program_id(0) * N + tl.arange(0, N)
    k = tl.arange(0, K)
    share = depth // SPLITS
    low = tl.program_id(2) * share
    x_at = x_ptr + tl.minimum(i, rows - 1)[:, None].to(tl.int64) * x_row + (low + k)[None, :]
    w_at = w_ptr + tl.minimum(j, columns - 1)[None, :].to(tl.int64) * depth + (low + k)[:, None]
    if LINES > 0 and PDL > 0:
        step: tl.constexpr = 128 // (w_ptr.dtype.element_ty.primitive_bitwidth // 8)
        line = tl.minimum(tl.arange(0, LINES) * step, share - 1)
        row = tl.minimum(j, columns - 1).to(tl.int64) * depth + low
        fetch(w_ptr + row[:, None] + line[None, :])
    begin(PDL)
    acc = tl.zeros((R, N), tl.float32)
    squares = tl.zeros((R,), tl.float32)
    for start in tl.range(0, share, K, num_stages=STAGES):
        if EVEN:
            w = tl.load(w_at + start)
            x = tl.load(x_at + start)
        else:
            w = tl.load(w_at + start, mask=(k < depth - start)[:, None], other=0.0)
            x = tl.load(x_at + start, mask=(k < depth - start)[None, :], other=0.0)
        if FLOAT8:
            w = w.to(x_ptr.dtype.element_ty)
        if NORM:
            if EVEN:
                scale = tl.load(scale_ptr + start + k)
            else:
                scale = tl.load(scale_ptr + start + k, mask=k < depth - start, other=0.0)
            wide = x.to(tl.float32)
            squares += tl.sum(wide * wide, 1)
            x = (wide * scale[None, :]).to(w.dtype)
        acc = tl.dot(x.to(w.dtype), w, acc, input_precision='tf32x3')
    live = (i < rows)[:, None] & (j < columns)[None, :]
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
            for part in range(SPLITS):
                acc += tl.load(at + part * size, mask=live, other=0.0, cache_modifier='.cg')
            tl.store(counter, 0)
    if NORM:
        acc *= tl.rsqrt(squares / depth + eps)[:, None]
    if FLOAT8:
        acc *= tl.load(w_scale_ptr + j, mask=j < columns, other=0.0)[None, :]
    if BIAS:
        acc += tl.load(bias_ptr + j, mask=j < columns, other=0.0)[None, :]
    kind = out_ptr.dtype.element_ty
    if END == 'heads':
        position = tl.load(position_ptr + i, mask=i < rows, other=0)
        place_heads(
            acc, i, j, live, position, cos_ptr, sin_ptr, out_ptr, k_ptr, v_ptr,
            queries, keys, k_row, v_row, HALF=HALF, R=R, N=N,
        )  # fmt: skip
    elif END == 'gated':
        gate, up = tl.split(tl.reshape(acc, (R, N // 2, 2)))
        half = tl.program_id(0) * (N // 2) + tl.arange(0, N // 2)
        spot = out_ptr + i[:, None].to(tl.int64) * out_row + half[None, :]
        mask = (i < rows)[:, None] & (half < columns // 2)[None, :]
        tl.store(spot, (act(gate, KIND) * up).to(kind), mask=mask)
    else:
        spot = out_ptr + i[:, None].to(tl.int64) * out_row + j[None, :]
        if KIND != '':
            acc = act(acc, KIND)
        if END == 'add':
            if GATE:
                acc *= tl.load(gate_ptr + j, mask=j < columns, other=0.0)[None, :]
            acc += tl.load(spot, mask=live, other=0.0).to(tl.float32)
        tl.store(spot, acc.to(kind), mask=live & last)


@functools.cache
def counters(device: torch.device) -> Tensor:
    """Return the counters of a device's tiles: zero before and after every launch."""
    return torch.zeros(COUNTERS, dtype=torch.int32, device=device)


def _launch(
    x: Tensor,
    weight: Matrix,
    bias: Tensor | None,
    scale: Tensor | None,
    eps: float,
    out: Tensor,
    end: str,
    kind: str = '',
    gate: Tensor | None = None,
    place: tuple[Rotary, Tensor, Heads, Tensor, Tensor] | None = None,
) -> None:
    rows, depth = x.shape
    columns = weight.data.shape[0]
    busy = BUSY * processors(x.device)
    least = 32 if end == 'gated' else 16
    n = next((n for n in WIDTHS if n >= least and columns / n >= busy), least)
    r = 16 if rows <= 16 else 64
    parts = PARTS if end == 'add' and depth >= DEEP and depth % (PARTS * DEPTH) == 0 else 1
    n = PART_WIDTH if parts > 1 else n
    k = min(DEPTH, max(16, triton.next_power_of_2(depth)))
    if x.element_size() == 4:
        k = min(k, 32)
    row_bytes = depth * weight.data.element_size()
    none = out  # stands for pointers that are not read
    part = count = none
    if parts > 1:
        part = torch.empty((parts, rows, columns), dtype=torch.float32, device=x.device)
        count = counters(x.device)
    table, positions, heads, keys, values = place or (
        Rotary(none, none), none, Heads(0, 0, 2), none, none,
    )  # fmt: skip
    few_rows_kernel[(triton.cdiv(columns, n), triton.cdiv(rows, r), parts)](
        x, none if scale is None else scale, weight.data,
        none if weight.scale is None else weight.scale, none if bias is None else bias,
        none if gate is None else gate, out, positions, table.cos, table.sin, keys, values,
        part, count,
        rows, columns, depth, x.stride(0), out.stride(0), eps, heads.queries * heads.dim,
        heads.kv * heads.dim, keys.stride(0), values.stride(0),
        NORM=scale is not None, FLOAT8=weight.scale is not None, BIAS=bias is not None,
        KIND=kind, END=end, GATE=gate is not None, HALF=heads.dim // 2,
        R=r, N=n, K=k, EVEN=depth % k == 0, STAGES=stages(x, (r + n) * k, 5),
        SPLITS=parts,
        LINES=triton.next_power_of_2(triton.cdiv(row_bytes // parts, 128)),
        num_warps=4, **early(x, step=True),
    )  # fmt: skip


def _plain(weight: Matrix, x: Tensor) -> torch.dtype:
    return x.dtype if weight.scale is not None else weight.data.dtype


def project(
    x: Tensor,
    weight: Matrix,
    bias: Tensor | None,
    scale: Tensor | None,
    eps: float,
    kind: str,
    dtype: torch.dtype | None,
) -> Tensor:
    """Launch `vla_linear.project` on CUDA."""
    out = torch.empty(
        (x.shape[0], weight.data.shape[0]), dtype=dtype or _plain(weight, x), device=x.device
    )
    _launch(x, weight, bias, scale, eps, out, 'store', kind)
    return out


def project_heads(
    x: Tensor,
    weight: Matrix,
    bias: Tensor | None,
    scale: Tensor,
    eps: float,
    table: Rotary,
    positions: Tensor,
    heads: Heads,
    k: Tensor,
    v: Tensor,
) -> Tensor:
    """Launch `vla_linear.project_heads` on CUDA."""
    q = torch.empty((x.shape[0], heads.queries, heads.dim), dtype=x.dtype, device=x.device)
    place = (table, positions, heads, k, v)
    _launch(x, weight, bias, scale, eps, q, 'heads', place=place)
    return q


def project_gated(
    x: Tensor, weight: Matrix, bias: Tensor | None, scale: Tensor, eps: float, kind: str
) -> Tensor:
    """Launch `vla_linear.project_gated` on CUDA."""
    out = torch.empty((x.shape[0], weight.data.shape[0] // 2), dtype=x.dtype, device=x.device)
    _launch(x, weight, bias, scale, eps, out, 'gated', kind)
    return out


def project_add(x: Tensor, y: Tensor, weight: Matrix, gate: Tensor | None) -> None:
    """Launch `vla_linear.project_add` on CUDA."""
    _launch(y, weight, None, None, 0.0, x, 'add', gate=gate)
