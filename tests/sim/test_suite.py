"""Suites: which tasks they hold, how groups are averaged, how a stopped rollout goes on."""

from __future__ import annotations

import pytest

pytest.importorskip('metaworld')

from flashrt_sim.envs.fifty import texts
from flashrt_sim.envs.registration import FIFTY, environment_name
from flashrt_sim.errors import SimulationError
from flashrt_sim.rollout.evaluation import Goal, Result, Stage, Task, summarise
from flashrt_sim.rollout.progress import Progress
from flashrt_sim.rollout.suite import SUITES, group_table, groups, suite_tasks


def test_what_suites_hold():
    """Fifty tasks in canonical, unseen or wrong words; every skill and pair of the scenes."""
    sizes = {name: len(suite_tasks(name)) for name in SUITES}
    assert sizes == {
        'mt50': 50, 'mt50-held-out': 100, 'mt50-wrong': 50, 'scenes': 22, 'sequences': 14,
        'interrupts': 14,
    }  # fmt: skip
    trained = {w for e in texts().values() for w in (e['text'], *e['paraphrases'])}
    assert all(task.goals[0].text in trained for task in suite_tasks('mt50'))
    assert not any(task.goals[0].text in trained for task in suite_tasks('mt50-held-out'))
    for task in suite_tasks('mt50-wrong'):
        assert task.goals[0].control and task.goals[0].text != task.goals[0].subgoal
    assert len({task.key for name in SUITES for task in suite_tasks(name)}) == sum(sizes.values())
    with pytest.raises(SimulationError, match="did you mean 'mt50'"):
        suite_tasks('mt5')


def result(task, number, success):
    """A made-up result of one of the fifty tasks."""
    text = texts()[task]['text']
    stages = (Stage(text, text, success, 100),)
    return Result(
        environment_name(task), text, 'standard', number, number, success, 100, stages, 13, 0, 0
    )


def test_groups_are_means_of_tasks():
    """As published: the mean of the tasks' rates, whatever number of episodes each has."""
    found = [result('reach', n, True) for n in range(4)] + [result('button-press', 0, False)]
    found += [result('push', 0, True)]
    rows = {row['group']: row for row in groups(summarise(found))}
    assert rows['easy']['rate'] == 0.5 and rows['easy']['episodes'] == 5
    assert rows['hard']['rate'] == 1.0 and 'medium' not in rows
    assert rows['all']['rate'] == pytest.approx(2 / 3) and rows['all']['tasks'] == 3
    assert 'easy' in group_table(list(rows.values()))


def test_a_stopped_rollout_goes_on(tmp_path):
    """Finished episodes are not run again, a line cut short is, other settings are refused."""
    tasks = [t for t in suite_tasks('mt50') if t.environment == environment_name(FIFTY[0])]
    report, settings = tmp_path / 'r.json', {'policy': 'p', 'seed': 0}
    progress = Progress(report, settings)
    for number in range(3):
        progress.add(result(FIFTY[0], number, True))
    with progress.path.open('a') as file:
        file.write('{"environment": "flash')  # a kill in the middle of a line
    again = Progress(report, settings)
    assert {(r.key, r.episode) for r in again.results_of(tasks, 9)} == {
        (tasks[0].key, number) for number in range(3)
    }
    assert again.results == progress.results
    again.add(result(FIFTY[0], 3, False))
    again.add(result(FIFTY[0], 3, False))  # run by a second rollout at the same time
    assert len(Progress(report, settings).results) == 4
    with pytest.raises(SimulationError, match='other settings'):
        Progress(report, settings | {'seed': 1})
    again.finish()
    assert not list(tmp_path.iterdir())


def test_an_interrupt_needs_two_goals():
    """One goal cannot be interrupted by another."""
    with pytest.raises(SimulationError, match='needs two goals'):
        Task('flashrt/Drawer-v0', (Goal('a', 'a'),), interrupt=(5, 9))
