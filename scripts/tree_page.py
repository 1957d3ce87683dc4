"""Write the tables of docs/trees.md, and its picture, from docs/results/tree.json."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def task_lines(summary: dict[str, Any]) -> list[str]:
    """The table of the tasks and of all together."""
    lines = [
        '| task | starts | one plain episode | whole episodes | tree | steps: whole | tree |',
        '|---|---|---|---|---|---|---|',
    ]
    for row in [*summary['tasks'], {'environment': 'all', **summary['all']}]:
        name = row['environment'].removeprefix('flashrt/MT50-').removesuffix('-v0')
        cells = [_cell(row[method]) for method in ('plain', 'whole', 'tree')]
        steps = [f'{row[method]["mean_steps"]:.0f}' for method in ('whole', 'tree')]
        lines.append(f'| {" | ".join([name, str(row["starts"]), *cells, *steps])} |')
    return lines


def gain_lines(summary: dict[str, Any]) -> list[str]:
    """The table of what the tree gains on the same starts."""
    lines = [
        '| the tree against | gain in success | 95 % interval | tree alone | the other alone |',
        '|---|---|---|---|---|',
    ]
    for name, other in (('plain', 'one plain episode'), ('whole', 'whole episodes')):
        row = summary['gain'][f'over_{name}']
        lines.append(
            f'| {other} | {100 * row["gain"]:+.1f} points | {100 * row["low"]:+.1f} to '
            f'{100 * row["high"]:+.1f} | {row["only_tree"]} | {row["only_other"]} |'
        )
    return lines


def step_lines(summary: dict[str, Any]) -> list[str]:
    """The table of successes after so many steps."""
    steps = ' | '.join(str(row['steps']) for row in summary['within'])
    lines = [f'| steps spent on a start | {steps} |', '|---' * (len(summary['within']) + 1) + '|']
    for name, label in (('whole', 'whole episodes'), ('tree', 'tree')):
        counts = ' | '.join(str(row[name]) for row in summary['within'])
        lines.append(f'| successes, {label} | {counts} |')
    return lines


def _cell(rate: dict[str, Any]) -> str:
    return (
        f'{rate["successes"]} ({100 * rate["rate"]:.0f} %; '
        f'{100 * rate["low"]:.0f} to {100 * rate["high"]:.0f})'
    )


def filled(page: str, summary: dict[str, Any]) -> str:
    """`page` with its tables as `summary` says."""
    tables = {'tasks': task_lines, 'gains': gain_lines, 'steps': step_lines}
    for name, lines in tables.items():
        table = '\n'.join((f'<!-- {name} begin -->', *lines(summary), f'<!-- {name} end -->'))
        page = re.sub(
            rf'<!-- {name} begin -->.*?<!-- {name} end -->', table, page, flags=re.DOTALL
        )
    return page


def main() -> None:
    """Read the report, write the page, draw the widest tree that got there."""
    from flashrt_sim.tree.picture import draw
    from flashrt_sim.tree.rollouts import as_result

    report = json.loads((ROOT / 'docs' / 'results' / 'tree.json').read_text('utf-8'))
    page = ROOT / 'docs' / 'trees.md'
    page.write_text(filled(page.read_text('utf-8'), report['summary']), 'utf-8')
    results = [as_result(start) for start in report['starts']]
    reached = [result for result in results if result.tree.success] or results
    widest = max(reached, key=lambda r: sum(max(f.scores) - min(f.scores) for f in r.tree.forks))
    draw(widest, ROOT / 'docs' / 'pictures' / 'tree.svg')


if __name__ == '__main__':
    main()
