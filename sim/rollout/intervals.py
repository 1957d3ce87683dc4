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


def paired(first: int, second: int, pairs: int, z: float = 1.959964) -> tuple[float, float]:
    """Interval of the difference of two rates that were measured on the same `pairs` cases.

    Agresti and Min (2005), "Simple improved confidence intervals for comparing matched
    proportions": Wald's interval after half a case more of each kind. 95 % for the default `z`.

    Args:
        first: cases in which only the first one succeeded.
        second: cases in which only the second one did.
        pairs: all cases.
        z: quantile of the normal distribution.

    Returns:
        Low and high end of the first rate minus the second one.

    Raises:
        ValueError: unless first and second are at least 0, and together at most `pairs` > 0.
    """
    if first < 0 or second < 0 or first + second > pairs or pairs == 0:
        raise ValueError(
            f'{first} and {second} of {pairs} pairs; expected two counts of 0 or more that '
            'are no more than all, of some'
        )
    first_more, second_more, total = first + 0.5, second + 0.5, pairs + 2.0
    gain = (first_more - second_more) / total
    half = z * math.sqrt(first_more + second_more - total * gain * gain) / total
    return max(-1.0, gain - half), min(1.0, gain + half)
