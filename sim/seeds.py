"""Which seeds are for what, so that no policy is ever judged on a scene it has seen.

Demonstrations draw from [0, 1 000 000 000), evaluations from [2 000 000 000, 3 000 000 000).
"""

from __future__ import annotations

from .errors import SimulationError

_PER_RUN = 100_000
_RUNS = 10_000
_EVALUATION = 2_000_000_000


def demonstration_seed(run: int, episode: int) -> int:
    """The seed of one demonstration episode of one data set."""
    return _seed(run, episode)


def evaluation_seed(run: int, episode: int) -> int:
    """The seed of one evaluation episode of one rollout."""
    return _EVALUATION + _seed(run, episode)


def _seed(run: int, episode: int) -> int:
    if not 0 <= run < _RUNS:
        raise SimulationError(f'seed {run} is out of range; expected 0 to {_RUNS - 1}')
    if not 0 <= episode < _PER_RUN:
        raise SimulationError(f'episode {episode} is out of range; expected 0 to {_PER_RUN - 1}')
    return run * _PER_RUN + episode
