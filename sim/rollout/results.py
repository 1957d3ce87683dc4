"""What came out of a rollout, as files: one JSON object, and a Parquet table of the episodes.

The same rollout gives the same bytes, whatever engine and workers it ran on.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..data.arrow import load_arrow
from .evaluation import Result, Task, as_json, summarise
from .station import Deployment


def write_json(
    path: Path, deployment: Deployment, seed: int, tasks: Sequence[Task], results: Sequence[Result]
) -> None:
    """Everything, in one object: settings, tasks, a summary row a task, and every episode."""
    ordered = in_order(results)
    report = _settings(deployment, seed, tasks) | {
        'summary': summarise(ordered),
        'episodes': [as_json(result) for result in ordered],
    }
    text = json.dumps(report, indent=1, ensure_ascii=False) + '\n'
    _put(path, lambda temporary: temporary.write_text(text, 'utf-8'))


def write_parquet(
    path: Path, deployment: Deployment, seed: int, tasks: Sequence[Task], results: Sequence[Result]
) -> None:
    """One row an episode, with the columns of `Result`; settings and tasks as metadata.

    Raises:
        SimulationError: pyarrow is missing.
    """
    pyarrow, parquet = load_arrow()
    text, whole, flag = pyarrow.string(), pyarrow.int64(), pyarrow.bool_()
    stage = pyarrow.struct([
        ('subgoal', text), ('text', text), ('success', flag), ('ticks', whole),
    ])  # fmt: skip
    schema = pyarrow.schema(
        [
            *((name, text) for name in ('environment', 'task', 'start')),
            *((name, whole) for name in ('episode', 'seed')),
            ('success', flag),
            ('ticks', whole),
            ('stages', pyarrow.list_(stage)),
            *((name, whole) for name in ('inferences', 'held', 'refused')),
        ],
        metadata={'flashrt': json.dumps(_settings(deployment, seed, tasks), ensure_ascii=False)},
    )
    rows = [as_json(result) for result in in_order(results)]
    table = pyarrow.Table.from_pylist(rows, schema=schema)
    _put(path, lambda temporary: parquet.write_table(table, temporary))


def in_order(results: Sequence[Result]) -> list[Result]:
    """By environment, task, start and number, however they came in."""
    return sorted(results, key=lambda r: (r.environment, r.task, r.start, r.episode))


def _settings(deployment: Deployment, seed: int, tasks: Sequence[Task]) -> dict[str, Any]:
    return {
        'environments': list(dict.fromkeys(task.environment for task in tasks)),
        'policy': asdict(deployment),
        'seed': seed,
        'tasks': [asdict(task) | {'name': task.name} for task in tasks],
    }


def _put(path: Path, write: Callable[[Path], object]) -> None:
    """Whole or not at all: written beside its place, then moved there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f'.{path.name}.{os.getpid()}')
    write(temporary)
    os.replace(temporary, path)
