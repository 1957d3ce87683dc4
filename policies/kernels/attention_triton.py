"""Triton kernels of `attention`: a prefill's tiles, cut along the keys at fixed places.

Keys are cut every SPLIT slots of the buffer, whatever the length and the replay: each split's
softmax is computed apart and the splits are merged in order, so every query meets the same blocks
of keys in the same order in any replay. The queries of a last, partial chunk of C tokens, which
are last in any replay that starts at a multiple of C, meet a fixed number of splits, so that a few
new tokens behind a long text fill the GPU. Where
a block needs no mask depends on the tile that the query stands in, so both forms must round alike:
products that are summed are fused explicitly, which the compiler would else do in one form only.
Online softmax: Milakov and Gimelshein, arXiv 1805.02867; tiling: Dao, arXiv 2307.08691.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from flashrt_policies.kernels.gated_delta import CHUNK
from flashrt_policies.kernels.launch import begin, early, shared_bytes, side

SPLIT = 4096
# The last, partial chunk of a text is cut into this many splits, whatever its length.
TAILS = 32
# Rows of a tile and warps, for long replays of two-byte types and for the others.
TALL, SHORT = (128, 8), (64, 4)
# Tokens that one program merges.
MERGED = 16
LOG2_E = 1.4426950408889634


@triton.jit
def attend_block(
    q, m, total, acc, keys_ptr, values_ptr, start, own, end, dim, scale,
    MASK: tl.constexpr, N: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Take N more keys into the running softmax (m, total, acc) of a tile of queries."""
    n, at = start + tl.arange(0, N), tl.arange(0, D)
    inside = (at < dim)[None, :]
    if MASK:
        inside = inside & (n < end)[:, None]
    tile = n[:, None].to(tl.int64) * dim + at[None, :]
    k = tl.load(keys_ptr + tile, mask=inside, other=0.0)
    v = tl.load(values_ptr + tile, mask=inside, other=0.0)
    score = tl.dot(q, tl.trans(k), input_precision='tf32x3')  # [R, N], to be scaled
    if MASK:
        score = tl.where(n[None, :] <= own[:, None], score, -float('inf'))
    peak = tl.maximum(m, tl.max(score, 1) * scale)
    # A row that has seen no key yet keeps -inf; exponents are taken from zero then, not from NaN.
    base = tl.where(peak == -float('inf'), 0.0, peak)
    p = tl.exp2(tl.fma(score, scale, -base[:, None]))
    fade = tl.exp2(m - base)
    total = tl.fma(total, fade, tl.sum(p, 1))
    acc = acc * fade[:, None]
    acc = tl.dot(p.to(v.dtype), v, acc, input_precision='tf32x3')
    return peak, total, acc


@triton.jit
def tail_size(end, TAILS: tl.constexpr, N: tl.constexpr):
    """Keys of one split of the last, partial chunk of a text that ends at `end`."""
    return tl.maximum(tl.cdiv(tl.cdiv(end, TAILS), N), 2) * N


