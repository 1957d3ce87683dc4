"""How sure a success rate is."""

from __future__ import annotations

import math


def wilson(successes: int, trials: int, z: float = 1.959964) -> tuple[float, float]:
    """Wilson's score interval of a rate (Wilson 1927); 95 % for the default `z`.

    Raises:
        ValueError: unless 0 <= successes <= trials and trials > 0.
    """
    if not 0 <= successes <= trials or trials == 0:
        raise ValueError(f'{successes} successes of {trials}; expected 0 to {trials}, of some')
    rate, spread = successes / trials, z * z / trials
    middle = rate + spread / 2
    half = z * math.sqrt(rate * (1 - rate) / trials + spread / (4 * trials))
    return max(0.0, (middle - half) / (1 + spread)), min(1.0, (middle + half) / (1 + spread))
