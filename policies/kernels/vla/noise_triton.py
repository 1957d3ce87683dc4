"""Triton kernel of `vla.noise`: Philox and Box and Muller's transform, one program for all."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _word(seed, counter, index):
    """Return one of the four words of a block as float64; `index` counts words."""
    block = (counter + index // 4).to(tl.uint64)
    low, high = (block & 0xFFFFFFFF).to(tl.uint32), (block >> 32).to(tl.uint32)
    zero = low * 0
    a, b, c, d = tl.philox(seed, low, high, zero, zero)
    lane = index % 4
    word = tl.where(lane == 0, a, tl.where(lane == 1, b, tl.where(lane == 2, c, d)))
    return word.to(tl.uint32).to(tl.float64)


@triton.jit
def normal_kernel(out_ptr, seed_ptr, counter_ptr, count, pairs, blocks, BLOCK: tl.constexpr):
    """Draw `count` numbers from `pairs` pairs of words, then move the counter on."""
    pair = tl.arange(0, BLOCK)
    seed, counter = tl.load(seed_ptr), tl.load(counter_ptr)
    radius = tl.sqrt(-2.0 * tl.log((_word(seed, counter, pair) + 1.0) * 2.3283064365386963e-10))
    angle = _word(seed, counter, pair + pairs) * 1.4629180792671596e-09
    first, second = radius * tl.cos(angle), radius * tl.sin(angle)
    there = pair < pairs
    tl.store(out_ptr + pair, first.to(tl.float32), mask=there & (pair < count))
    tl.store(out_ptr + pairs + pair, second.to(tl.float32), mask=there & (pair + pairs < count))
    tl.store(counter_ptr, counter + blocks)


def normal_(out: Tensor, seed: Tensor, counter: Tensor) -> Tensor:
    """Launch `vla.noise.normal_` on CUDA."""
    count = out.numel()
    pairs = -(-count // 2)
    normal_kernel[(1,)](
        out, seed, counter, count, pairs, -(-2 * pairs // 4),
        BLOCK=triton.next_power_of_2(pairs), num_warps=8,
    )  # fmt: skip
    return out
