"""What trees are worth beside whole episodes at equal simulator steps: numbers, table, report."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..rollout.evaluation import Task
from ..rollout.intervals import paired, wilson
from ..rollout.station import Deployment
from .rollouts import TreeResult
from .search import Search

_PARTS = (8, 4, 2, 1)  # success is also given after an eighth, a quarter and a half of the budget


def summarise(results: Sequence[TreeResult], search: Search, limit: int) -> dict[str, Any]:
    """Rates of each task and of all, and what the tree gains; see `docs/trees.md` for the keys.

    Args:
        results: of trees, all with whole episodes beside them or all without.
        search: how the trees grew.
        limit: ticks of an episode.
    """
    rows = []
    for key in dict.fromkeys(result.key for result in results):
        mine = [result for result in results if result.key == key]
        one = mine[0]
        rows.append(
            {'environment': one.environment, 'task': one.task, 'start': one.start} | _rates(mine)
        )
    budget = search.steps(limit)
    summary = {'budget': budget, 'tasks': rows, 'all': _rates(results)}
    if any(r.whole is None for r in results):
        return summary
    return summary | {
        'gain': {
            'over_whole': _gain([(r.tree.success, _won(r)) for r in results]),
            'over_plain': _gain([(r.tree.success, r.plain) for r in results]),
        },
        'within': [_within(results, budget // part) for part in _PARTS],
    }


def _rates(results: Sequence[TreeResult]) -> dict[str, Any]:
    """Successes, 95 % intervals and mean simulator steps of one group."""
    found: dict[str, Any] = {'starts': len(results)}
    trees = [r.tree for r in results]
    found['tree'] = _rate([t.success for t in trees], [t.steps for t in trees])
    wholes = [r.whole for r in results if r.whole is not None]
    if len(wholes) == len(results):
        found['whole'] = _rate([w.success for w in wholes], [w.steps for w in wholes])
        found['plain'] = _rate([r.plain for r in results], [w.ticks[0] for w in wholes])
    return found


def _rate(won: Sequence[bool], steps: Sequence[int]) -> dict[str, Any]:
    low, high = wilson(sum(won), len(won))
    return {
        'successes': sum(won),
        'rate': sum(won) / len(won),
        'low': low,
        'high': high,
        'mean_steps': sum(steps) / len(steps),
    }


def _won(result: TreeResult) -> bool:
    return result.whole is not None and result.whole.success


def _gain(pairs: Sequence[tuple[bool, bool]]) -> dict[str, Any]:
    """The first ones' rate minus the second ones', on the same starts."""
    first = sum(a and not b for a, b in pairs)
    second = sum(b and not a for a, b in pairs)
    low, high = paired(first, second, len(pairs))
    return {
        'gain': (first - second) / len(pairs),
        'low': low,
        'high': high,
        'only_tree': first,
        'only_other': second,
    }


def _within(results: Sequence[TreeResult], steps: int) -> dict[str, Any]:
    """How many had succeeded when `steps` simulator steps were spent."""
    tree = sum(r.tree.success and r.tree.steps <= steps for r in results)
    whole = sum(_won(r) and r.whole is not None and r.whole.steps <= steps for r in results)
    return {'steps': steps, 'tree': tree, 'whole': whole}


def table(summary: dict[str, Any]) -> str:
    """The summary for people."""
    rows = [*summary['tasks'], {'task': 'all', **summary['all']}]
    width = max(len(row['task']) for row in rows)
    methods = [name for name in ('plain', 'whole', 'tree') if name in summary['all']]
    heads = ''.join(f'{name:>22}' for name in methods)
    lines = [f'{"task":<{width}}{heads}   mean steps of a tree']
    for row in rows:
        cells = ''.join(f'{_cell(row[name], row["starts"]):>22}' for name in methods)
        lines.append(f'{row["task"]:<{width}}{cells}   {row["tree"]["mean_steps"]:.0f}')
    if 'gain' in summary:
        lines += ['', f'{"simulator steps":>16}{"tree":>8}{"whole":>8}']
        lines += [
            f'{row["steps"]:>16}{row["tree"]:>8}{row["whole"]:>8}' for row in summary['within']
        ]
        lines.append('')
        for name, other in (('whole', 'whole episodes'), ('plain', 'one plain episode')):
            gain = summary['gain'][f'over_{name}']
            lines.append(
                f'gain over {other}: {100 * gain["gain"]:+.1f} points '
                f'(95 %: {100 * gain["low"]:+.1f} to {100 * gain["high"]:+.1f})'
            )
    return '\n'.join(lines)


def _cell(rate: dict[str, Any], starts: int) -> str:
    score = f'{rate["successes"]}/{starts}'
    return f'{score} ({100 * rate["low"]:.0f} to {100 * rate["high"]:.0f} %)'


def write_report(
    path: Path,
    deployment: Deployment,
    search: Search,
    seed: int,
    tasks: Sequence[Task],
    results: Sequence[TreeResult],
) -> None:
    """Write everything that came out as one JSON object."""
    order = {task.key: index for index, task in enumerate(tasks)}
    ordered = sorted(results, key=lambda r: (order[r.key], r.episode))
    report = {
        'policy': asdict(deployment),
        'search': asdict(search),
        'seed': seed,
        'tasks': [asdict(task) | {'name': task.name} for task in tasks],
        'summary': summarise(ordered, search, tasks[0].limit),
        'starts': [asdict(result) for result in ordered],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f'.{path.name}.{os.getpid()}')
    temporary.write_text(json.dumps(report, indent=1, ensure_ascii=False) + '\n', 'utf-8')
    os.replace(temporary, path)
