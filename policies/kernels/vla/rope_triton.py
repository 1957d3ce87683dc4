"""Triton kernel of `vla.rope`: one projection's row to queries, keys and values, in one pass."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from flashrt_policies.kernels.vla.rope import Heads, Rotary

BLOCK = 1024


@triton.jit
def angles(
    row, first, cos_ptr, sin_ptr, turned, HALF: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Cosines and sines [R, N/2] of rows from column `first`; none from `turned` on."""
    pair = first // 2 + tl.arange(0, N // 2)  # [N/2]
    turning = (2 * pair < turned)[None, :]
    spot = row[:, None] * HALF + (pair % HALF)[None, :]
    cos = tl.load(cos_ptr + spot, mask=turning, other=1.0)
    return cos, tl.load(sin_ptr + spot, mask=turning, other=0.0)


@triton.jit
def place_heads(
    y, i, j, live, cos, sin, q_ptr, k_ptr, v_ptr, queries, keys, k_row, v_row,
    R: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Rotate a tile of a joint projection and store it: queries, then keys, then values.

    `y` is [R, N] float32 of rows `i` and columns `j`, from an even one; `live` says what of it
    counts. The first `queries` columns are queries, then `keys` of keys and as many of values.
    """
    first, second = tl.split(tl.reshape(y, (R, N // 2, 2)))
    y = tl.reshape(tl.join(first * cos - second * sin, second * cos + first * sin), (R, N))
    q_mask = live & (j < queries)[None, :]
    tl.store(
        q_ptr + i[:, None].to(tl.int64) * queries + j[None, :],
        y.to(q_ptr.dtype.element_ty), mask=q_mask,
    )  # fmt: skip
    k_mask = live & ((j >= queries) & (j < queries + keys))[None, :]
    tl.store(
        k_ptr + i[:, None].to(tl.int64) * k_row + (j - queries)[None, :],
        y.to(k_ptr.dtype.element_ty), mask=k_mask,
    )  # fmt: skip
    v_mask = live & (j >= queries + keys)[None, :]
    tl.store(
        v_ptr + i[:, None].to(tl.int64) * v_row + (j - queries - keys)[None, :],
        y.to(v_ptr.dtype.element_ty), mask=v_mask,
    )  # fmt: skip


@triton.jit
def split_rotate_kernel(
    x_ptr, cos_ptr, sin_ptr, q_ptr, k_ptr, v_ptr,
    columns, queries, keys, k_row, v_row, HALF: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One block of columns of one row."""
    i = tl.program_id(0) + tl.arange(0, 1)
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = (j < columns)[None, :]
    at = x_ptr + i[:, None].to(tl.int64) * columns + j[None, :]
    y = tl.load(at, mask=live, other=0.0).to(tl.float32)
    cos, sin = angles(
        i, tl.program_id(1) * BLOCK, cos_ptr, sin_ptr, queries + keys, HALF=HALF, N=BLOCK
    )
    place_heads(
        y, i, j, live, cos, sin, q_ptr, k_ptr, v_ptr, queries, keys, k_row, v_row, R=1, N=BLOCK
    )


def split_rotate(qkv: Tensor, turns: Rotary, heads: Heads, k: Tensor, v: Tensor) -> Tensor:
    """Launch `vla.rope.split_rotate` on CUDA."""
    rows, columns = qkv.shape
    q = torch.empty((rows, heads.queries, heads.dim), dtype=qkv.dtype, device=qkv.device)
    block = min(BLOCK, triton.next_power_of_2(columns))
    split_rotate_kernel[(rows, triton.cdiv(columns, block))](
        qkv, turns.cos, turns.sin, q, k, v, columns, heads.queries * heads.dim,
        heads.kv * heads.dim, k.stride(0), v.stride(0), HALF=heads.dim // 2, BLOCK=block,
        num_warps=4,
    )  # fmt: skip
    return q
