"""Full attention over a round: a row sees its trunk's keys and those of its own branch before it.

Keys of trunks stand in their request's slot, a static buffer that may hold the beginning of the
text already; keys of branches are kept by their row in the stream. The mask follows from where
the keys are looked for: same request, trunk or own branch, not later. The torch bodies are the
CPU path and the reference; they go segment by segment, so an answer's sums do not depend on what
else is in the round.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from flashrt_policies.kernels.fork.stream import (
    COUNT,
    POSITION,
    ROW_BRANCH,
    ROW_POSITION,
    ROW_SEGMENT,
    ROW_SLOT,
    SLOT,
    START,
    TRUNK,
    Rotary,
    Tables,
)
from flashrt_policies.kernels.norm import rms_norm

BLOCK = 64  # rows of a trunk that are taken together, counted from its text's beginning


@dataclass(frozen=True)
class KeySlots:
    """Keys and values of one full layer: of the trunks in slots, of the branches by row.

    Attributes:
        keys: per slot [KV, T, D].
        values: per slot [KV, T, D].
        apart: int64 [slots], elements from the first slot's keys to each slot's.
        values_apart: int64 [slots], likewise for the values.
        fresh: [2, KV, M, D], keys and values of branches at their row in the stream.
    """

    keys: list[Tensor]
    values: list[Tensor]
    apart: Tensor
    values_apart: Tensor
    fresh: Tensor


@dataclass(frozen=True)
class Lists:
    """What attention works off, made on the device from the segments once per round.

    Attributes:
        items: int32 [n, 4], tiles of all rows; empty on the CPU, which goes by segments.
        reads: int32 [n, 4], tiles of the rows that are read.
        split: keys of a trunk that one program takes.
    """

    items: Tensor
    reads: Tensor
    split: int


def plan(tables: Tables, heads: int, kv_heads: int, capacity: int, size: int) -> Lists:
    """Make the work lists of a round.

    Args:
        tables: the round.
        heads: query heads.
        kv_heads: key heads.
        capacity: T, slots for keys.
        size: bytes of an element.
    """
    if tables.tokens.is_cuda:
        from flashrt_policies.kernels.fork import attention_triton

        return attention_triton.plan(tables, heads, kv_heads, capacity, size)
    return Lists(tables.reads[:0], tables.reads[:0], capacity)


def place(
    k: Tensor,
    v: Tensor,
    rows: Tensor,
    slots: KeySlots,
    turn: Rotary,
    k_scale: Tensor | None,
    eps: float,
    q: Tensor | None = None,
    q_scale: Tensor | None = None,
) -> Tensor | None:
    """Normalise and rotate keys; put keys and values where `attend` looks for them.

    Args:
        k: [M, KV, D], may be strided.
        v: [M, KV, D], strided like `k`.
        rows: int32 [4 or more, M], from `fork.stream.spread`.
        slots: written.
        turn: from `fork.stream.rotary`.
        k_scale: float32 [D] of the keys' norm, or None for no norm.
        eps: of the norms.
        q: queries of the same rows, to be turned by the way, as by `turned_queries`; or None.
        q_scale: float32 [D] of their norm, or None.

    Returns:
        The queries [M, H, D], contiguous; None without any.
    """
    if k.is_cuda:
        from flashrt_policies.kernels.fork import place_triton

        return place_triton.place(k, v, rows, slots, turn, k_scale, eps, q, q_scale)
    turned = _turned(k, turn, k_scale, eps)
    slots.fresh[0].copy_(turned.transpose(0, 1))
    slots.fresh[1].copy_(v.transpose(0, 1))
    trunk = (rows[ROW_SEGMENT] >= 0) & (rows[ROW_BRANCH] < 0)
    owner = rows[ROW_SLOT].masked_fill(~trunk, -1)
    start = 0
    for index, count in zip(*_runs(owner), strict=True):
        if index >= 0:  # the rows of one trunk
            at, mine = int(rows[ROW_POSITION, start]), slice(start, start + count)
            slots.keys[index][:, at : at + count] = turned[mine].transpose(0, 1)
            slots.values[index][:, at : at + count] = v[mine].transpose(0, 1)
        start += count
    return None if q is None else _turned(q, turn, q_scale, eps)


def turned_queries(
    q: Tensor, rows: Tensor, turn: Rotary, scale: Tensor | None, eps: float
) -> Tensor:
    """Normalise and rotate queries.

    Args:
        q: [N, H, D], may be strided.
        rows: int32 [4 or more, N], where they stand.
        turn: from `fork.stream.rotary`, of the same rows.
        scale: float32 [D] of the norm, or None.
        eps: of the norm.

    Returns:
        [N, H, D], contiguous.
    """
    if q.is_cuda:
        from flashrt_policies.kernels.fork import place_triton

        return place_triton.turned_queries(q, rows, turn, scale, eps)
    return _turned(q, turn, scale, eps)


def _turned(x: Tensor, turn: Rotary, scale: Tensor | None, eps: float) -> Tensor:
    """Normalise and rotate [N, H, D] by halves of the leading 2 R elements."""
    if scale is not None:
        x = rms_norm(x, scale, eps)
    cos, sin = turn[0][:, None], turn[1][:, None]  # [N, 1, R]
    half = cos.shape[-1]
    wide = x.float()
    first, second, rest = wide[..., :half], wide[..., half : 2 * half], wide[..., 2 * half :]
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), -1).to(
        x.dtype
    )


def attend(
    q: Tensor,
    tables: Tables,
    rows: Tensor,
    slots: KeySlots,
    gate: Tensor | None,
    lists: Lists,
    read: bool,
) -> Tensor:
    """Attend from every row, or from the rows that are read; apply the output gate.

    Args:
        q: [M, H, D]; with `read` [B, H, D], one row per branch.
        tables: the round.
        rows: int32 [4 or more, M or B], where the queries stand.
        slots: keys and values, already placed.
        gate: like `q`, the output is multiplied by its sigmoid; or None. May be strided.
        lists: from `plan`.
        read: the queries are those of `tables.reads`.

    Returns:
        Like `q`; unused rows are meaningless.
    """
    if q.is_cuda:
        from flashrt_policies.kernels.fork import attention_triton

        return attention_triton.attend(q, tables, rows, slots, gate, lists, read)
    out = torch.zeros(q.shape)
    segments = tables.segments.tolist()
    requests = tables.sizes.requests
    for index, segment in enumerate(segments):
        start, count, slot = segment[START], segment[COUNT], segment[SLOT]
        keys, values = slots.keys[slot], slots.values[slot]
        if not count:
            continue
        if index >= requests:
            trunk = segment[TRUNK]
            own = slots.fresh[:, :, start : start + count]
            keys = torch.cat((keys[:, :trunk], own[0]), 1)
            values = torch.cat((values[:, :trunk], own[1]), 1)
            if read:
                row = index - requests
                out[row : row + 1] = _attend(q[row : row + 1], keys, values, trunk + count - 1)
            else:
                out[start : start + count] = _attend(q[start : start + count], keys, values, trunk)
        elif not read:
            at = segment[POSITION]
            for first in range(at - at % BLOCK, at + count, BLOCK):
                low, high = max(first, at), min(first + BLOCK, at + count)
                mine = slice(start + low - at, start + high - at)
                out[mine] = _attend(q[mine], keys[:, :high], values[:, :high], low)
    if gate is not None:
        out = out * gate.float().sigmoid()
    return out.to(q.dtype)


def _attend(q: Tensor, keys: Tensor, values: Tensor, position: int) -> Tensor:
    """Attend causally; row i of q [n, H, D] stands at `position` + i of the keys [KV, T, D]."""
    earlier = torch.arange(keys.shape[1]) <= torch.arange(position, position + len(q))[:, None]
    q, keys, values = (x[None].float() for x in (q.transpose(0, 1), keys, values))
    mixed = F.scaled_dot_product_attention(q, keys, values, attn_mask=earlier, enable_gqa=True)
    return mixed[0].transpose(0, 1)


def _runs(x: Tensor) -> tuple[list[int], list[int]]:
    """Return the values of runs of equal ones in [n], and their lengths."""
    values, counts = torch.unique_consecutive(x, return_counts=True)
    return values.tolist(), counts.tolist()
