"""Triton kernels of `embed`: look tokens up, remember and hash them in one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from flashrt_policies.kernels.embed import BASE, PRIME
from flashrt_policies.kernels.launch import begin, early


@triton.jit
def take_kernel(
    prompt_ptr, span_ptr, embed_ptr, history_ptr, position_ptr, valid_ptr, hashed_ptr, power_ptr,
    x_ptr, rows, width, PRIME: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """One row per program; the first program also counts and hashes."""
    begin(PDL)
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
    PRIME: tl.constexpr, BASE: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The single token of a decode step."""
    begin(PDL)
    token = tl.load(token_ptr).to(tl.int64)
    tl.store(history_ptr + tl.load(position_ptr), token.to(tl.int32))
    tl.store(hashed_ptr, (tl.load(hashed_ptr) * BASE + token + 1) % PRIME)
    at = tl.arange(0, BLOCK)
    mask = at < width
    tl.store(x_ptr + at, tl.load(embed_ptr + token * width + at, mask=mask), mask=mask)


@triton.jit
def advance_kernel(span_ptr, position_ptr, valid_ptr, PDL: tl.constexpr):
    """Count the replay's tokens as consumed."""
    begin(PDL)
    valid = tl.load(valid_ptr)
    tl.store(span_ptr, tl.load(span_ptr) + valid)
    tl.store(position_ptr, tl.load(position_ptr) + valid)


@triton.jit
def pick_kernel(x_ptr, out_ptr, valid_ptr, width, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """The row of the last token."""
    begin(PDL)
    row = tl.maximum(tl.load(valid_ptr) - 1, 0)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * width + at, mask=at < width)
    tl.store(out_ptr + at, x, mask=at < width)


@triton.jit
def finish_kernel(
    x_ptr, scale_ptr, hidden_ptr, span_ptr, position_ptr, valid_ptr, width, eps,
    ONE: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Norm the last token's hidden state and count the tokens as consumed."""
    begin(PDL)
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < width, other=0.0).to(tl.float32)
    scale = tl.load(scale_ptr + at, mask=at < width, other=0.0)
    y = x * tl.rsqrt(tl.sum(x * x, 0) / width + eps) * scale
    tl.store(hidden_ptr + at, y.to(hidden_ptr.dtype.element_ty), mask=at < width)
    if ONE:
        tl.store(position_ptr, tl.load(position_ptr) + 1)
    else:
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
        num_warps=4, **early(embed),
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
        **early(embed, True),
    )  # fmt: skip
    return x


def advance(span: Tensor, position: Tensor, valid: Tensor) -> None:
    """Launch `embed.advance` on CUDA."""
    advance_kernel[(1,)](span, position, valid, num_warps=1, **early(span))


def pick(x: Tensor, valid: Tensor) -> Tensor:
    """Return the row of the last of `valid` tokens, [1, N], of x [M, N]."""
    width = x.shape[1]
    out = torch.empty((1, width), dtype=x.dtype, device=x.device)
    block = min(1024, triton.next_power_of_2(width))
    pick_kernel[(triton.cdiv(width, block),)](
        x, out, valid, width, BLOCK=block, num_warps=4, **early(x)
    )
    return out


def finish(
    x: Tensor,
    scale: Tensor,
    eps: float,
    hidden: Tensor,
    position: Tensor,
    span: Tensor | None = None,
    valid: Tensor | None = None,
) -> None:
    """Norm the last token's residual stream into `hidden` and count tokens as consumed.

    Args:
        x: [1, N].
        scale: float32 [N], of the norm.
        eps: of the norm.
        hidden: [1, N], written.
        position: int64 [1], moved on.
        span: int64 [2], as `advance` moves it; None when one token was consumed.
        valid: int64 [1], how many tokens; None for one.
    """
    width = x.shape[1]
    finish_kernel[(1,)](
        x, scale, hidden, position if span is None else span, position,
        position if valid is None else valid, width, eps,
        ONE=valid is None, BLOCK=triton.next_power_of_2(width), num_warps=4, **early(x, True),
    )  # fmt: skip
