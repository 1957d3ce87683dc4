"""Counter-based random numbers whose whole state is two buffers.

Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3",
SC 2011) in torch integer operations: the same bits on every device, no hidden generator, safe
inside a captured graph. The seed is the key; the counter counts blocks of four 32-bit words and
is advanced in place, inside the graph, so that replaying a restored counter draws the same noise.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

KERNEL = 'philox4x32-10/box-muller-f64/1'
_MASK = 0xFFFFFFFF
_M0, _M1 = 0xD2511F53, 0xCD9E8D57  # multipliers of the paper, section 5.3
_W0, _W1 = 0x9E3779B9, 0xBB67AE85  # key increments (Weyl sequence)
_ROUNDS = 10


def _mulhilo(x: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """Return the high and low 32 bits of ``x * factor``; both below 2**32.

    The factor is split in 16-bit halves so that no product leaves 48 bits: signed 64-bit
    overflow is never relied upon.
    """
    upper = x * (factor >> 16)  # < 2**48
    lower = x * (factor & 0xFFFF)  # < 2**48
    high = (upper + (lower >> 16)) >> 16
    low = (((upper & 0xFFFF) << 16) + lower) & _MASK
    return high, low


def philox(counter: tuple[Tensor, Tensor, Tensor, Tensor], key: tuple[Tensor, Tensor]) -> Tensor:
    """Apply the ten rounds of Philox4x32.

    Args:
        counter: four int64 tensors [N], each holding one 32-bit word.
        key: two int64 tensors broadcastable to [N], each holding one 32-bit word.

    Returns:
        int64 [N, 4]: four random 32-bit words per block.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for turn in range(_ROUNDS):
        if turn:
            k0, k1 = (k0 + _W0) & _MASK, (k1 + _W1) & _MASK
        high0, low0 = _mulhilo(c0, _M0)
        high1, low1 = _mulhilo(c2, _M1)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
    return torch.stack(torch.broadcast_tensors(c0, c1, c2, c3), dim=-1)  # [N, 4]


def words_(count: int, seed: Tensor, counter: Tensor) -> Tensor:
    """Draw ``count`` random 32-bit words and advance the counter past the blocks they used.

    Args:
        count: how many words.
        seed: int64 [1].
        counter: int64 [1], blocks drawn so far; advanced in place.

    Returns:
        int64 [count].
    """
    blocks = -(-count // 4)
    index = counter + torch.arange(blocks, device=counter.device)  # [N]
    zero = torch.zeros_like(index)
    words = philox(
        (index & _MASK, (index >> 32) & _MASK, zero, zero), (seed & _MASK, (seed >> 32) & _MASK)
    )
    counter += blocks
    return words.reshape(-1)[:count]


def normal_(out: Tensor, seed: Tensor, counter: Tensor) -> Tensor:
    """Fill `out` with independent standard normal numbers, in place.

    Box and Muller's transform (1958) of two words into two normals, computed in float64 and
    rounded once, so that every element type sees the same draw.

    Args:
        out: any shape, floating point.
        seed: int64 [1].
        counter: int64 [1]; advanced in place, one block per four numbers.
    """
    pairs = -(-out.numel() // 2)
    words = words_(2 * pairs, seed, counter).to(torch.float64)
    radius = torch.sqrt(-2.0 * torch.log((words[:pairs] + 1.0) * 2.0**-32))
    angle = words[pairs:] * (2.0 * math.pi * 2.0**-32)
    draws = torch.cat((radius * torch.cos(angle), radius * torch.sin(angle)))
    return out.copy_(draws[: out.numel()].reshape(out.shape))
