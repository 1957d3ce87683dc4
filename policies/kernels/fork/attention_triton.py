"""Triton kernels of `fork.attention`: a work list made on the device, tiles of rows times heads.

A tile is some rows of one segment times the query heads that share a key head, so keys are read
once for all of them. Its keys are those of its trunk, in the slot, and then those of its own
branch up to each row; both are cut into blocks from their own beginning, and the trunk's are cut
every `split` slots, whose softmax is computed apart and then merged. So the sums of a row depend
on its own text alone. The grid is bounded by the stream's capacity: what the list does not reach
returns at once, or in short streams, fewer programs go round the list.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from flashrt_policies.kernels.attention_triton import LOG2_E, attend_block, tile_sizes
from flashrt_policies.kernels.fork.attention import KeySlots, Lists
from flashrt_policies.kernels.fork.stream import COLUMNS, Tables
from flashrt_policies.kernels.launch import begin, early, processors, side

SHORT = 1536  # rows of a stream up to which programs go round the list
MERGED = 8  # splits whose parts are loaded together
MERGED_HEADS = 2  # of one program: most queries of long streams have nothing to merge


@triton.jit
def plan_kernel(
    segments_ptr, items_ptr, reads_ptr, segments, requests,
    COLUMNS: tl.constexpr, T: tl.constexpr, SPLIT: tl.constexpr, S: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """One segment's entries of both lists: segment, first row, split, number of splits.

    The first entry of a list holds their number. Branches come first and a trunk's rows last to
    first: what takes longest starts first.
    """
    index = tl.program_id(0)
    every = tl.arange(0, S)
    inside = every < segments
    count = tl.load(segments_ptr + every * COLUMNS + 1, mask=inside, other=0)
    trunk = tl.load(segments_ptr + every * COLUMNS + 4, mask=inside, other=0)
    branch = every >= requests
    end = tl.where(branch, trunk, trunk + count)
    splits = tl.maximum((end + SPLIT - 1) // SPLIT, 1)
    tiles = (count + T - 1) // T
    items = tiles * splits
    order = tl.where(branch, every - requests, every + segments)
    mine = every == index
    own = tl.sum(tl.where(mine, order, 0), 0)
    before = tl.sum(tl.where(order < own, items, 0), 0)
    my_splits = tl.sum(tl.where(mine, splits, 0), 0)
    my_tiles = tl.sum(tl.where(mine, tiles, 0), 0)
    my_count = tl.sum(tl.where(mine, count, 0), 0)
    my_position = tl.load(segments_ptr + index * COLUMNS + 3)
    if index == 0:
        tl.store(items_ptr, tl.sum(items, 0))
        tl.store(reads_ptr, tl.sum(tl.where(branch & (count > 0), splits, 0), 0))
    at = tl.arange(0, BLOCK)
    for first in range(0, my_tiles * my_splits, BLOCK):
        item = first + at
        mask = item < my_tiles * my_splits
        spot = items_ptr + (1 + before + item) * 4
        tile = my_tiles - 1 - item // my_splits
        tl.store(spot, index + item * 0, mask=mask)
        tl.store(spot + 1, tile * T, mask=mask)
        tl.store(spot + 2, item % my_splits, mask=mask)
        # Rows of a trunk see no more splits than they have keys in.
        last = my_position + tl.minimum((tile + 1) * T, my_count)
        last = tl.where(index < requests, tl.cdiv(last, SPLIT), my_splits)
        tl.store(spot + 3, last, mask=mask)
    if index >= requests:
        read = branch & (count > 0)
        before = tl.sum(tl.where(read & (every < index), splits, 0), 0)
        for first in range(0, tl.where(my_count > 0, my_splits, 0), BLOCK):
            item = first + at
            mask = item < my_splits
            spot = reads_ptr + (1 + before + item) * 4
            tl.store(spot, index + item * 0, mask=mask)
            tl.store(spot + 1, my_count - 1 + item * 0, mask=mask)
            tl.store(spot + 2, item, mask=mask)
            tl.store(spot + 3, my_splits + item * 0, mask=mask)


@triton.jit
def attend_item(
    item, kv, q_ptr, gate_ptr, out_ptr, part_ptr, mass_ptr, items_ptr, segments_ptr,
    keys_ptr, values_ptr, apart_ptr, values_apart_ptr, fresh_ptr,
    requests, rows, queries, gate_row, gate_head, heads, kv_heads, capacity, dim, scale,
    GATE: tl.constexpr, READ: tl.constexpr, COLUMNS: tl.constexpr, SPLIT: tl.constexpr,
    G: tl.constexpr, GROUP: tl.constexpr, T: tl.constexpr, N: tl.constexpr, D: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """T rows of a segment, times the heads of one key head, against one split of their keys."""
    entry = items_ptr + (1 + item) * 4
    segment, first = tl.load(entry), tl.load(entry + 1)
    split, splits = tl.load(entry + 2), tl.load(entry + 3)
    i, at = tl.arange(0, GROUP * T), tl.arange(0, D)
    spot = segments_ptr + segment * COLUMNS
    start, count, slot = tl.load(spot), tl.load(spot + 1), tl.load(spot + 2)
    trunk = tl.load(spot + 4)  # slots that all rows see; a trunk's rows see their own as well
    branch = segment >= requests
    row, group = first + i // GROUP, i % GROUP
    # Keys in the slot: [low, high), all of them seen below `sure`.
    low = split * SPLIT
    own = tl.where(branch, trunk - 1, trunk + row)  # the last slot that a row sees
    most = tl.where(branch, trunk, tl.minimum(trunk + first + T, trunk + count))
    high = tl.minimum(most, low + SPLIT)
    valid = (row < count) & (group < G) & (branch | (low < most))
    if READ:
        query = segment - requests + row * 0
        valid = valid & (row == first)
    else:
        query = start + row
    head = kv * G + group
    inside = valid[:, None] & (at < dim)[None, :]
    place = (query.to(tl.int64) * heads + head)[:, None] * dim + at[None, :]
    q = tl.load(q_ptr + place, mask=inside, other=0.0)
    m = tl.full((GROUP * T,), -float('inf'), tl.float32)
    total = tl.zeros((GROUP * T,), tl.float32)
    acc = tl.zeros((GROUP * T, D), tl.float32)

    sure = tl.where(branch, trunk, trunk + first + 1)
    sure = low + tl.maximum(tl.minimum(sure, high) - low, 0) // N * N
    lane = kv.to(tl.int64) * capacity * dim
    k_ptr = keys_ptr + tl.multiple_of(tl.load(apart_ptr + slot), 16) + lane
    v_ptr = values_ptr + tl.multiple_of(tl.load(values_apart_ptr + slot), 16) + lane
    for at_key in tl.range(low, sure, N, num_stages=STAGES):
        m, total, acc = attend_block(
            q, m, total, acc, k_ptr, v_ptr, at_key, own, high, dim, scale, False, N, D
        )
    for at_key in tl.range(sure, high, N, num_stages=STAGES):
        m, total, acc = attend_block(
            q, m, total, acc, k_ptr, v_ptr, at_key, own, high, dim, scale, True, N, D
        )
    if branch & (split == splits - 1):
        own_keys = fresh_ptr + (kv.to(tl.int64) * rows + start) * dim
        own_values = own_keys + rows.to(tl.int64) * kv_heads * dim
        last = tl.minimum(first + T, count)
        for at_key in tl.range(0, last, N, num_stages=STAGES):
            m, total, acc = attend_block(
                q, m, total, acc, own_keys, own_values, at_key, row, last, dim, scale, True,
                N, D,
            )  # fmt: skip
    if splits == 1:
        y = acc / total[:, None]
        if GATE:
            line = query.to(tl.int64) * gate_row + head * gate_head
            g = tl.load(gate_ptr + line[:, None] + at[None, :], mask=inside, other=0.0)
            y = y * tl.sigmoid(g.to(tl.float32))
        tl.store(out_ptr + place, y.to(out_ptr.dtype.element_ty), mask=inside)
    else:
        apart = (split * queries + query).to(tl.int64) * heads + head
        tl.store(part_ptr + apart[:, None] * dim + at[None, :], acc, mask=inside)
        tl.store(mass_ptr + apart * 2, m, mask=valid)
        tl.store(mass_ptr + apart * 2 + 1, total, mask=valid)


@triton.jit
def attend_kernel(
    q_ptr, gate_ptr, out_ptr, part_ptr, mass_ptr, items_ptr, segments_ptr,
    keys_ptr, values_ptr, apart_ptr, values_apart_ptr, fresh_ptr,
    requests, rows, queries, gate_row, gate_head, heads, kv_heads, capacity, dim, scale,
    AROUND: tl.constexpr,
    GATE: tl.constexpr, READ: tl.constexpr, COLUMNS: tl.constexpr, SPLIT: tl.constexpr,
    G: tl.constexpr, GROUP: tl.constexpr, T: tl.constexpr, N: tl.constexpr, D: tl.constexpr,
    STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One item of the list; with AROUND every so-manieth, for fewer programs than items."""
    begin(PDL)
    kv, items = tl.program_id(1), tl.load(items_ptr)
    if AROUND:
        for item in tl.range(tl.program_id(0), items, tl.num_programs(0), num_stages=1):
            attend_item(
                item, kv, q_ptr, gate_ptr, out_ptr, part_ptr, mass_ptr, items_ptr, segments_ptr,
                keys_ptr, values_ptr, apart_ptr, values_apart_ptr, fresh_ptr, requests, rows,
                queries, gate_row, gate_head, heads, kv_heads, capacity, dim, scale,
                GATE, READ, COLUMNS, SPLIT, G, GROUP, T, N, D, STAGES,
            )  # fmt: skip
    elif tl.program_id(0) < items:
        attend_item(
            tl.program_id(0), kv, q_ptr, gate_ptr, out_ptr, part_ptr, mass_ptr, items_ptr,
            segments_ptr, keys_ptr, values_ptr, apart_ptr, values_apart_ptr, fresh_ptr, requests,
            rows, queries, gate_row, gate_head, heads, kv_heads, capacity, dim, scale,
            GATE, READ, COLUMNS, SPLIT, G, GROUP, T, N, D, STAGES,
        )  # fmt: skip


