"""The fifty MetaWorld tasks by name, made so that a seed decides everything."""

from __future__ import annotations

from typing import Any

import numpy as np
from metaworld.env_dict import ALL_V3_ENVIRONMENTS

TASKS: tuple[str, ...] = tuple(ALL_V3_ENVIRONMENTS)


def make_simulator(task: str, seed: int = 0) -> Any:
    """A bare MetaWorld environment, reset with `seed`, with no limit on its number of steps.

    Args:
        task: one of `TASKS`, for example 'drawer-open-v3'.
        seed: decides where the objects stand.

    Raises:
        ValueError: for an unknown task.
    """
    if task not in ALL_V3_ENVIRONMENTS:
        raise ValueError(f'unknown MetaWorld task {task!r}; expected one of {", ".join(TASKS)}')
    return prepare(ALL_V3_ENVIRONMENTS[task](), seed)


def prepare(simulator: Any, seed: int) -> Any:
    """Make a bare MetaWorld environment ready to be stepped, reset with `seed`."""
    simulator._partially_observable = False  # the goal belongs to the observation
    simulator._set_task_called = True
    # MetaWorld raises at its own limit; how long an episode lasts is decided outside.
    simulator.max_path_length = np.iinfo(np.int64).max
    simulator.success = False  # by the task's own criterion; a step of a scene sets it
    reseed(simulator, seed)
    simulator.reset()
    return simulator


def reseed(simulator: Any, seed: int) -> None:
    """Make the next `reset()` draw from `seed`; MetaWorld ignores `reset(seed=)`."""
    simulator.seeded_rand_vec = True
    simulator._freeze_rand_vec = False
    simulator.seed(seed)