@triton.jit(do_not_specialize=['plain'])
def attend_kernel(
    q_ptr, keys_ptr, values_ptr, gate_ptr, out_ptr, part_ptr, mass_ptr, tail_ptr, tail_mass_ptr,
    position_ptr, valid_ptr, rows, gate_row, gate_head, heads, kv_heads, capacity, dim, scale,
    plain,
    GATE: tl.constexpr, G: tl.constexpr, CHUNK: tl.constexpr, SPLIT: tl.constexpr,
    TAILS: tl.constexpr, R: tl.constexpr, N: tl.constexpr, D: tl.constexpr,
    STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The G heads of R / G tokens against one split of the keys they share.

    The first `plain` programs take whole chunks of tokens, the others the last, partial chunk.
    """
    begin(PDL)
    TOKENS: tl.constexpr = R // G
    valid = tl.load(valid_ptr).to(tl.int32)
    position = tl.load(position_ptr).to(tl.int32)
    full = valid // CHUNK * CHUNK
    pid = tl.program_id(0)
    whole = pid < plain
    groups = heads // G
    if whole:
        # Late tiles have most to do: they start first.
        tiles = tl.cdiv(rows, TOKENS)
        token = (tiles - 1 - pid % tiles) * TOKENS
        group = pid // tiles % groups
        split = pid // tiles // groups
        stop = full
        size = SPLIT
    else:
        pid = pid - plain
        token = full + pid // TAILS // groups * TOKENS
        group = pid // TAILS % groups
        split = pid % TAILS
        stop = valid
        size = tail_size(position + valid, TAILS, N)
    first = position + token
    low = split * size
    end = tl.minimum(tl.minimum(first + TOKENS, position + stop), low + size)  # keys [low, end)
    if (token >= stop) | (low >= end):
        return
    i, at = tl.arange(0, R), tl.arange(0, D)
    row, head = token + i // G, group * G + i % G
    own = position + row
    inside = (row < stop)[:, None] & (at < dim)[None, :]
    spot = (row * heads + head).to(tl.int64)[:, None] * dim + at[None, :]
    q = tl.load(q_ptr + spot, mask=inside, other=0.0)
    kv = (group * G // (heads // kv_heads)).to(tl.int64)
    keys_ptr += kv * capacity * dim
    values_ptr += kv * capacity * dim
    m = tl.full((R,), -float('inf'), tl.float32)
    total = tl.zeros((R,), tl.float32)
    acc = tl.zeros((R, D), tl.float32)
    # Keys that every query of the tile sees need no mask.
    seen = low + tl.maximum(tl.minimum(first + 1, end) - low, 0) // N * N
    for start in tl.range(low, seen, N, num_stages=STAGES):
        m, total, acc = attend_block(
            q, m, total, acc, keys_ptr, values_ptr, start, own, end, dim, scale, False, N, D
        )
    for start in tl.range(seen, end, N, num_stages=STAGES):
        m, total, acc = attend_block(
            q, m, total, acc, keys_ptr, values_ptr, start, own, end, dim, scale, True, N, D
        )
    if whole & (position + valid <= SPLIT):
        y = acc / total[:, None]
        if GATE:
            place = row.to(tl.int64) * gate_row + head * gate_head
            g = tl.load(gate_ptr + place[:, None] + at[None, :], mask=inside, other=0.0)
            y = y * tl.sigmoid(g.to(tl.float32))
        tl.store(out_ptr + spot, y.to(out_ptr.dtype.element_ty), mask=inside)
    else:
        if whole:
            place = (split * rows + row).to(tl.int64) * heads + head
        else:
            part_ptr, mass_ptr = tail_ptr, tail_mass_ptr
            place = (split * CHUNK + row - full).to(tl.int64) * heads + head
        tl.store(part_ptr + place[:, None] * dim + at[None, :], acc, mask=inside)
        tl.store(mass_ptr + place * 2, m, mask=row < stop)
        tl.store(mass_ptr + place * 2 + 1, total, mask=row < stop)


@triton.jit
def gated_store(
    y, row, head, inside, gate_ptr, out_ptr, gate_row, gate_head, heads, dim,
    GATE: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Write outputs y [P, D] of one head of the tokens `row` [P], gated where there is a gate."""
    at = tl.arange(0, D)[None, :]
    line = row.to(tl.int64)[:, None]
    if GATE:
        gate = gate_ptr + line * gate_row + head * gate_head + at
        y = y * tl.sigmoid(tl.load(gate, mask=inside, other=0.0).to(tl.float32))
    spot = out_ptr + (line * heads + head) * dim + at
    tl.store(spot, y.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def merge_whole(
    part_ptr, mass_ptr, row, head, position, full, last, rows, heads, dim,
    SPLIT: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Merge the splits of tokens of whole chunks, in order, up to split `last`."""
    at = tl.arange(0, D)
    inside = (row < full)[:, None] & (at < dim)[None, :]
    place = row.to(tl.int64) * heads + head
    m = tl.load(mass_ptr + place * 2, mask=row < full, other=0.0)
    total = tl.load(mass_ptr + place * 2 + 1, mask=row < full, other=1.0)
    acc = tl.load(part_ptr + place[:, None] * dim + at[None, :], mask=inside, other=0.0)
    for split in range(1, last + 1):
        # A row that has no keys in this split keeps every bit.
        has = (row < full) & ((position + row) // SPLIT >= split)
        place = (split * rows + row).to(tl.int64) * heads + head
        m_new = tl.load(mass_ptr + place * 2, mask=has, other=-float('inf'))
        more = tl.load(mass_ptr + place * 2 + 1, mask=has, other=0.0)
        spot = part_ptr + place[:, None] * dim + at[None, :]
        part = tl.load(spot, mask=inside & has[:, None], other=0.0)
        peak = tl.maximum(m, m_new)
        fade, weight = tl.exp2(m - peak), tl.exp2(m_new - peak)
        total = tl.fma(total, fade, more * weight)
        acc = tl.fma(acc, fade[:, None], part * weight[:, None])
        m = peak
    return acc / total[:, None]


@triton.jit
def merge_tail(
    part_ptr, mass_ptr, token, slot, head, position, size, heads, dim,
    TAILS: tl.constexpr, CHUNK: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Merge the splits of one token of a partial chunk, all at once; float32 [1, D]."""
    split, at = tl.arange(0, TAILS), tl.arange(0, D)
    used = split * size <= position + token
    place = (split * CHUNK + slot).to(tl.int64) * heads + head
    m = tl.load(mass_ptr + place * 2, mask=used, other=-float('inf'))
    weight = tl.exp2(m - tl.max(m, 0))
    total = tl.sum(tl.load(mass_ptr + place * 2 + 1, mask=used, other=0.0) * weight, 0)
    inside = used[:, None] & (at < dim)[None, :]
    part = tl.load(part_ptr + place[:, None] * dim + at[None, :], mask=inside, other=0.0)
    return (tl.sum(part * weight[:, None], 0) / total)[None, :]


@triton.jit(do_not_specialize=['plain'])
def merge_kernel(
    part_ptr, mass_ptr, tail_ptr, tail_mass_ptr, gate_ptr, out_ptr, position_ptr, valid_ptr, rows,
    gate_row, gate_head, heads, dim, plain,
    GATE: tl.constexpr, CHUNK: tl.constexpr, SPLIT: tl.constexpr, TAILS: tl.constexpr,
    N: tl.constexpr, P: tl.constexpr, D: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Merge the splits of P tokens of one head, or of one token of the last, partial chunk."""
    begin(PDL)
    pid, head = tl.program_id(0), tl.program_id(1)
    valid, position = tl.load(valid_ptr).to(tl.int32), tl.load(position_ptr).to(tl.int32)
    full = valid // CHUNK * CHUNK
    token, first = full + pid - plain, pid * P
    if tl.where(pid < plain, (first >= full) | (position + valid <= SPLIT), token >= valid):
        return
    columns = (tl.arange(0, D) < dim)[None, :]
    if pid < plain:
        row = first + tl.arange(0, P)
        last = (position + first + P - 1) // SPLIT
        y = merge_whole(
            part_ptr, mass_ptr, row, head, position, full, last, rows, heads, dim, SPLIT, D
        )
        gated_store(
            y, row, head, (row < full)[:, None] & columns, gate_ptr, out_ptr, gate_row, gate_head,
            heads, dim, GATE, D,
        )  # fmt: skip
    else:
        size = tail_size(position + valid, TAILS, N)
        one = merge_tail(
            tail_ptr, tail_mass_ptr, token, token - full, head, position, size, heads, dim, TAILS,
            CHUNK, D,
        )  # fmt: skip
        gated_store(
            one, token + tl.arange(0, 1), head, columns, gate_ptr, out_ptr, gate_row, gate_head,
            heads, dim, GATE, D,
        )  # fmt: skip


def tile_sizes(device: torch.device, dim: int, width: int) -> tuple[int, int]:
    """Return how many keys one turn takes and how deep the loads are pipelined.

    The same for every replay on a device, so that the order of sums is the same.

    Args:
        device: where it runs.
        dim: padded width D of a head.
        width: bytes of an element.
    """
    room = shared_bytes(device)
    for keys, deep in ((64, 3), (64, 2), (32, 2), (32, 1)):
        if dim * width * (128 + 2 * keys * deep) <= 0.9 * room and (dim <= 128 or deep < 3):
            return keys, deep
    return 16, 1


def attend(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    position: Tensor,
    valid: Tensor,
    gate: Tensor | None,
) -> Tensor:
    """Launch `attention.attend` on CUDA."""
    rows, heads, dim = q.shape
    kv, capacity = keys.shape[:2]
    width = side(dim)
    size, deep = tile_sizes(q.device, width, q.element_size())
    high, warps = TALL if rows > 64 and q.element_size() == 2 else SHORT
    # Heads that share keys stand in one tile, where their number fits into it.
    g = heads // kv
    g = g if g in (1, 2, 4, 8, 16) else 1
    splits, tiles = triton.cdiv(capacity, SPLIT), triton.cdiv(rows * g, high)
    plain = tiles * (heads // g) * splits
    tails = triton.cdiv(CHUNK * g, high) * (heads // g) * TAILS

    def wide(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float32, device=q.device)

    out = torch.empty_like(q)
    count = splits * rows * heads if splits > 1 else 1
    part, mass = wide(count, dim), wide(count, 2)
    tail, tail_mass = wide(TAILS * CHUNK * heads, dim), wide(TAILS * CHUNK * heads, 2)
    gates = (0, 0) if gate is None else (gate.stride(0), gate.stride(1))
    gated = q if gate is None else gate
    attend_kernel[(plain + tails,)](
        q, keys, values, gated, out, part, mass, tail, tail_mass, position, valid,
        rows, *gates, heads, kv, capacity, dim, dim**-0.5 * LOG2_E, plain,
        GATE=gate is not None, G=g, CHUNK=CHUNK, SPLIT=SPLIT, TAILS=TAILS, R=high, N=size,
        D=width, STAGES=deep, num_warps=warps, **early(q),
    )  # fmt: skip
    blocks = triton.cdiv(rows, MERGED) if splits > 1 else 0
    merge_kernel[(blocks + CHUNK, heads)](
        part, mass, tail, tail_mass, gated, out, position, valid, rows, *gates, heads, dim, blocks,
        GATE=gate is not None, CHUNK=CHUNK, SPLIT=SPLIT, TAILS=TAILS, N=size, P=MERGED,
        D=triton.next_power_of_2(dim), num_warps=4, **early(q),
    )  # fmt: skip
    return out
