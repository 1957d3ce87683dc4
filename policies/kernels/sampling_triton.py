"""Triton kernels of `sampling`: the best token per block, then the best of the blocks."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from flashrt_policies.kernels.launch import begin, early

BLOCK = 2048


@triton.jit
def block_best_kernel(
    logits_ptr, best_ptr, where_ptr, vocab, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    """Largest logit of each block, and the first place it stands."""
    begin(PDL)
    block = tl.program_id(0)
    at = block * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(logits_ptr + at, mask=at < vocab, other=-float('inf'))
    best = tl.max(value, 0)
    tl.store(best_ptr + block, best)
    tl.store(where_ptr + block, tl.min(tl.where(value == best, at, vocab), 0))


@triton.jit
def final_best_kernel(
    best_ptr, where_ptr, token_ptr, counter_ptr, vocab, blocks, drawn: tl.constexpr,
    BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """First place of the best of all blocks; the one program also advances the counter."""
    begin(PDL)
    at = tl.arange(0, BLOCK)
    value = tl.load(best_ptr + at, mask=at < blocks, other=-float('inf'))
    where = tl.load(where_ptr + at, mask=at < blocks, other=vocab)
    best = tl.max(value, 0)
    first = tl.min(tl.where(value == best, where, vocab), 0)
    tl.store(token_ptr, tl.minimum(first, vocab - 1))
    if drawn:
        tl.store(counter_ptr, tl.load(counter_ptr) + (vocab + 3) // 4)


@triton.jit
def block_draw_kernel(
    logits_ptr, peak_ptr, best_ptr, where_ptr, temperature_ptr, min_p_ptr, seed_ptr, counter_ptr,
    vocab, blocks, PEAKS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Best noisy logit of each block; the words are those of `noise.words_`."""
    begin(PDL)
    block = tl.program_id(0)
    slot = tl.arange(0, PEAKS)
    peak = tl.max(tl.load(peak_ptr + slot, mask=slot < blocks, other=-float('inf')), 0)
    at = block * BLOCK + tl.arange(0, BLOCK)
    index = tl.load(counter_ptr) + (at // 4)  # int64: blocks of four words
    low = (index & 0xFFFFFFFF).to(tl.uint32)
    high = (index >> 32).to(tl.uint32)
    zero = low * 0
    w0, w1, w2, w3 = tl.philox(tl.load(seed_ptr), low, high, zero, zero)
    lane = at % 4
    word = tl.where(lane == 0, w0, tl.where(lane == 1, w1, tl.where(lane == 2, w2, w3)))
    uniform = ((word >> 9).to(tl.float32) + 0.5) * 1.1920928955078125e-07  # 2**-23
    value = tl.load(logits_ptr + at, mask=at < vocab, other=-float('inf'))
    scaled = (value - peak) / tl.load(temperature_ptr)
    noisy = scaled - tl.log(-tl.log(uniform))
    keep = (scaled >= tl.log(tl.load(min_p_ptr))) & (at < vocab)
    noisy = tl.where(keep, noisy, -float('inf'))
    best = tl.max(noisy, 0)
    tl.store(best_ptr + block, best)
    tl.store(where_ptr + block, tl.min(tl.where(noisy == best, at, vocab), 0))


def _blocks(logits: Tensor) -> tuple[int, Tensor, Tensor]:
    vocab = logits.shape[0]
    count = triton.cdiv(vocab, BLOCK)
    best = torch.empty(count, dtype=torch.float32, device=logits.device)
    where = torch.empty(count, dtype=torch.int32, device=logits.device)
    block_best_kernel[(count,)](
        logits, best, where, vocab, BLOCK=BLOCK, num_warps=4, **early(logits, True)
    )
    return count, best, where


def greedy(logits: Tensor, token: Tensor) -> None:
    """Launch `sampling.greedy` on CUDA."""
    count, best, where = _blocks(logits)
    final_best_kernel[(1,)](
        best, where, token, token, logits.shape[0], count,
        drawn=False, BLOCK=triton.next_power_of_2(count), num_warps=4, **early(logits, True),
    )  # fmt: skip


def draw(
    logits: Tensor,
    token: Tensor,
    temperature: Tensor,
    min_p: Tensor,
    seed: Tensor,
    counter: Tensor,
) -> None:
    """Launch `sampling.draw` on CUDA."""
    count, peak, where = _blocks(logits)
    best = torch.empty_like(peak)
    lanes = triton.next_power_of_2(count)
    block_draw_kernel[(count,)](
        logits, peak, best, where, temperature, min_p, seed, counter, logits.shape[0], count,
        PEAKS=lanes, BLOCK=BLOCK, num_warps=4, **early(logits, True),
    )  # fmt: skip
    final_best_kernel[(1,)](
        best,
        where,
        token,
        counter,
        logits.shape[0],
        count,
        drawn=True,
        BLOCK=lanes,
        num_warps=4,
        **early(logits, True),
    )
