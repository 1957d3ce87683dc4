"""What `flashrt rollout --suite NAME` runs: the fifty tasks, their words, the shared scenes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from ..envs.fifty import GROUPS, texts
from ..envs.make import scene_class
from ..envs.registration import FIFTY, SCENES, environment_name
from ..errors import unknown
from .evaluation import Goal, Task
from .intervals import wilson

SUITES = ('mt50', 'mt50-held-out', 'mt50-wrong', 'scenes', 'sequences', 'interrupts')
_INTERRUPT = (10, 60)  # ticks after which a subgoal is dropped in mid-motion


def suite_tasks(name: str) -> list[Task]:
    """The tasks of a suite.

    'mt50': each task as MetaWorld starts it, in its canonical words. 'mt50-held-out': in words
    kept out of training. 'mt50-wrong': in another task's words, a control. 'scenes': each skill of
    the scenes with several subgoals, from its own start and right after another one. 'sequences':
    every ordered pair of subgoals. 'interrupts': the same, the first one dropped in mid-motion.

    Raises:
        SimulationError: for an unknown suite.
    """
    if name not in SUITES:
        raise unknown('suite', name, SUITES)
    if name.startswith('mt50'):
        return [task for which in FIFTY for task in _fifty(which, name)]
    tasks = []
    for environment in SCENES:
        subgoals = scene_class(environment).SUBGOALS
        goals = {text: Goal(text, text) for text in subgoals}
        if name == 'scenes':
            tasks += [
                Task(environment, (goal,), start)
                for start in ('standard', 'after')
                for goal in goals.values()
            ]
        else:
            tasks += [
                Task(environment, pair, interrupt=_INTERRUPT if name == 'interrupts' else None)
                for pair in itertools.permutations(goals.values(), 2)
            ]
    return tasks


def _fifty(which: str, name: str) -> list[Task]:
    entry = texts()[which]
    words = [entry['text']]
    if name == 'mt50-held-out':
        words = list(entry['held_out'])
    elif name == 'mt50-wrong':
        words = [texts()[FIFTY[(FIFTY.index(which) + 1) % len(FIFTY)]]['text']]
    control = name == 'mt50-wrong'
    return [Task(environment_name(which), (Goal(entry['text'], text, control),)) for text in words]


def groups(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mean success of the published difficulty groups and of all fifty tasks.

    Args:
        rows: of `summarise`, those of other environments are left out.

    Returns:
        One row a group and one for all: the mean of the tasks' rates, as published, and the 95 %
        interval of the episodes taken together.
    """
    found = []
    of = {environment_name(task): texts()[task]['group'] for task in FIFTY}
    for group in (*GROUPS, 'all'):
        mine = [row for row in rows if group in (of.get(row['environment']), 'all')]
        mine = [row for row in mine if row['environment'] in of]
        if not mine:
            continue
        episodes = sum(row['episodes'] for row in mine)
        low, high = wilson(sum(row['successes'] for row in mine), episodes)
        rate = sum(row['rate'] for row in mine) / len(mine)
        found.append({
            'group': group, 'tasks': len({row['environment'] for row in mine}),
            'episodes': episodes, 'rate': rate, 'low': low, 'high': high,
        })  # fmt: skip
    return found


def group_table(rows: Sequence[dict[str, Any]]) -> str:
    """`groups` for people."""
    lines = [f'{"group":<10}  tasks  episodes   success    95 % interval']
    lines += [
        f'{row["group"]:<10}  {row["tasks"]:>5}  {row["episodes"]:>8}   {row["rate"]:7.1%}'
        f'  {row["low"]:6.1%} to {row["high"]:6.1%}'
        for row in rows
    ]
    return '\n'.join(lines)
