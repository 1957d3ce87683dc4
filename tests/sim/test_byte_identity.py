"""Every environment of every family: an episode goes on from its capsule byte for byte.

Frozen in mid-episode with the brain that drives it, and gone on with three times: without a
restore, restored in the same process after another episode, and restored from its file in a fresh
process (this file, run as a script). Actions, the whole simulator, proprioception, info and the
family's own reward must be the same bytes at every tick.

Most environments show the brain pictures made of the bytes of their joints: as telling as real
ones, and cheap. Some draw.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import warnings

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

pytest.importorskip('metaworld')
pytest.importorskip('torch')

from flashrt_sim.codec import pack
from flashrt_sim.envs.make import make_scene
from flashrt_sim.envs.registration import ENVIRONMENTS, FETCH, FIFTY, SCENES
from flashrt_sim.episode import LiveEpisode

DRAW = {
    'flashrt/Drawer-v0', 'flashrt/Puck-v0', 'flashrt/MT50-assembly-v0', 'flashrt/MT50-soccer-v0',
    'flashrt/FetchPickAndPlace-v0',
}  # fmt: skip
BEFORE, AFTER = 8, 10  # ticks; the first chunk is under way when the capsule is taken


def open_scene(name):
    """The scene, its pictures drawn or made of its joints."""
    scene = make_scene(name)

    def look():
        joints = hashlib.shake_128(scene.simulator.data.qpos.tobytes())
        pixels = np.frombuffer(joints.digest(96 * 96 * 3), np.uint8).reshape(96, 96, 3)
        return {'pixels': {'front': pixels, 'wrist': pixels[::-1]},
                'agent_pos': scene.proprioception()}  # fmt: skip

    if name not in DRAW:
        scene.render_observation = look
    return scene


def told(scene):
    """What the family's own environment says of this moment."""
    simulator = scene.simulator
    if hasattr(simulator, 'evaluate_state'):
        return simulator.evaluate_state(simulator._last_stable_obs, np.zeros(4, np.float32))
    seen = simulator._get_obs()
    return seen, simulator.compute_reward(seen['achieved_goal'], simulator.goal, {})


def run(live, name, ticks):
    """Digests of everything, at each of the next ticks; at the end also of what is seen."""
    trace = []
    for _ in range(ticks):
        moment = live.tick()
        parts = {
            'action': moment.command.action,
            'state': live.scene.get_state(),
            'proprioception': live.scene.proprioception(),
            'info': moment.info,
            'reward': told(live.scene),
        }
        trace.append({k: hashlib.sha256(pack(v)).hexdigest()[:16] for k, v in parts.items()})
    if name in DRAW:
        pixels = live.scene.render_observation()['pixels']
        trace.append({'pixels': hashlib.sha256(pack(pixels)).hexdigest()[:16]})
    return trace


def assert_same(expected, seen):
    """Names tick and part that differ first."""
    for tick, (one, other) in enumerate(zip(expected, seen, strict=True), 1):
        differs = [part for part in one if one[part] != other[part]]
        assert not differs, f'{", ".join(differs)} differ {tick} ticks after the restore'


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """Where capsules are kept."""
    return tmp_path_factory.mktemp('capsules')


@pytest.fixture(scope='module')
def live(tiny_policy, folder):
    """One brain for all of them."""
    torch = pytest.importorskip('torch')
    torch.set_num_threads(1)  # the number of threads may change the last bit of a sum
    episode = LiveEpisode.open('flashrt/Drawer-v0', tiny_policy, store=folder)
    yield episode
    episode.close()


@pytest.fixture(scope='module')
def elsewhere(tiny_policy, folder):
    """A fresh process that goes on from files."""
    argv = [sys.executable, __file__, str(tiny_policy), str(folder)]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(name, digest):
        process.stdin.write(f'{name} {digest}\n')
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    yield ask
    process.stdin.close()
    assert process.wait() == 0


def begin(live, scene, seed, ticks, name=''):
    """Some ticks of an episode."""
    live.move_to(scene)
    live.start(seed, next(iter(scene.SUBGOALS)))
    return run(live, name, ticks)


def test_all_are_here():
    """Fifty tasks, five scenes, four of Fetch."""
    assert len(ENVIRONMENTS) == len(FIFTY) + len(SCENES) + len(FETCH) == 59


@pytest.fixture(scope='module', params=ENVIRONMENTS)
def named(request):
    """One environment after the other: its name and its scene."""
    if request.param in FETCH:
        pytest.importorskip('gymnasium_robotics')
    scene = open_scene(request.param)
    yield request.param, scene
    scene.close()


def test_gymnasium_accepts_every_environment(named):
    """Gymnasium's own checker finds nothing to complain about, nor does it warn."""
    _, scene = named
    with warnings.catch_warnings():
        warnings.simplefilter('error', UserWarning)  # as gymnasium's are
        check_env(scene, skip_render_check=True)


def test_every_environment_continues_byte_identically(live, elsewhere, named):
    """After another episode in the same process, and from the file in a fresh one."""
    name, scene = named
    begin(live, scene, 3, BEFORE)
    capsule = live.snapshot('middle')
    expected = run(live, name, AFTER)
    states = [tick['state'] for tick in expected[:AFTER]]
    assert len(set(states)) == AFTER and len({tick['action'] for tick in expected[:AFTER]}) > 1
    digest = live.save(capsule)

    begin(live, scene, 4, 3)
    live.restore(capsule)
    assert_same(expected, run(live, name, AFTER))
    assert_same(expected, elsewhere(name, digest))


def test_a_bit_that_is_not_restored_is_noticed(live):
    """Negative control: one joint off by its last bit, and some part differs at some tick."""
    scene = open_scene('flashrt/MT50-push-v0')
    begin(live, scene, 3, BEFORE)
    capsule = live.snapshot('middle')
    expected = run(live, '', AFTER)
    live.restore(capsule)
    joints = scene.simulator.data.qpos
    joints[0] = np.nextafter(joints[0], 9)
    with pytest.raises(AssertionError, match='differ 1 ticks after the restore'):
        assert_same(expected, run(live, '', AFTER))


def main(policy, folder):
    """The fresh process: a line with environment and digest in, a line of JSON out."""
    import torch

    torch.set_num_threads(1)  # as the tests' own process
    live = LiveEpisode.open('flashrt/Drawer-v0', policy, store=folder)
    for line in sys.stdin:
        name, digest = line.split()
        scene = open_scene(name)
        live.move_to(scene)
        live.restore(live.load(digest))
        print(json.dumps(run(live, name, AFTER)), flush=True)
        scene.close()


if __name__ == '__main__':
    main(*sys.argv[1:])