@triton.jit
def merge_kernel(
    part_ptr, mass_ptr, gate_ptr, out_ptr, rows_ptr, segments_ptr, requests,
    queries, gate_row, gate_head, heads, dim,
    GATE: tl.constexpr, COLUMNS: tl.constexpr, SPLIT: tl.constexpr, PER: tl.constexpr,
    S: tl.constexpr, E: tl.constexpr, D: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Merge the splits of PER heads of one query, E at a time; those of one split are done.

    There are S splits at most. What a query has not adds nothing, so its bits do not depend on S.
    """
    begin(PDL)
    query = tl.program_id(0)
    segment = tl.load(rows_ptr + 3 * queries + query)
    trunk = tl.load(segments_ptr + tl.maximum(segment, 0) * COLUMNS + 4)
    splits = (trunk + SPLIT - 1) // SPLIT
    if segment < requests:
        splits = tl.load(rows_ptr + 2 * queries + query) // SPLIT + 1
    if (segment < 0) | (splits <= 1):
        return
    at, every, some = tl.arange(0, D), tl.arange(0, S), tl.arange(0, E)
    mask = at < dim
    for ahead in range(PER):
        head = tl.program_id(1) * PER + ahead
        real = head < heads
        all_of_them = (every * queries + query).to(tl.int64) * heads + head
        known = (every < splits) & real
        m = tl.load(mass_ptr + all_of_them * 2, mask=known, other=-float('inf'))
        top = tl.max(m, 0)
        acc = tl.zeros((D,), tl.float32)
        total = 0.0
        for first in range(0, splits, E):
            split = first + some
            there = (split < splits) & real
            place = (split * queries + query).to(tl.int64) * heads + head
            peak = tl.load(mass_ptr + place * 2, mask=there, other=-float('inf'))
            mass = tl.load(mass_ptr + place * 2 + 1, mask=there, other=0.0)
            part = tl.load(
                part_ptr + place[:, None] * dim + at[None, :],
                mask=there[:, None] & mask[None, :], other=0.0,
            )  # fmt: skip
            weight = tl.where(there, tl.exp2(peak - top), 0.0)
            total += tl.sum(mass * weight, 0)
            acc += tl.sum(part * weight[:, None], 0)
        y = acc / total
        if GATE:
            g = tl.load(
                gate_ptr + query.to(tl.int64) * gate_row + head * gate_head + at,
                mask=mask & real, other=0.0,
            )  # fmt: skip
            y = y * tl.sigmoid(g.to(tl.float32))
        spot = out_ptr + (query.to(tl.int64) * heads + head) * dim + at
        tl.store(spot, y.to(out_ptr.dtype.element_ty), mask=mask & real)


def tile_rows(heads: int, kv_heads: int, size: int) -> tuple[int, int, int]:
    """Return how a tile is made up: heads per key head, padded, and rows.

    Args:
        heads: query heads.
        kv_heads: key heads.
        size: bytes of an element.
    """
    group = heads // kv_heads
    padded = int(triton.next_power_of_2(group))
    return group, padded, max(1, (128 if size == 2 else 64) // padded)


def split_size(rows: int, steady: bool) -> int:
    """Return how many keys of a trunk one program takes.

    Short streams are split finely, so that every processor has some; in long ones the rows do
    that. Where bits must not depend on the stream, all are split alike.
    """
    if steady:
        return 1024
    return 512 if rows <= 512 else 1024 if rows <= 2560 else 1 << 24


def plan(tables: Tables, heads: int, kv_heads: int, capacity: int, size: int) -> Lists:
    """Launch `fork.attention.plan` on CUDA."""
    sizes = tables.sizes
    split = split_size(sizes.rows, tables.steady)
    rows = tile_rows(heads, kv_heads, size)[2]
    most = triton.cdiv(capacity, split)
    tiles = sizes.rows // rows + sizes.requests + sizes.branches

    def entries(count: int) -> Tensor:
        return torch.empty((1 + count, 4), dtype=torch.int32, device=tables.tokens.device)

    items, reads = entries(tiles * most), entries(sizes.branches * most)
    segments = sizes.requests + sizes.branches
    plan_kernel[(segments,)](
        tables.segments, items, reads, segments, sizes.requests,
        COLUMNS=COLUMNS, T=rows, SPLIT=split, S=triton.next_power_of_2(segments), BLOCK=128,
        num_warps=4,
    )  # fmt: skip
    return Lists(items, reads, split)


def attend(
    q: Tensor,
    tables: Tables,
    rows: Tensor,
    slots: KeySlots,
    gate: Tensor | None,
    lists: Lists,
    read: bool,
) -> Tensor:
    """Launch `fork.attention.attend` on CUDA."""
    queries, heads, dim = q.shape
    kv, capacity = slots.keys[0].shape[:2]
    group, padded, tile = tile_rows(heads, kv, q.element_size())
    width = side(dim)
    size, deep = tile_sizes(q.device, width, q.element_size())
    split, items = lists.split, lists.reads if read else lists.items
    splits = triton.cdiv(capacity, split)
    count = splits * queries * heads if splits > 1 else 1
    part = torch.empty((count, dim), dtype=torch.float32, device=q.device)
    mass = torch.empty((count, 2), dtype=torch.float32, device=q.device)
    gates = (0, 0) if gate is None else (gate.stride(0), gate.stride(1))
    out = torch.empty_like(q)
    requests = tables.sizes.requests
    count = items.shape[0] - 1
    # A list has room for all splits of all tiles, of which a round has few. Where rows are few the
    # programs without an item would take longer than those with one; a loop takes registers.
    around = splits > 1 and tables.sizes.rows <= SHORT and not tables.steady
    if around:
        count = min(count, triton.cdiv(2 * processors(q.device), kv))
    attend_kernel[(count, kv)](
        q, q if gate is None else gate, out, part, mass, items, tables.segments,
        slots.keys[0], slots.values[0], slots.apart, slots.values_apart, slots.fresh,
        requests, tables.sizes.rows, queries, *gates, heads, kv, capacity, dim,
        dim**-0.5 * LOG2_E,
        AROUND=around, GATE=gate is not None, READ=read, COLUMNS=COLUMNS, SPLIT=split,
        G=group, GROUP=padded, T=tile, N=size, D=width, STAGES=deep,
        num_warps=8 if q.element_size() == 2 else 4, **early(q),
    )  # fmt: skip
    if splits > 1:
        merge_kernel[(queries, triton.cdiv(heads, MERGED_HEADS))](
            part, mass, q if gate is None else gate, out, rows, tables.segments, requests,
            queries, *gates, heads, dim,
            GATE=gate is not None, COLUMNS=COLUMNS, SPLIT=split, PER=MERGED_HEADS,
            S=triton.next_power_of_2(splits), E=MERGED, D=triton.next_power_of_2(dim),
            num_warps=4, **early(q),
        )  # fmt: skip
    return out
