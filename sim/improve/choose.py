"""Which tasks are to be improved: the program reads it off a report, nobody picks."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

from ..errors import SimulationError, unknown
from ..rollout.evaluation import Task
from ..rollout.suite import suite_tasks


def choose(tasks: str, report: Path, limit: int) -> tuple[list[Task], list[Task]]:
    """The tasks that `tasks` asks for, the worst first, and all others of the report.

    Args:
        tasks: 'worst:N' of the report, or names such as 'soccer,lever-pull'.
        report: of `flashrt rollout --suite mt50 --json`.
        limit: ticks of an episode.

    Raises:
        SimulationError: no such report or task, or fewer tasks than asked for.
    """
    rates = _rates(report)
    known = {task.environment: task for task in suite_tasks('mt50')}
    # Of equally bad ones the first by name; the sort keeps their order.
    ranked = sorted((name for name in known if name in rates), key=lambda name: rates[name])
    short = {_short(name): name for name in ranked}
    worst = re.fullmatch(r'worst:(\d+)', tasks)
    if worst:
        count = int(worst[1])
        if not 0 < count <= len(ranked):
            raise SimulationError(
                f'{tasks} of the {len(ranked)} tasks in {report}; want worst:1 to '
                f'worst:{len(ranked)}'
            )
        names = ranked[:count]
    else:
        asked = [name.strip() for name in tasks.split(',')]
        for name in asked:
            if name not in short:
                raise unknown('task', name, short)
        names = [name for name in ranked if _short(name) in asked]

    def limited(names: list[str]) -> list[Task]:
        return [dataclasses.replace(known[name], limit=limit) for name in names]

    return limited(names), limited([name for name in known if name in rates and name not in names])


def _short(environment: str) -> str:
    return environment.removeprefix('flashrt/MT50-').removesuffix('-v0')


def _rates(report: Path) -> dict[str, float]:
    """Success of each environment in a report."""
    try:
        rows = json.loads(report.read_text('utf-8'))['summary']
        return {str(row['environment']): float(row['rate']) for row in rows}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SimulationError(
            f'{report} tells no success of tasks ({error}); want the file that flashrt rollout '
            '--suite mt50 --json writes'
        ) from None
