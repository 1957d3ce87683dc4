"""How much better a chunk turned out than expected: returns, advantages, and what is called good.

An episode earns -1 / limit for every tick, and -1 more if it fails: an expected return tells how
likely success is, and how far (arXiv 2511.14759, in units of an episode's limit). Advantages are
Schulman et al.'s (arXiv 1506.02438): with a trace of 1 what really followed minus what was
expected; below, expectations take the place of what lies far ahead.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from flashrt_policies.flow_vla.advantage import BAD, GOOD

Floats = NDArray[np.float64]
WORST = -2.0  # least return: failed after all ticks


def returns(seen: NDArray[np.integer], ticks: int, success: bool, limit: int) -> Floats:
    """Return what an episode still earned from each picture on, [F], from `WORST` to 0.

    Args:
        seen: tick of each picture, [F], increasing.
        ticks: of the whole episode.
        success: how it ended.
        limit: ticks after which it would have failed.
    """
    return -(ticks - np.asarray(seen, np.float64)) / limit - (not success)


def advantages(
    values: Floats,
    seen: NDArray[np.integer],
    ticks: int,
    success: bool,
    limit: int,
    trace: float,
) -> Floats:
    """Return the advantage of what was done from each picture on, [F].

    Args:
        values: expected return at each picture, [F].
        seen: see `returns`.
        ticks: see `returns`.
        success: see `returns`.
        limit: see `returns`.
        trace: weight that a surprise loses with every tick that it lies ahead, 0 to 1.
    """
    steps = np.diff(np.append(seen, ticks)).astype(np.float64)  # ticks to the next picture
    earned = -steps / limit
    earned[-1] -= not success
    surprise = earned + np.append(values[1:], 0.0) - values
    found = np.zeros(len(values))
    ahead = 0.0
    for i in reversed(range(len(values))):
        found[i] = ahead = surprise[i] + trace ** steps[i] * ahead
    return found


def labels(advantage: Floats, task: NDArray[np.integer], good: float) -> NDArray[np.int64]:
    """Return `GOOD` for the share `good` of each task's chunks with the greatest advantage.

    Args:
        advantage: of each chunk, [F].
        task: of each chunk, [F]; what is easy in one task is hard in another.
        good: 0 to 1.

    Returns:
        `GOOD` or `BAD` for each chunk, int64 [F].
    """
    found = np.full(len(advantage), BAD, np.int64)
    for which in np.unique(task):
        mine = task == which
        found[mine & (advantage > np.quantile(advantage[mine], 1 - good))] = GOOD
    return found
