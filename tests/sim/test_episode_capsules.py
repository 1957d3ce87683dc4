"""An episode's capsule is whole, in branches, on disk and in other processes."""

from __future__ import annotations

import subprocess
import sys

import gymnasium
import pytest

pytest.importorskip('metaworld')
pytest.importorskip('torch')

import flashrt_sim  # noqa: F401  registers the environments
from flashrt_ros.capsule.errors import FingerprintError, StoreError
from flashrt_ros.control.planner import ScriptedPlanner
from flashrt_sim.codec import StateError
from flashrt_sim.envs.make import make_scene
from flashrt_sim.episode import LiveEpisode
from flashrt_sim.errors import SimulationError

# Opening an episode takes time: all tests of this file in one process.
pytestmark = pytest.mark.xdist_group('live episode')

OPEN, CLOSE = 'open the drawer', 'close the drawer'
TASK = f'{CLOSE}, then {OPEN}'  # the drawer is closed already: the planner goes on at once


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """Where capsules are kept."""
    return tmp_path_factory.mktemp('capsules')


@pytest.fixture(scope='module')
def live(tiny_policy, folder):
    """An episode with a planner and a store."""
    torch = pytest.importorskip('torch')
    torch.set_num_threads(1)  # as the fresh process: it may change the last bit of a sum
    planner = ScriptedPlanner((OPEN, CLOSE), done_ticks=9)
    episode = LiveEpisode.open('flashrt/Drawer-v0', tiny_policy, planner=planner, store=folder)
    yield episode
    episode.close()


def everything(live):
    """All that a capsule must hold, as one value that can be compared."""
    return (
        live.scene.get_state().tobytes(),
        live.actor.queue.state()['actions'].tobytes(),
        live.planner.state(),
        live.counts.state(),
        live.scene.subgoal,
    )


def run(live, ticks):
    """Actions, and everything after each of the next ticks."""
    return [(live.tick().command.action.tobytes(), everything(live)) for _ in range(ticks)]


def begin(live, ticks=5):
    """An episode that the planner leads through, some ticks old."""
    live.instruct(seed=3, instruction=TASK, start='closed')
    run(live, ticks)


def test_planner_and_counts_go_back_too(live):
    """In the middle of a planner's count, and of an episode's: the very same decisions follow."""
    begin(live)
    capsule = live.snapshot('middle')
    expected = run(live, 12)
    assert expected[-1][1][4] == OPEN and live.counts.ticks == 17  # the planner went on meanwhile
    assert live.counts.held and live.counts.inferences
    begin(live, 2)
    live.restore(capsule)
    assert live.counts.state() == capsule.host_state()['harness']
    assert run(live, 12) == expected


@pytest.mark.parametrize('entry', ['planner', 'harness'])
def test_a_forgotten_part_is_noticed(live, entry, monkeypatch):
    """Negative control: a capsule without planner or counts does not continue the same."""
    begin(live)
    capsule = live.snapshot('middle')
    expected = run(live, 12)
    begin(live, 2)
    part = {'planner': live.planner, 'harness': live.counts}[entry]
    kept = part.state()
    live.restore(capsule)
    part.set_state(kept)
    assert run(live, 12) != expected


def test_branches_take_turns_and_each_is_its_own(live):
    """Interleaved ticks of four branches give what each gives alone; one capsule is shared."""
    begin(live)
    root = live.snapshot('root')
    alone = []
    for noise in (None, 7, 8, None):
        live.restore(root, noise=noise)
        alone.append([live.tick().command.action.tobytes() for _ in range(12)])
    live.restore(root)
    branches = live.fork(4, noise=[0, 7, 8, 7])
    assert len({id(branch.capsule) for branch in branches}) == 1
    assert not any(branch.active for branch in branches)
    seen = [[] for _ in branches]
    for _ in range(4):
        for branch, found in zip(branches, seen, strict=True):
            found += [branch.tick().command.action.tobytes() for _ in range(3)]
            assert branch.active
    assert seen[1] == seen[3] == alone[1] and seen[2] == alone[2] != alone[1]
    assert alone[0] == alone[3]
    same = live.fork(2, capsule=root)
    for branch in same:
        assert [branch.tick().command.action.tobytes() for _ in range(12)] == alone[0]
    live.restore(root)
    assert live.branch is None


def test_without_freezing_the_other_a_branch_would_lose_its_way(live, monkeypatch):
    """Negative control: a turn that ends without a snapshot is noticed."""
    begin(live)
    one, other = live.fork(2, noise=[1, 2])
    expected = [one.tick().command.action.tobytes() for _ in range(12)]
    one, other = live.fork(2, capsule=other.capsule, noise=[1, 2])
    seen = [one.tick().command.action.tobytes() for _ in range(9)]
    live.branch = None  # the fault
    other.tick()
    seen += [one.tick().command.action.tobytes() for _ in range(3)]
    assert seen != expected


