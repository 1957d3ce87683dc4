"""Trees: the judge alone chooses, every step counts, and what was kept can be walked again."""

from __future__ import annotations

import dataclasses
import hashlib

import pytest

pytest.importorskip('metaworld')
pytest.importorskip('torch')

from flashrt_sim.episode import LiveEpisode
from flashrt_sim.errors import SimulationError
from flashrt_sim.rollout.evaluation import Goal, Task
from flashrt_sim.tree import judges
from flashrt_sim.tree.rollouts import run_whole
from flashrt_sim.tree.search import Search, grow, noise_seed, replay

# Opening an episode takes time: all tests of this file in one process.
pytestmark = pytest.mark.xdist_group('tree')

ENVIRONMENT, TEXT = 'flashrt/MT50-drawer-open-v0', 'open the drawer'
SEED = 2_000_700_000


@pytest.fixture(scope='module')
def live(tiny_policy):
    """An episode with the tiny policy; it never opens the drawer."""
    episode = LiveEpisode.open(ENVIRONMENT, tiny_policy, delay=0)
    yield episode
    episode.close()


def task(limit):
    """The one task of these tests."""
    return Task(ENVIRONMENT, (Goal(TEXT, TEXT),), limit=limit)


def told(*answers):
    """A judge that gives these scores, one after the other."""
    left = list(answers)
    return lambda live, moments: left.pop(0)


def plain(live, ticks):
    """The digest of a plain episode of so many ticks."""
    digest = hashlib.sha256()
    live.start(SEED, TEXT)
    for _ in range(ticks):
        digest.update(live.tick().command.action.tobytes())
    digest.update(live.scene.get_state().tobytes())
    return digest.hexdigest()


@pytest.fixture
def ticks(live, monkeypatch):
    """A list that grows by one at every simulator step."""
    seen, tick = [], live.tick
    monkeypatch.setattr(live, 'tick', lambda: seen.append(1) or tick())
    return seen


def reaches(live, monkeypatch, ordinals):
    """Let the scene say that the subgoal is reached at these steps, counted over all branches."""
    step, count = live.scene.step_physics, iter(range(1, 10_000))

    def stepped(action):
        return {**step(action), 'is_success': next(count) in ordinals}

    monkeypatch.setattr(live.scene, 'step_physics', stepped)


def test_one_branch_is_a_plain_episode(live):
    """Tick for tick the same actions, and the same simulator at the end."""
    path = grow(live, task(20), SEED, Search(1, 8), judges.reward)
    assert path.digest == plain(live, 20)
    assert (path.ticks, path.steps, path.success) == (20, 20, False)
    assert [(f.tick, f.length, f.kept, f.noise) for f in path.forks] == [
        (0, 8, 0, None), (8, 8, 0, None), (16, 4, 0, None),
    ]  # fmt: skip


def test_the_kept_path_can_be_walked_again(live):
    """Seed and noises of the record give the same bytes, and the tree grows again as it did."""
    search = Search(3, 8)
    judge = told(0, 2, 1, 0, 1, 2, 3, 1, 0)
    path = grow(live, task(24), SEED, search, judge)
    assert [fork.kept for fork in path.forks] == [1, 2, 0]
    assert path.forks[2].noise is None
    assert replay(live, task(24), SEED, path.forks) == path.digest
    assert grow(live, task(24), SEED, search, told(0, 2, 1, 0, 1, 2, 3, 1, 0)) == path
    assert path.digest != plain(live, 24)


def test_a_wrong_record_is_noticed(live):
    """Negative control: other noise at one boundary gives other bytes."""
    path = grow(live, task(16), SEED, Search(2, 8), told(0, 1, 0, 1))
    wrong = [path.forks[0], dataclasses.replace(path.forks[1], noise=12)]
    assert replay(live, task(16), SEED, wrong) != path.digest


def test_the_episode_stands_where_the_path_ends(live):
    """Also when the kept branch was not the last one that ran."""
    path = grow(live, task(16), SEED, Search(3, 8), told(1, 0, 0, 1, 0, 0))
    assert path.digest == plain(live, 16)
    grow(live, task(16), SEED, Search(3, 8), told(1, 0, 0, 1, 0, 0))
    state = live.scene.get_state()
    plain(live, 16)
    assert (live.scene.get_state() == state).all()


@pytest.mark.parametrize(
    ('search', 'limit', 'shape'),
    [
        (Search(2, 8), 16, [(8, 2), (8, 2)]),  # as many steps as two whole episodes
        (Search(2, 8, budget=24), 16, [(8, 2), (8, 1)]),  # a branch less for the last steps
        (Search(2, 8, budget=21), 16, [(8, 2), (5, 1)]),  # and a shorter one
        (Search(3, 8, budget=100), 10, [(8, 3), (2, 3)]),  # no longer than an episode
    ],
)
def test_every_step_of_every_branch_counts(live, ticks, search, limit, shape):
    """The budget is never passed, and what the tree says it took is what was stepped."""
    path = grow(live, task(limit), SEED, search, judges.reward)
    assert [(fork.length, len(fork.scores)) for fork in path.forks] == shape
    assert path.steps == len(ticks) == sum(length * count for length, count in shape)
    assert path.steps <= search.steps(limit)


