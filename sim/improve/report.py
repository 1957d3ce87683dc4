"""What came out of an improvement: one JSON object, one picture, one table."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flashrt_policies.flow_vla.advantage import GOOD
from flashrt_policies.recipes import plain
from flashrt_policies.training.value import calibration

from ..rollout.evaluation import Result, summarise
from ..rollout.intervals import paired, wilson
from .data import Judged
from .recipe import Improvement


@dataclass(frozen=True)
class Round:
    """One round: what was collected, what was thought of it, how the next policy did."""

    collected: Sequence[Result]
    judged: Judged
    after: Sequence[Result]


def write(
    out: Path,
    recipe: Improvement,
    policy: str,
    before: Sequence[Result],
    rounds: Sequence[Round],
    controls: Mapping[str, Sequence[Result]],
) -> dict[str, Any]:
    """Write ``improvement.json`` and ``improvement.png`` to `out`; return what the first holds."""
    after = rounds[-1].after
    report = {
        'policy': policy,
        'recipe': plain(recipe),
        'before': _counted(before),
        'after': _counted(after),
        'change': change(before, after),
        'unsaid': _counted(controls['unsaid']),
        'said': change(controls['unsaid'], after),
        'others': {
            'before': _counted(controls['others before']),
            'after': _counted(controls['others after']),
            'change': change(controls['others before'], controls['others after']),
        },
        'tasks': [
            row | {'after': other, 'change': change(_of(before, row), _of(after, row))}
            for row, other in zip(summarise(before), summarise(after), strict=True)
        ],
        'rounds': [_round(each) for each in rounds],
    }
    path = out / 'improvement.json'
    temporary = path.with_suffix('.part')
    temporary.write_text(json.dumps(report, indent=1, ensure_ascii=False) + '\n', 'utf-8')
    os.replace(temporary, path)
    draw(out / 'improvement.png', report)
    return report


def change(before: Sequence[Result], after: Sequence[Result]) -> dict[str, Any] | None:
    """How much more of the same episodes succeed, with its 95 % interval; None where none are."""
    known = {(each.key, each.seed): each.success for each in before}
    keys = [((each.key, each.seed), each.success) for each in after]
    both = [(known[key], success) for key, success in keys if key in known]
    if not both:
        return None
    won = sum(now and not then for then, now in both)
    lost = sum(then and not now for then, now in both)
    low, high = paired(won, lost, len(both))
    return {
        'episodes': len(both), 'won': won, 'lost': lost, 'gain': (won - lost) / len(both),
        'low': low, 'high': high,
    }  # fmt: skip


def table(report: Mapping[str, Any]) -> str:
    """The report for people."""
    lines = [f'{"task":<24} {"before":>18} {"after":>18} {"change":>24}']
    rows = [
        (row['environment'].removeprefix('flashrt/MT50-').removesuffix('-v0'), row,
         row['after'], row['change'])
        for row in report['tasks']
    ]  # fmt: skip
    rows.append(('all of these', report['before'], report['after'], report['change']))
    if report['unsaid']:
        rows.append(('  not told to be good', None, report['unsaid'], None))
    others = report['others']
    if others['before']:
        rows.append(('other tasks', others['before'], others['after'], others['change']))
    for name, then, now, moved in rows:
        lines.append(f'{name:<24} {_cell(then):>18} {_cell(now):>18} {_moved(moved):>24}')
    return '\n'.join(lines)


def _cell(row: Mapping[str, Any] | None) -> str:
    return f'{row["successes"]}/{row["episodes"]} {row["rate"]:.1%}' if row else ''


def _moved(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return ''
    gain, low, high = (100 * row[name] for name in ('gain', 'low', 'high'))
    return f'{gain:+.1f} ({low:+.1f} to {high:+.1f})'


def _counted(results: Sequence[Result]) -> dict[str, Any] | None:
    if not results:
        return None
    won = sum(each.success for each in results)
    low, high = wilson(won, len(results))
    return {
        'episodes': len(results), 'successes': won, 'rate': won / len(results), 'low': low,
        'high': high,
    }  # fmt: skip


def _of(results: Sequence[Result], row: Mapping[str, Any]) -> list[Result]:
    return [each for each in results if each.environment == row['environment']]


def _round(each: Round) -> dict[str, Any]:
    judged = each.judged
    moved = judged.expected.std() > 0 and judged.returned.std() > 0
    return {
        'collected': summarise(each.collected),
        'pictures': len(judged.expected),
        'good': float((judged.indicator == GOOD).mean()),
        'value correlation': (
            float(np.corrcoef(judged.expected, judged.returned)[0, 1]) if moved else None
        ),
        'value calibration': calibration(judged.expected, judged.returned),
        'after': _counted(each.after),
    }


def draw(path: Path, report: Mapping[str, Any]) -> None:
    """Draw success over the rounds, success of each task, and how true the value function is."""
    import matplotlib

    matplotlib.use('Agg')
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(14, 4.2), layout='constrained')
    stages = [report['before'], *(each['after'] for each in report['rounds'])]
    _bars(axes[0], range(len(stages)), stages, label='tasks to be improved', marker='o')
    others = report['others']
    if others['before']:
        ends = [others['before'], others['after']]
        _bars(axes[0], [0, len(stages) - 1], ends, label='other tasks', marker='s')
    axes[0].set(
        xlabel='rounds', ylabel='success', ylim=(0, 1.02), xticks=range(len(stages)),
        title='success, 95 % intervals',
    )  # fmt: skip
    axes[0].legend()
    rows = report['tasks']
    place = np.arange(len(rows))
    _bars(axes[1], place - 0.1, rows, label='before', marker='o', linestyle='none')
    after = [row['after'] for row in rows]
    _bars(axes[1], place + 0.1, after, label='after', marker='o', linestyle='none')
    names = [row['environment'].split('MT50-')[-1].removesuffix('-v0') for row in rows]
    axes[1].set(ylim=(-0.02, 1.02), title='each task, 95 % intervals')
    axes[1].set_xticks(place, names, rotation=20, ha='right')
    axes[1].legend()
    for number, each in enumerate(report['rounds']):
        points = each['value calibration']
        axes[2].plot(
            [p['expected'] for p in points], [p['returned'] for p in points], marker='o',
            label=f'round {number + 1}',
        )  # fmt: skip
    axes[2].plot([-2, 0], [-2, 0], color='grey', linewidth=0.8)
    axes[2].set(
        xlabel='expected return', ylabel='mean return', title='value of episodes it never saw'
    )
    axes[2].legend()
    for axis in axes:
        axis.grid(alpha=0.3)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _bars(axis: Any, x: Any, rows: Sequence[Mapping[str, Any]], **style: Any) -> None:
    rates = [row['rate'] for row in rows]
    below = [max(0.0, row['rate'] - row['low']) for row in rows]
    above = [max(0.0, row['high'] - row['rate']) for row in rows]
    axis.errorbar(x, rates, (below, above), capsize=3, **style)
