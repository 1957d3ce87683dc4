"""Rollouts: honest numbers, the same for any number of workers, and errors of one line."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip('metaworld')
pytest.importorskip('torch')

from flashrt_ros import cli
from flashrt_sim.errors import SimulationError
from flashrt_sim.rollout.evaluation import Goal, Result, Task, find_goal, summarise, table
from flashrt_sim.rollout.intervals import wilson
from flashrt_sim.rollout.play import prepare_start, run_episode

DRAWER = 'flashrt/Drawer-v0'
OPEN, CLOSE = 'open the drawer', 'close the drawer'


class Scripted:
    """Stands in for a `LiveEpisode`: the experts act, without delay."""

    def __init__(self, scene):
        self.scene = scene
        self.told = []

    def begin(self, seed, text):
        """Start of the episode."""
        self.told.append(text)

    def ask(self, subgoal, *, text):
        """Next subgoal."""
        self.scene.ask(subgoal)
        self.told.append(text)

    def tick(self):
        """One tick of the expert of the present subgoal."""
        from types import SimpleNamespace

        from flashrt_sim.envs.experts import expert_for

        info = self.scene.step_physics(expert_for(self.scene.subgoal)(self.scene.simulator))
        command = SimpleNamespace(held=False)
        return SimpleNamespace(info=info, command=command, inferred=True, refused='')


def test_expert_succeeds_and_a_lazy_one_does_not(drawer, monkeypatch):
    """The harness counts a success where there is one, and none where nothing moves."""
    task = Task(DRAWER, (Goal(OPEN, 'open drawer'),))
    result = run_episode(Scripted(drawer), task, 0, 5)
    assert result.success and result.stages[0].ticks == result.ticks < 100
    assert (result.task, result.seed) == ('open drawer', 5)
    step = drawer.step_physics
    monkeypatch.setattr(drawer, 'step_physics', lambda action: step(0 * action))
    lazy = run_episode(Scripted(drawer), Task(DRAWER, task.goals, limit=30), 0, 5)
    assert not lazy.success and lazy.ticks == 30


def test_sequence_stops_at_the_first_failure(drawer):
    """Each goal has its own limit; what comes after a failure is not asked."""
    goals = (Goal(OPEN, OPEN), Goal(CLOSE, CLOSE), Goal(OPEN, 'open drawer'))
    live = Scripted(drawer)
    result = run_episode(live, Task(DRAWER, goals), 0, 6)
    assert result.success and [stage.subgoal for stage in result.stages] == [OPEN, CLOSE, OPEN]
    assert live.told == [OPEN, CLOSE, 'open drawer']
    assert result.ticks == sum(stage.ticks for stage in result.stages) + 2 * 8
    cut = run_episode(Scripted(drawer), Task(DRAWER, goals, limit=58), 0, 6)
    assert not cut.success and len(cut.stages) < 3 and not cut.stages[-1].success


def test_start_after_another_subgoal(drawer):
    """The expert has opened the drawer, the hand is where that left it, the clock starts."""
    prepare_start(drawer, Task(DRAWER, (Goal(CLOSE, CLOSE),), start='after'), 3)
    assert drawer.drawer > 0.15 and drawer.ticks == 0 and drawer.subgoal == CLOSE
    assert drawer.proprioception()[2] < 0.15
    state = drawer.get_state()
    prepare_start(drawer, Task(DRAWER, (Goal(CLOSE, CLOSE),), start='after'), 3)
    assert (drawer.get_state() == state).all()


def test_wordings_are_found():
    """Paraphrases and held-out wordings stand for their subgoal; others are suggested."""
    assert find_goal(DRAWER, 'shut the drawer') == Goal(CLOSE, 'shut the drawer')
    with pytest.raises(SimulationError, match="did you mean 'shut the drawer'"):
        find_goal(DRAWER, 'shut drawer')


@pytest.mark.parametrize(
    ('successes', 'trials', 'low', 'high'),
    [
        (0, 10, 0.0, 0.2775),
        (10, 10, 0.7225, 1.0),
        (45, 50, 0.7864, 0.9565),
        (5, 10, 0.2366, 0.7634),
    ],
)
def test_wilson_interval(successes, trials, low, high):
    """Values as published tables give them."""
    assert wilson(successes, trials) == pytest.approx((low, high), abs=1e-4)


def test_a_control_says_what_it_is() -> None:
    """A table never passes off a wrong instruction as the right one."""
    control = Task(DRAWER, (Goal(OPEN, CLOSE, control=True),))
    assert control.name == 'open the drawer (told: close the drawer)'


def test_wilson_refuses_nonsense():
    """No trials, or more successes than trials."""
    for successes, trials in ((0, 0), (3, 2), (-1, 2)):
        with pytest.raises(ValueError, match='expected 0 to'):
            wilson(successes, trials)


def test_summary_counts():
    """One row for each task and start, rates and ticks of the successes alone."""

    def result(task, success, ticks):
        return Result(DRAWER, task, 'standard', 0, 0, success, ticks, (), 1, 0, 0)

    rows = summarise([result('a', True, 10), result('a', False, 500), result('b', False, 500)])
    assert [(r['task'], r['successes'], r['episodes']) for r in rows] == [('a', 1, 2), ('b', 0, 1)]
    assert rows[0]['rate'] == 0.5 and rows[0]['median_ticks'] == 10
    assert rows[1]['median_ticks'] is None
    assert '1/2  50.0%' in table(rows)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_command_reports_the_same_for_any_number_of_workers(tiny_policy, tmp_path, capsys):
    """One worker or two: the same episodes in the JSON, tick for tick."""
    reports = []
    for workers in ('1', '2'):
        path = tmp_path / f'{workers}.json'
        code = cli.main([
            'rollout', '--subgoal', OPEN, '--subgoal', CLOSE, '--episodes', '1', '--limit', '20',
            '--policy', str(tiny_policy), '--workers', workers, '--json', str(path),
        ])  # fmt: skip
        assert code == 0
        reports.append(json.loads(path.read_text()))
    assert reports[0] == reports[1]
    assert [e['task'] for e in reports[0]['episodes']] == [CLOSE, OPEN]
    assert reports[0]['summary'][0].keys() >= {'rate', 'low', 'high', 'episodes', 'successes'}
    assert 'open the drawer' in capsys.readouterr().out


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (['--env', 'flashrt/Drawr-v0'], "did you mean 'flashrt/Drawer-v0'"),
        (['--subgoal', 'open drawr'], "did you mean 'open drawer'"),
        (['--policy', 'no/such/folder'], 'no/such/folder'),
        (['--episodes', '0'], 'both start at 1'),
        (['--seed', '-1'], 'out of range'),
        (['--delay', '-1'], 'starts at'),
    ],
)
def test_wrong_input_is_exit_code_2(arguments, message, tiny_policy, capsys):
    """One line on standard error, no traceback, nothing run."""
    if '--policy' not in arguments:
        arguments = [*arguments, '--policy', str(tiny_policy)]
    assert cli.main(['rollout', *arguments]) == 2
    error = capsys.readouterr().err.strip()
    assert message in error and len(error.splitlines()) == 1


def test_missing_weights_are_exit_code_2(tiny_policy, tmp_path, capsys):
    """A worker that cannot load its weights says so in one line, not in a broken pool."""
    (tmp_path / 'config.json').write_text((tiny_policy / 'config.json').read_text())
    code = cli.main(['rollout', '--policy', str(tmp_path), '--episodes', '1', '--workers', '1'])
    assert code == 2
    assert 'safetensors' in capsys.readouterr().err.splitlines()[-1]


def test_help_needs_no_simulator():
    """`flashrt rollout --help` answers without loading simulator or torch."""
    code = (
        'import sys\n'
        'from flashrt_ros import cli\n'
        'try:\n'
        "    cli.main(['rollout', '--help'])\n"
        'except SystemExit:\n'
        '    pass\n'
        "print(sorted({'torch', 'mujoco', 'metaworld'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith('[]')
