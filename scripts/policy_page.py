"""Write the tables of docs/policy.md from docs/results/mt50.json."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from flashrt_sim.envs.fifty import GROUPS
from flashrt_sim.envs.registration import FIFTY, environment_name
from flashrt_sim.rollout.suite import groups

ROOT = Path(__file__).resolve().parent.parent
# SmolVLA's published success with the same groups, percent.
PUBLISHED = dict(zip((*GROUPS, 'all'), (82.5, 41.8, 45.0, 60.0, 57.3), strict=True))


def group_lines(rows: list[dict[str, Any]]) -> list[str]:
    """The table of the difficulty groups; `rows` is the report's summary."""
    lines = [
        '| group | tasks | success | 95 % interval | SmolVLA, published |',
        '|---|---|---|---|---|',
    ]
    for row in groups(rows):
        name = 'mean of 50' if row['group'] == 'all' else row['group']
        lines.append(
            f'| {name} | {row["tasks"]} | {row["rate"]:.1%} | {row["low"]:.1%} to '
            f'{row["high"]:.1%} | {PUBLISHED[row["group"]]}% |'
        )
    return [*lines[:2], *(line.replace('%', ' %') for line in lines[2:])]


def task_lines(rows: list[dict[str, Any]]) -> list[str]:
    """The table of the fifty tasks, two beside each other."""
    lines = ['| task | success | 95 % interval | task | success | 95 % interval |']
    lines.append('|---|---|---|---|---|---|')
    of = {row['environment']: row for row in rows}
    cells = []
    for task in FIFTY:
        row = of[environment_name(task)]
        interval = f'{100 * row["low"]:.0f} to {100 * row["high"]:.0f} %'
        cells.append(f'{task} | {row["successes"]}/{row["episodes"]} | {interval}')
    half = len(cells) // 2
    return lines + [f'| {a} | {b} |' for a, b in zip(cells[:half], cells[half:], strict=True)]


def filled(page: str, rows: list[dict[str, Any]]) -> str:
    """`page` with its two tables as `rows` say."""
    for name, lines in (('groups', group_lines(rows)), ('tasks', task_lines(rows))):
        table = '\n'.join((f'<!-- {name} begin -->', *lines, f'<!-- {name} end -->'))
        page = re.sub(
            rf'<!-- {name} begin -->.*?<!-- {name} end -->', table, page, flags=re.DOTALL
        )
    return page


def main() -> None:
    """Read the report, write the page."""
    rows = json.loads((ROOT / 'docs' / 'results' / 'mt50.json').read_text('utf-8'))['summary']
    page = ROOT / 'docs' / 'policy.md'
    page.write_text(filled(page.read_text('utf-8'), rows), 'utf-8')


if __name__ == '__main__':
    main()
