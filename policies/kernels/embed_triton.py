"""Triton kernels of `embed`: look tokens up, remember and hash them in one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from flashrt_policies.kernels.embed import BASE, PRIME


@triton.jit
def take_kernel(
    prompt_ptr, span_ptr, embed_ptr, history_ptr, position_ptr, valid_ptr, hashed_ptr, power_ptr,
    x_ptr, rows, width, PRIME: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One row per program; the first program also counts and hashes."""
    row = tl.program_id(0)
    cursor = tl.load(span_ptr)
    valid = tl.minimum(tl.maximum(tl.load(span_ptr + 1) - cursor, 0), rows)
    real = row < valid
    token = tl.load(prompt_ptr + cursor + row, mask=real, other=0)
    tl.store(history_ptr + tl.load(position_ptr) + row, token, mask=real)
    at = tl.arange(0, BLOCK)
    mask = at < width
    x = tl.load(embed_ptr + token.to(tl.int64) * width + at, mask=mask & real, other=0.0)
    tl.store(x_ptr + row.to(tl.int64) * width + at, x, mask=mask)
    if row == 0:
        index = tl.arange(0, ROWS)
        inside = index < valid
        tokens = tl.load(prompt_ptr + cursor + index, mask=inside, other=0).to(tl.int64)
        power = tl.load(power_ptr + valid - 1 - index, mask=inside, other=0)
        terms = tl.where(inside, (tokens + 1) * power % PRIME, 0)
        before = tl.load(hashed_ptr) * tl.load(power_ptr + valid)
        tl.store(hashed_ptr, (before + tl.sum(terms, 0)) % PRIME)
        tl.store(valid_ptr, valid)


@triton.jit
def take_one_kernel(
    token_ptr, embed_ptr, history_ptr, position_ptr, hashed_ptr, x_ptr, width,
    PRIME: tl.constexpr, BASE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The single token of a decode step."""
    token = tl.load(token_ptr).to(tl.int64)
    tl.store(history_ptr + tl.load(position_ptr), token.to(tl.int32))
    tl.store(hashed_ptr, (tl.load(hashed_ptr) * BASE + token + 1) % PRIME)
    at = tl.arange(0, BLOCK)
    mask = at < width
    tl.store(x_ptr + at, tl.load(embed_ptr + token * width + at, mask=mask), mask=mask)


@triton.jit
def advance_kernel(span_ptr, position_ptr, valid_ptr):
    """Count the replay's tokens as consumed."""
    valid = tl.load(valid_ptr)
    tl.store(span_ptr, tl.load(span_ptr) + valid)
    tl.store(position_ptr, tl.load(position_ptr) + valid)


def take(
    rows: int,
    prompt: Tensor,
    span: Tensor,
    embed: Tensor,
    history: Tensor,
    position: Tensor,
    valid: Tensor,
    hashed: Tensor,
    power: Tensor,
) -> Tensor:
    """Launch `embed.take` on CUDA."""
    width = embed.shape[1]
    x = torch.empty((rows, width), dtype=embed.dtype, device=embed.device)
    take_kernel[(rows,)](
        prompt, span, embed, history, position, valid, hashed, power, x, rows, width,
        PRIME=PRIME, ROWS=triton.next_power_of_2(rows), BLOCK=triton.next_power_of_2(width),
        num_warps=4,
    )  # fmt: skip
    return x


def take_one(
    token: Tensor, embed: Tensor, history: Tensor, position: Tensor, hashed: Tensor
) -> Tensor:
    """Embed, remember and hash the token of a decode step; [1, hidden]."""
    width = embed.shape[1]
    x = torch.empty((1, width), dtype=embed.dtype, device=embed.device)
    take_one_kernel[(1,)](
        token, embed, history, position, hashed, x, width,
        PRIME=PRIME, BASE=BASE, BLOCK=triton.next_power_of_2(width), num_warps=4,
    )  # fmt: skip
    return x


def advance(span: Tensor, position: Tensor, valid: Tensor) -> None:
    """Launch `embed.advance` on CUDA."""
    advance_kernel[(1,)](span, position, valid, num_warps=1)
