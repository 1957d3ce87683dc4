"""How a stretch of tokens is cut into replays.

A replay takes up to as many tokens as its graph was captured for; the rest of its rows are
padding. On CUDA every kernel computes a token alike whatever stands around it in the replay (as
long as replays start at multiples of the chunk C), so any cutting does, and the cheapest is taken;
`check_lm.py bits` shows whether a GPU then gives the same bits. On the CPU matrix products of
other heights round otherwise, so there is one unit, C: a resumed prompt then runs the very replays
that the cold one ran.
"""

from __future__ import annotations

from collections.abc import Sequence

CPU_UNITS = (64,)
# What a replay costs beside its rows, in rows: hundreds of launches bound by their latency.
START = 512
CUDA_UNITS = (64, 128, 256, 512, 1024, 2048, 4096)


def cut(count: int, units: Sequence[int]) -> list[tuple[int, int]]:
    """Cut `count` tokens into replays.

    Args:
        count: tokens to consume.
        units: sizes there are graphs for, ascending; multiples of the chunk.

    Returns:
        (unit, tokens in it) per replay, in order. Every replay but the last is full, so all of
        them start at a multiple of the smallest unit behind the first.
    """
    parts = []
    while count > units[-1]:
        parts.append((units[-1], units[-1]))
        count -= units[-1]
    return parts + _cheapest(count, units)


def _cheapest(count: int, units: Sequence[int]) -> list[tuple[int, int]]:
    """Cut what is at most one replay of the largest unit: padded, or full ones and the rest."""
    if count <= 0:
        return []
    over = next(unit for unit in units if unit >= count)
    split = next((unit for unit in reversed(units) if unit < count), None)
    if split is None:
        return [(over, count)]
    parts = [(split, split), *_cheapest(count - split, units)]
    cost = sum(START + unit for unit, _ in parts)
    return parts if cost < START + over else [(over, count)]


def aligned(count: int, chunk: int) -> int:
    """Return the largest multiple of `chunk` that is at most `count`."""
    return count - count % chunk