@pytest.mark.parametrize(('n', 'noise'), [(0, None), (2, [1])])
def test_impossible_forks(live, n, noise):
    """One line, and nothing is frozen."""
    begin(live, 1)
    before = everything(live)
    with pytest.raises(SimulationError, match='a seed for each'):
        live.fork(n, noise=noise)
    assert everything(live) == before


FRESH = """
import sys
from flashrt_ros.control.planner import ScriptedPlanner
from flashrt_sim.episode import LiveEpisode
import torch
torch.set_num_threads(1)
policy, folder, digest = sys.argv[1:]
planner = ScriptedPlanner(('open the drawer', 'close the drawer'), done_ticks=9)
live = LiveEpisode.open('flashrt/Drawer-v0', policy, planner=planner, store=folder)
live.restore(live.load(digest))
for _ in range(12):
    live.tick()
print(live.scene.get_state().tobytes().hex(), live.counts, live.planner.state())
"""


def test_a_fresh_process_goes_on_from_the_file(live, tiny_policy, folder):
    """Loaded by the beginning of its digest, elsewhere: the same bytes twelve ticks later."""
    begin(live)
    digest = live.save(live.snapshot('stored'))
    run(live, 12)
    argv = [sys.executable, '-c', FRESH, str(tiny_policy), str(folder), digest[:12]]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    state = live.scene.get_state().tobytes().hex()
    assert done.stdout.strip() == f'{state} {live.counts} {live.planner.state()}'


def test_what_does_not_fit_is_refused_and_nothing_changes(live, tiny_policy, folder, tmp_path):
    """Another scene's, another deployment's, a damaged or a missing file: the episode goes on."""
    begin(live)
    stored = live.save(live.snapshot('stored'))
    capsule, scene = live.snapshot('here'), live.scene
    damaged = live.load(live.save(live.snapshot('damaged')))
    expected = run(live, 12)
    live.restore(capsule)
    epoch = live.actor.epoch

    live.move_to(make_scene('flashrt/Window-v0'))
    with pytest.raises(StateError, match='DrawerEnv cannot be set on WindowEnv'):
        live.restore(capsule)
    live.move_to(scene)

    other = LiveEpisode.open('flashrt/Drawer-v0', tiny_policy, store=folder)
    with pytest.raises(FingerprintError, match='closure'):
        other.load(stored)
    with pytest.raises(FingerprintError, match='closure'):
        live.restore(other.snapshot('theirs'))
    with pytest.raises(StoreError, match='no capsule'):
        live.load('0' * 64)

    live.actor.session.registry.demote(damaged, 'disk', wait=True)
    path = folder / f'{damaged.file}.capsule'
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(StoreError, match='was altered'):
        live.restore(damaged)
    path.unlink()

    assert (live.actor.epoch, live.actor.paused) == (epoch, '')
    assert run(live, 12) == expected


def test_an_environment_starts_where_an_episode_stands(live):
    """`options['capsule']` takes an episode's capsule, with the words still asked for then."""
    begin(live, 12)
    capsule, state = live.snapshot('middle'), live.scene.get_state().tobytes()
    env = gymnasium.make('flashrt/Drawer-v0')
    observation, info = env.reset(options={'capsule': capsule})
    assert env.unwrapped.get_state().tobytes() == state
    assert (info['ticks'], info['subgoal']) == (12, live.scene.subgoal)
    seen = live.scene.render_observation()
    assert observation['pixels']['front'].tobytes() == seen['pixels']['front'].tobytes()
    # The environment's own capsule, to the scene without its wrappers.
    live.scene.reset_physics(seed=9)
    live.scene.reset_physics(options={'capsule': env.snapshot()})
    assert live.scene.get_state().tobytes() == state
    with pytest.raises(StateError, match='holds no state of a scene'):
        live.scene.reset_physics(options={'capsule': 'drawer'})
    env.close()


def test_without_a_store_or_a_planner_it_says_so(live, tiny_policy):
    """One line that names what to open it with."""
    plain = LiveEpisode.open('flashrt/Drawer-v0', tiny_policy)
    plain.start(1, OPEN)
    with pytest.raises(SimulationError, match=r'open\(store='):
        plain.save(plain.snapshot('x'))
    with pytest.raises(SimulationError, match=r'open\(planner='):
        plain.instruct(1, OPEN)
