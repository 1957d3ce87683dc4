"""Triton kernels of `vla.attention`: keys in parts, one program each, then the parts together.

Query heads that share a key head stand in one tile. Fifty action tokens make few tiles, so the
keys are cut in parts that run side by side; how many depends on shapes alone, and a second launch
puts them together in their order, so a replay has the same bits. (That whoever of a tile's
programs comes last does it costs more than the launch: one processor would read all parts.) The
running maximum and sum: Milakov and Gimelshein, arXiv 1805.02867.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from flashrt_policies.kernels.launch import begin, early, fetch, processors, side, stages

KEYS = 64, 32  # in a tile: of two-byte numbers, of float32, which leaves room for one tile alone
PARTS = 16  # at most
FEW = 4  # tiles of keys that one program takes rather than leave a launch behind
# Tiles of keys and values in flight at most, of narrow heads and of wide ones. With two the loop
# asks for the next only when it has done with the last: a narrow head's are all asked for at once.
LOADS = 5, 3
WARPS = 4, 8  # for wide heads: with all keys in one part, and in several


@triton.jit
def attend_kernel(
    q_ptr, k_ptr, v_ptr, rank_q_ptr, rank_k_ptr, out_ptr, part_ptr, high_ptr, sum_ptr,
    tokens, span, part, group, heads, dim, k_row, v_row, scale,
    SPLIT: tl.constexpr, KNOWN: tl.constexpr, R: tl.constexpr, S: tl.constexpr, D: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """One tile of queries of one key head against one part of the keys; one without SPLIT.

    KNOWN: most keys are older than the queries, and on their way before these are there.
    """
    tile, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    r = tile * R + tl.arange(0, R)
    live = r < tokens * group
    token, member = r // group, r % group
    d = tl.arange(0, D)
    spot = (token * heads + head * group + member).to(tl.int64)
    inside = live[:, None] & (d < dim)[None, :]
    end = tl.minimum(span, (split + 1) * part)
    if KNOWN and PDL > 0:
        step: tl.constexpr = 128 // (k_ptr.dtype.element_ty.primitive_bitwidth // 8)
        line = tl.minimum(tl.arange(0, D // step) * step, dim - 1)[None, :] + head * dim
        for start in range(split * part, end, S):
            row = tl.minimum(start + tl.arange(0, S), end - 1)[:, None].to(tl.int64)
            fetch(k_ptr + row * k_row + line)
            fetch(v_ptr + row * v_row + line)
    begin(PDL)
    q = tl.load(q_ptr + spot[:, None] * dim + d[None, :], mask=inside, other=0.0)
    rank_q = tl.load(rank_q_ptr + token, mask=live, other=0)
    high = tl.full((R,), float('-inf'), tl.float32)
    total = tl.zeros((R,), tl.float32)
    acc = tl.zeros((R, D), tl.float32)
    for start in range(split * part, end, S):
        s = start + tl.arange(0, S)
        there = s < end
        keys = there[:, None] & (d < dim)[None, :]
        at = s[:, None].to(tl.int64)
        k = tl.load(k_ptr + at * k_row + (head * dim + d)[None, :], mask=keys, other=0.0)
        score = tl.dot(q, tl.trans(k), input_precision='tf32x3') * scale  # [R, S], base 2
        rank_k = tl.load(rank_k_ptr + s, mask=there, other=2147483647)
        score = tl.where(rank_k[None, :] <= rank_q[:, None], score, float('-inf'))
        top = tl.maximum(high, tl.max(score, 1))
        safe = tl.where(top == float('-inf'), 0.0, top)
        weight = tl.exp2(score - safe[:, None])
        fade = tl.exp2(high - safe)
        total = total * fade + tl.sum(weight, 1)
        v = tl.load(v_ptr + at * v_row + (head * dim + d)[None, :], mask=keys, other=0.0)
        acc = acc * fade[:, None]
        acc = tl.dot(weight.to(v.dtype), v, acc, input_precision='tf32x3')
        high = top
    if SPLIT:
        rows = tokens * heads
        there = split * rows + spot
        tl.store(high_ptr + there, high, mask=live)
        tl.store(sum_ptr + there, total, mask=live)
        tl.store(part_ptr + there[:, None] * dim + d[None, :], acc, mask=inside)
    else:
        acc = acc / total[:, None]
        at = out_ptr + spot[:, None] * dim + d[None, :]
        tl.store(at, acc.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def merge_kernel(
    part_ptr, high_ptr, sum_ptr, out_ptr, rows, dim, parts,
    P: tl.constexpr, D: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Put the parts of one token's head together."""
    row = tl.program_id(0).to(tl.int64)
    p, d = tl.arange(0, P), tl.arange(0, D)
    there = p < parts
    begin(PDL)
    high = tl.load(high_ptr + p * rows + row, mask=there, other=float('-inf'))
    weight = tl.exp2(high - tl.max(high, 0))
    total = tl.sum(weight * tl.load(sum_ptr + p * rows + row, mask=there, other=0.0), 0)
    inside = there[:, None] & (d < dim)[None, :]
    at = part_ptr + (p[:, None].to(tl.int64) * rows + row) * dim + d[None, :]
    y = tl.sum(weight[:, None] * tl.load(at, mask=inside, other=0.0), 0) / total
    tl.store(out_ptr + row * dim + d, y.to(out_ptr.dtype.element_ty), mask=d < dim)


def attend(q: Tensor, k: Tensor, v: Tensor, rank_q: Tensor, rank_k: Tensor) -> Tensor:
    """Launch `vla.attention.attend` on CUDA."""
    tokens, heads, dim = q.shape
    span, shared = k.shape[0], k.shape[1]
    group = heads // shared
    rows = side(0)
    tiles = triton.cdiv(tokens * group, rows)
    wide = q.element_size() == 4
    keys = KEYS[wide]
    blocks = triton.cdiv(span, keys)
    most = PARTS if blocks > FEW else 1
    parts = max(1, min(blocks, processors(q.device) // (tiles * shared), most))
    part = triton.cdiv(blocks, parts) * keys
    parts = triton.cdiv(span, part)
    loads = min(LOADS[dim > 128], part // keys + 1)
    out = torch.empty_like(q)
    partial, high = out, out[None].expand(2, *out.shape)
    if parts > 1:
        exact = torch.float32
        partial = torch.empty((parts, tokens, heads, dim), dtype=exact, device=q.device)
        high = torch.empty((2, parts, tokens, heads), dtype=exact, device=q.device)
    attend_kernel[(tiles, shared, parts)](
        q, k, v, rank_q, rank_k, out, partial, high[0], high[1],
        tokens, span, part, group, heads, dim, k.stride(0), v.stride(0),
        dim**-0.5 * 1.4426950408889634, SPLIT=parts > 1, KNOWN=span > tokens,
        R=rows, S=keys, D=side(dim),
        num_warps=WARPS[parts > 1] if dim > 128 else 4,
        num_stages=1 if wide else stages(q, 2 * keys * side(dim), loads), **early(q, step=True),
    )  # fmt: skip
    if parts > 1:
        merge_kernel[(tokens * heads,)](
            partial, high[0], high[1], out, tokens * heads, dim, parts,
            P=triton.next_power_of_2(parts), D=triton.next_power_of_2(dim), num_warps=2,
            **early(q, step=True),
        )  # fmt: skip
    return out
