"""Trees judged by a learned value: it alone chooses, sees what the policy sees, and must fit."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip('metaworld')
pytest.importorskip('torch')

import torch

from flashrt_policies.checkpoint import CheckpointError
from flashrt_policies.flow_vla.policy import load_model
from flashrt_policies.registry import parse_spec
from flashrt_policies.training import value_function
from flashrt_policies.training.value_function import Fitted, ValueNetwork, ValueSizes, layers
from flashrt_ros import cli
from flashrt_sim.episode import LiveEpisode
from flashrt_sim.errors import SimulationError
from flashrt_sim.rollout.evaluation import Goal, Task
from flashrt_sim.tree import judges
from flashrt_sim.tree.search import Search, grow, replay

pytestmark = pytest.mark.xdist_group('tree')

DRAWER, REACH, TEXT = 'flashrt/MT50-drawer-open-v0', 'flashrt/MT50-reach-v0', 'open the drawer'
SEED = 2_000_700_000
TASK, SEARCH = Task(DRAWER, (Goal(TEXT, TEXT),), limit=16), Search(3, 8)


@pytest.fixture(scope='module')
def live(tiny_policy):
    """An episode with the tiny policy."""
    episode = LiveEpisode.open(DRAWER, tiny_policy, delay=0)
    yield episode
    episode.close()


def toy(folder: Path, policy: Path, sign: float, what: str = 'hand') -> Path:
    """A value function that likes the hand far to the right (`sign` 1) or to the left (-1).

    With `what` 'nothing' it likes all alike. The hand's place is the last part of a view: its
    first number of four is x. It is passed on by one hidden unit and tells the worst return from
    the best one.
    """
    config = json.loads((policy / 'config.json').read_text())
    spec = parse_spec(policy, config['spec'])
    model, digest = load_model(policy, config, spec)
    pixels = torch.zeros(1, len(spec.cameras), *spec.image_hw, 3, dtype=torch.uint8)
    rows = torch.zeros(1, spec.subgoal_length, dtype=torch.int32)
    with torch.no_grad():
        view = value_function.view(model, pixels, torch.zeros(1, spec.proprio_dim), rows)
    network = ValueNetwork(ValueSizes(view.shape[1], width=1, bins=2, folds=1))
    network.mean.zero_()
    network.spread.fill_(1.0)
    with torch.no_grad():
        network.folds[0] = layers(view.shape[1], 1, 2)
        for parameter in network.parameters():
            parameter.zero_()
        first, second, last = (network.folds[0][i] for i in (0, 2, 4))
        if what == 'hand':
            first.weight[0, -4] = 1.0
        first.bias.fill_(3.0)  # where SiLU is nearly a straight line
        second.weight.fill_(1.0)
        last.weight[:, 0] = torch.tensor([-50.0, 50.0]) * sign
        last.bias[:] = torch.tensor([50.0, -50.0]) * 2.72 * sign  # about what the unit gives
    value_function.save(folder, network, policy, Fitted(digest, (DRAWER,), 4, 300))
    return folder


def ends(live: LiveEpisode) -> list[float]:
    """Where each branch of the first boundary leaves the hand, x."""
    found: list[float] = []

    def judge(live, moments):
        found.append(float(live.scene.render_observation()['agent_pos'][0]))
        return 0.0

    grow(live, dataclasses.replace(TASK, limit=8), SEED, SEARCH, judge)
    return found


def test_a_value_changes_which_branch_is_kept(live, tiny_policy, tmp_path):
    """The one that likes the right keeps the branch that ends there, its opposite the other.

    Planted: a value that says the same of all keeps the first branch, and its kept path is the
    plain episode: so it was the value that chose.
    """
    x = ends(live)
    assert len(set(x)) == 3
    kept, digests = {}, {}
    for name, sign, what in (
        ('right', 1.0, 'hand'), ('left', -1.0, 'hand'), ('blind', 1.0, 'nothing'),
    ):  # fmt: skip
        judge = judges.load(str(toy(tmp_path / name, tiny_policy, sign, what)))
        path = grow(live, TASK, SEED, SEARCH, judge)
        assert replay(live, TASK, SEED, path.forks) == path.digest
        assert all(-2 <= score <= 0 for fork in path.forks for score in fork.scores)
        kept[name], digests[name] = path.forks[0].kept, path.digest
        assert grow(live, TASK, SEED, SEARCH, judge) == path
    assert kept['right'] == x.index(max(x)) and kept['left'] == x.index(min(x))
    assert kept['blind'] == 0 and len(set(digests.values())) >= 2
    assert digests['blind'] == grow(live, TASK, SEED, Search(1, 8), judges.reward).digest


def test_it_sees_the_end_of_the_branch_and_moves_nothing(live, tiny_policy, tmp_path):
    """The score is the value of what is seen there, and the episode goes on as if never judged."""
    judge = judges.load(str(toy(tmp_path / 'value', tiny_policy, 1.0)))
    live.start(SEED, TEXT)
    moments = [live.tick() for _ in range(4)]
    state = live.scene.get_state().tobytes()
    score = judge(live, moments)
    assert judge(live, moments[-1:]) == score, 'what happened on the way counts for nothing'
    assert live.scene.get_state().tobytes() == state
    later = [live.tick() for _ in range(8)]
    assert judge(live, later) != score
    live.start(SEED, TEXT)
    again = [live.tick().command.action.tobytes() for _ in range(12)]
    assert again[4:] == [moment.command.action.tobytes() for moment in later]


def test_the_command_takes_the_folder(tiny_policy, tmp_path, capsys):
    """From the first argument to the report; trees of other tasks are refused before any grows."""
    folder = toy(tmp_path / 'value', tiny_policy, 1.0)
    report = tmp_path / 'tree.json'

    def run(environment, judge=folder):
        return cli.main([
            'tree', '--env', environment, '--branches', '2', '--every', '8', '--limit', '8',
            '--policy', str(tiny_policy), '--workers', '1', '--episodes', '1', '--no-compare',
            '--judge', str(judge), '--json', str(report),
        ])  # fmt: skip

    assert run(DRAWER) == 0
    found = json.loads(report.read_text())
    scores = found['starts'][0]['tree']['forks'][0]['scores']
    assert found['search']['judge'] == str(folder) and len(set(scores)) == 2
    capsys.readouterr()
    assert run(REACH) == 2
    assert f'was fitted to {DRAWER}, not to {REACH}' in capsys.readouterr().err
    assert run(DRAWER, tiny_policy) == 2
    error = capsys.readouterr().err
    assert "architecture is 'flow_vla'; want 'value'" in error and len(error.splitlines()) == 1
    assert not list(tmp_path.glob('*.part'))


def test_what_is_no_value_is_refused(tiny_policy, tmp_path):
    """By name: an empty folder, one that is not there, and the policy's weights exchanged."""
    (tmp_path / 'empty').mkdir()
    with pytest.raises(CheckpointError, match='config.json is missing'):
        judges.load(str(tmp_path / 'empty'))
    with pytest.raises(SimulationError, match='no such folder'):
        judges.load(str(tmp_path / 'none'))
    folder = toy(tmp_path / 'value', tiny_policy, 1.0)
    shutil.rmtree(folder / 'policy')
    with pytest.raises(CheckpointError, match='policy/config.json is missing'):
        judges.load(str(folder))
    judges.require_fits(judges.reward, [REACH])  # the others fit wherever they can be asked
