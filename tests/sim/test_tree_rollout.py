"""The command `flashrt tree`: honest sums, a run that goes on where it stopped, a picture."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import asdict

import pytest

pytest.importorskip('metaworld')
pytest.importorskip('torch')

from flashrt_ros import cli
from flashrt_sim.rollout.intervals import paired
from flashrt_sim.tree.picture import draw
from flashrt_sim.tree.report import summarise, table
from flashrt_sim.tree.rollouts import TreeResult, Whole, as_result
from flashrt_sim.tree.search import Fork, Path, Search

pytestmark = pytest.mark.xdist_group('tree')

DRAWER, REACH = 'flashrt/MT50-drawer-open-v0', 'flashrt/MT50-reach-v0'
BOTH = 'drawer-open,reach'


def result(number, tree, whole, task='a'):
    """A result: steps of a successful tree or None, ticks of whole episodes and their success."""
    forks = (Fork(0, 32, (1.0, 2.5), 1, 99), Fork(32, 32, (2.0, 1.0), 0, None))
    path = Path(tree is not None, 40, tree or 2000, forks, 'd1')
    ticks, success = whole
    return TreeResult(REACH, task, 'standard', number, 5, path, Whole(success, sum(ticks), ticks))


RESULTS = [
    result(0, 100, ((60,), True)),
    result(1, 900, ((500, 80), True)),
    result(2, 300, ((500,) * 4, False)),
    result(3, None, ((500, 500, 500, 90), True), 'b'),
]


def test_sums(capsys):
    """Plain, whole and tree are counted on the same starts; gains are differences of those."""
    summary = summarise(RESULTS, Search(), 500)
    everything = summary['all']
    assert [everything[name]['successes'] for name in ('plain', 'whole', 'tree')] == [1, 3, 3]
    assert everything['tree']['mean_steps'] == (100 + 900 + 300 + 2000) / 4
    assert [row['tree']['successes'] for row in summary['tasks']] == [3, 0]
    gain = summary['gain']
    assert gain['over_whole']['gain'] == 0 and gain['over_plain']['gain'] == 0.5
    assert (gain['over_whole']['only_tree'], gain['over_whole']['only_other']) == (1, 1)
    assert summary['within'] == [
        {'steps': 250, 'tree': 1, 'whole': 1},
        {'steps': 500, 'tree': 2, 'whole': 1},
        {'steps': 1000, 'tree': 3, 'whole': 2},
        {'steps': 2000, 'tree': 3, 'whole': 3},
    ]
    text = table(summary)
    assert 'gain over one plain episode: +50.0 points' in text and '3/4' in text


def test_without_whole_episodes_nothing_is_compared():
    """No gain is invented where nothing was run beside the trees."""
    alone = [TreeResult(**{**vars(r), 'whole': None}) for r in RESULTS]
    summary = summarise(alone, Search(), 500)
    assert set(summary) == {'budget', 'tasks', 'all'} and 'gain' not in table(summary)


def test_results_survive_json():
    """What is written while a run goes on is what is read when it goes on later."""
    for each in RESULTS:
        assert as_result(json.loads(json.dumps(asdict(each)))) == each


def test_the_paired_interval_covers():
    """Exact coverage over all outcomes of 40 pairs is near 95 % for very different rates."""
    pairs = 40
    for first, second in ((0.3, 0.1), (0.05, 0.05), (0.5, 0.2), (0.02, 0.2)):
        covered = 0.0
        for a, b in itertools.product(range(pairs + 1), repeat=2):
            if a + b > pairs:
                continue
            rest = pairs - a - b
            ways = math.factorial(pairs) / (
                math.factorial(a) * math.factorial(b) * math.factorial(rest)
            )
            low, high = paired(a, b, pairs)
            weight = ways * first**a * second**b * (1 - first - second) ** rest
            covered += weight * (low <= first - second <= high)
        assert 0.93 < covered < 0.99
    assert paired(3, 9, 50) == tuple(-end for end in reversed(paired(9, 3, 50)))
    for wrong in ((-1, 0, 5), (3, 3, 5), (0, 0, 0)):
        with pytest.raises(ValueError, match='two counts'):
            paired(*wrong)


def command(tiny_policy, path, tasks, *more):
    """Arguments of a run that takes seconds."""
    return [
        'tree', '--tasks', tasks, '--branches', '2', '--every', '8', '--limit', '16', '--policy',
        str(tiny_policy), '--workers', '1', '--json', str(path), *more,
    ]  # fmt: skip


def test_a_stopped_run_goes_on(tiny_policy, tmp_path, capsys):
    """What stands in the file beside the report is not run again, and the report is the same."""
    whole, stopped = tmp_path / 'whole.json', tmp_path / 'stopped.json'
    assert cli.main(command(tiny_policy, whole, BOTH, '--episodes', '2')) == 0
    report = json.loads(whole.read_text())
    assert [(r['environment'], r['episode']) for r in report['starts']] == [
        (REACH, 0), (REACH, 1), (DRAWER, 0), (DRAWER, 1),
    ]  # fmt: skip
    settings = {
        **report['policy'], **report['search'], 'seed': 0, 'limit': 16, 'compare': True,
    }  # fmt: skip
    first = {**report['starts'][0], 'seed': 123}  # to be recognised afterwards
    lines = [json.dumps(settings, sort_keys=True), json.dumps(first), '{"cut short']
    (tmp_path / 'stopped.json.part').write_text('\n'.join(lines))
    assert cli.main(command(tiny_policy, stopped, BOTH, '--episodes', '2')) == 0
    again = json.loads(stopped.read_text())
    assert again['starts'] == [first, *report['starts'][1:]]
    assert not (tmp_path / 'stopped.json.part').exists()
    assert 'gain over whole episodes' in capsys.readouterr().out


def test_picture_of_the_first_tree(tiny_policy, tmp_path):
    """Branches and kept path are drawn; the same tree gives the same file."""
    path = tmp_path / 'tree.svg'
    code = cli.main(
        command(tiny_policy, tmp_path / 'a.json', 'reach', '--episodes', '1', '--no-compare')
        + ['--picture', str(path)]
    )
    assert code == 0 and path.read_text().count('<path') > 4
    draw(RESULTS[0], tmp_path / 'one.svg')
    draw(RESULTS[0], tmp_path / 'two.svg')
    one = (tmp_path / 'one.svg').read_bytes()
    assert one == (tmp_path / 'two.svg').read_bytes()
    draw(RESULTS[3], tmp_path / 'two.svg')
    assert one != (tmp_path / 'two.svg').read_bytes()


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (['--tasks', 'worst:0'], 'worst:1 to'),
        (['--report', 'nowhere.json'], 'nowhere.json'),
        (['--tasks', 'rech'], "did you mean 'reach'"),
        (['--env', 'flashrt/MT50-rech-v0'], "did you mean 'flashrt/MT50-reach-v0'"),
        (['--env', REACH, '--every', '4'], 'branch every 8 ticks'),
        (['--env', REACH, '--judge', 'luck'], 'module:function'),
        (['--env', REACH, '--episodes', '0'], 'both start at 1'),
        (['--env', REACH, '--json', 'no/such/folder/x.json'], 'can be written'),
        (['--env', REACH, '--limit', '0'], 'one tick'),
    ],
)
def test_wrong_input_is_exit_code_2(arguments, message, tiny_policy, capsys):
    """One line on standard error, no traceback, nothing run."""
    assert cli.main(['tree', '--policy', str(tiny_policy), '--workers', '1', *arguments]) == 2
    error = capsys.readouterr().err.strip()
    assert message in error and len(error.splitlines()) == 1