def test_success_of_a_branch_that_was_not_kept_counts_for_nothing(live, monkeypatch):
    """The judge preferred another one: nobody peeks at the success criterion."""
    reaches(live, monkeypatch, {12})  # in the second branch of the first boundary
    path = grow(live, task(16), SEED, Search(2, 8), told(1, 0, 1, 0))
    assert not path.success and path.steps == 32


def test_success_on_the_kept_path_ends_it(live, monkeypatch):
    """After the tick on which it is reached; branches run to their end all the same."""
    reaches(live, monkeypatch, {12})
    path = grow(live, task(16), SEED, Search(2, 8), told(0, 1, 1, 0))
    assert path.success and (path.ticks, path.steps) == (4, 16)


def test_noise_differs_by_boundary_and_branch():
    """And stays what it is on every machine."""
    drawn = {noise_seed(7, tick, number) for tick in (0, 8, 16) for number in (1, 2, 3)}
    assert len(drawn) == 9 and max(drawn) < 2**48
    assert noise_seed(7, 8, 1) == 58415111232702


def test_whole_episodes_until_one_succeeds(live, monkeypatch):
    """The first one is the plain episode; steps of all of them count."""
    reaches(live, monkeypatch, {16 + 5})
    whole = run_whole(live, task(16), SEED, 64)
    assert whole.success and (whole.ticks, whole.steps) == ((16, 5), 21)


def test_whole_episodes_until_the_budget_is_spent(live, ticks):
    """The last one is cut where the steps end."""
    whole = run_whole(live, task(16), SEED, 40)
    assert not whole.success and whole.ticks == (16, 16, 8) and whole.steps == len(ticks) == 40


@pytest.mark.parametrize(
    ('search', 'message'),
    [
        (Search(0, 8), 'branches start at 1'),
        (Search(2, 8, -1), 'a budget of 0'),
        (Search(2, 4), 'branch every 8 ticks or more'),
    ],
)
def test_numbers_that_make_no_tree_are_refused(live, search, message):
    """In one line, before anything moves."""
    with pytest.raises(SimulationError, match=message):
        grow(live, task(16), SEED, search, judges.reward)


def test_several_goals_are_refused(live):
    """A tree is grown for one subgoal."""
    two = Task(ENVIRONMENT, (Goal(TEXT, TEXT),) * 2)
    with pytest.raises(SimulationError, match='has several'):
        grow(live, two, SEED, Search(), judges.reward)


def test_a_judge_must_give_a_number(live):
    """Not-a-number would keep whatever came first, silently."""
    with pytest.raises(SimulationError, match='want a finite number'):
        grow(live, task(8), SEED, Search(2, 8), told(0, float('nan')))


def test_reward_is_metaworlds(live, drawer):
    """The mean over the branch; where it belongs to another subgoal, it is refused."""
    live.start(SEED, TEXT)
    moments = [live.tick() for _ in range(3)]
    rewards = [moment.info['dense_reward'] for moment in moments]
    assert all(0 <= value <= 10 for value in rewards) and len(set(rewards)) == 3
    assert judges.reward(live, moments) == pytest.approx(sum(rewards) / 3)
    with pytest.raises(SimulationError, match='several subgoals'):
        judges.reward(dataclasses.replace(FakeEpisode(), scene=drawer), moments)


@dataclasses.dataclass
class FakeEpisode:
    """Something with a scene."""

    scene: object = None


def test_a_value_function_of_ones_own(live, tmp_path, monkeypatch):
    """Named as module:function; it may look at what the policy sees, and hold a network."""
    (tmp_path / 'my_value_of_a_tree.py').write_text(
        'def lifted(live, moments):\n'
        '    seen = live.scene.render_observation()\n'
        "    return float(seen['agent_pos'][2]) + float(seen['pixels']['front'].mean())\n"
        'number = 3\n'
        'import torch\n'
        'network = torch.nn.Linear(4, 1)\n'
        'def learned(live, moments):\n'
        "    seen = live.scene.render_observation()['agent_pos']\n"
        '    return network(torch.from_numpy(seen)).item()\n'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    path = grow(live, task(16), SEED, Search(2, 8), judges.load('my_value_of_a_tree:lifted'))
    assert all(fork.scores[fork.kept] == max(fork.scores) > 1 for fork in path.forks)
    path = grow(live, task(8), SEED, Search(2, 8), judges.load('my_value_of_a_tree:learned'))
    assert len(set(path.forks[0].scores)) == 2
    for name, message in {
        'rewrd': "'reward', the folder of a value function, or 'module:function'",
        'no_such_module:f': 'no_such_module',
        'my_value_of_a_tree:missing': 'missing',
        'my_value_of_a_tree:number': 'is no function',
    }.items():
        with pytest.raises(SimulationError, match=message):
            judges.load(name)
