"""Triton kernel of `fork.attention.place`: norm and rotation, keys and values to their places."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from flashrt_policies.kernels.fork.attention import KeySlots
from flashrt_policies.kernels.fork.stream import Rotary
from flashrt_policies.kernels.launch import begin, early
from flashrt_policies.kernels.place_triton import normed_parts, put_turned

TURN_ROWS = 8  # rows that one program norms and rotates


@triton.jit
def turn_kernel(
    q_ptr, k_ptr, v_ptr, rows_ptr, q_scale_ptr, k_scale_ptr, cos_ptr, sin_ptr, out_ptr, fresh_ptr,
    keys_ptr, values_ptr, apart_ptr, values_apart_ptr, q_row, q_head, kv_row, count, heads,
    kv_heads, capacity, dim, half, eps,
    NORM: tl.constexpr, R: tl.constexpr, H: tl.constexpr, D: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """R rows of one head: queries to out [rows, heads, D], keys and values to their places.

    Those of branches go to fresh [2, KV, rows, D], those of trunks to their slot.
    """
    begin(PDL)
    head = tl.program_id(1)
    row = tl.program_id(0) * R + tl.arange(0, R)
    at = tl.arange(0, D)
    used = tl.load(rows_ptr + 3 * count + row, mask=row < count, other=-1) >= 0
    real = used[:, None]
    line = row[:, None].to(tl.int64)
    low = tl.arange(0, H)[None, :]
    angle = row[:, None] * half + low
    cos = tl.load(cos_ptr + angle, mask=real & (low < half), other=1.0)
    sin = tl.load(sin_ptr + angle, mask=real & (low < half), other=0.0)
    if head < heads:
        x, first, second = normed_parts(
            q_ptr + line * q_row + head * q_head, q_scale_ptr, real, dim, half, eps, NORM, H, D
        )
        put_turned(
            out_ptr + (line * heads + head) * dim, x, first, second, cos, sin, real, dim, half, H,
            D,
        )  # fmt: skip
    else:
        kv = head - heads
        x, first, second = normed_parts(
            k_ptr + line * kv_row + kv * dim, k_scale_ptr, real, dim, half, eps, NORM, H, D
        )
        mask = real & (at < dim)[None, :]
        v = tl.load(v_ptr + line * kv_row + kv * dim + at[None, :], mask=mask, other=0.0)
        trunk = (tl.load(rows_ptr + count + row, mask=used, other=0) < 0) & used
        fresh = fresh_ptr + (kv * count + line) * dim
        ours = real & (trunk == 0)[:, None]
        put_turned(fresh, x, first, second, cos, sin, ours, dim, half, H, D)
        beside = fresh + count.to(tl.int64) * kv_heads * dim + at[None, :]
        tl.store(beside, v, mask=mask & ours)
        slot = tl.load(rows_ptr + row, mask=used, other=0)
        position = tl.load(rows_ptr + 2 * count + row, mask=used, other=0)
        place = (kv * capacity + position[:, None].to(tl.int64)) * dim
        theirs = trunk[:, None]
        away = tl.load(apart_ptr + slot, mask=trunk, other=0)[:, None]
        put_turned(keys_ptr + away + place, x, first, second, cos, sin, theirs, dim, half, H, D)
        away = tl.load(values_apart_ptr + slot, mask=trunk, other=0)[:, None]
        tl.store(values_ptr + away + place + at[None, :], v, mask=mask & theirs)


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
    """Launch `fork.attention.place` on CUDA."""
    heads = 0 if q is None else q.shape[1]
    out = torch.empty((k.shape[0], heads, k.shape[2]), dtype=k.dtype, device=k.device)
    _turn(q, q_scale, k, v, k_scale, rows, slots, turn, out, eps)
    return None if q is None else out


def turned_queries(
    q: Tensor, rows: Tensor, turn: Rotary, scale: Tensor | None, eps: float
) -> Tensor:
    """Launch `fork.attention.turned_queries` on CUDA."""
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    _turn(q, scale, None, q, None, rows, None, turn, out, eps)
    return out


def _turn(
    q: Tensor | None, q_scale: Tensor | None, k: Tensor | None, v: Tensor, k_scale: Tensor | None,
    rows: Tensor, slots: KeySlots | None, turn: Rotary, out: Tensor, eps: float,
) -> None:  # fmt: skip
    count, heads, dim = out.shape
    kv = 0 if k is None else k.shape[1]
    cos, sin = turn
    # Where there are no queries, or no keys, nothing of theirs is looked at.
    some = q if q is not None else v
    places = (v, v, v, rows, rows)
    if slots is not None:
        apart = (slots.apart, slots.values_apart)
        places = (slots.fresh, slots.keys[0], slots.values[0], *apart)
    turn_kernel[(triton.cdiv(count, TURN_ROWS), heads + kv)](
        some, v if k is None else k, v, rows, cos if q_scale is None else q_scale,
        cos if k_scale is None else k_scale, cos, sin, v if q is None else out, *places,
        some.stride(0), some.stride(1), v.stride(0), count, heads, kv,
        1 if slots is None else slots.keys[0].shape[1], dim, cos.shape[1], eps,
        NORM=q_scale is not None or k_scale is not None, R=TURN_ROWS,
        H=triton.next_power_of_2(cos.shape[1]), D=triton.next_power_of_2(dim), num_warps=4,
        **early(v),
    )  # fmt: skip
