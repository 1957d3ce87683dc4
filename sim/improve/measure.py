"""Rollouts that are made once: a stopped one goes on, a finished one is read from its report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tqdm import tqdm

from ..errors import SimulationError
from ..rollout.evaluation import Result, Stage, Task
from ..rollout.progress import Progress
from ..rollout.results import write_json
from ..rollout.run import Deployment, Outputs, roll_out


def measured(
    path: Path,
    deployment: Deployment,
    tasks: Sequence[Task],
    episodes: int,
    *,
    seed: int,
    workers: int,
    record: Path | None = None,
) -> list[Result]:
    """Results of `episodes` episodes of every task; none if nothing is asked.

    Args:
        path: of the report.
        deployment: policy and timing.
        tasks: what is asked.
        episodes: of each task.
        seed: chooses the seeds of the episodes.
        workers: processes.
        record: folder for what the policy saw and did.

    Raises:
        FlashrtError: see `roll_out`.
    """
    if not tasks or not episodes:
        return []
    if path.is_file():
        return read(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    settings = {**asdict(deployment), 'seed': seed, 'limit': tasks[0].limit}
    progress = Progress(path, settings)
    results = progress.results_of(tasks, episodes)
    finished = roll_out(
        deployment,
        tasks,
        episodes,
        seed=seed,
        workers=workers,
        outputs=Outputs(record=record),
        done={(result.key, result.episode) for result in results},
    )
    total, name = len(tasks) * episodes, path.stem
    with tqdm(finished, total=total, initial=len(results), unit='episode', desc=name) as bar:
        for result in bar:
            results.append(result)
            progress.add(result)
            won = sum(each.success for each in results)
            bar.set_postfix_str(f'{won}/{len(results)} succeeded', refresh=False)
    write_json(path, deployment, seed, tasks, results)
    progress.finish()
    return read(path)


def read(path: Path) -> list[Result]:
    """The episodes of a report, in their order.

    Raises:
        SimulationError: the file is no report.
    """
    try:
        found = []
        for values in json.loads(path.read_text('utf-8'))['episodes']:
            stages = tuple(Stage(**stage) for stage in values.pop('stages'))
            found.append(Result(stages=stages, **values))
        return found
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SimulationError(f'{path} is no report of a rollout ({error}); remove it') from None
