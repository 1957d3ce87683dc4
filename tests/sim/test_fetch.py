"""Fetch, the second family: the original's physics, goals and success; exact states; one seed."""

from __future__ import annotations

import dataclasses
import sys

import gymnasium
import numpy as np
import pytest

pytest.importorskip('gymnasium_robotics')

import flashrt_sim  # noqa: F401  registers the environments
from flashrt_sim.envs.fetch import ReachEnv
from flashrt_sim.envs.make import make_scene
from flashrt_sim.envs.registration import FETCH
from flashrt_sim.errors import SimulationError

ACTIONS = np.random.default_rng(0).uniform(-1, 1, (30, 4)).astype(np.float32)


@pytest.fixture(scope='module', params=sorted(FETCH))
def scene(request):
    """One of the four tasks."""
    made = make_scene(request.param)
    yield made
    made.close()


def reached_for(scene) -> np.ndarray:
    """An action straight to the goal, which achieves reaching."""
    hand = scene.proprioception()[:3]
    return np.append(10 * (scene.simulator.goal - hand), 0).clip(-1, 1).astype(np.float32)


def test_it_is_the_original_with_the_same_seed(scene):
    """Same goal, same motion to the last bit, same success as gymnasium-robotics' own task."""
    task = type(scene).__name__.removesuffix('Env')
    original = gymnasium.make(f'Fetch{task}-v4', disable_env_checker=True).unwrapped
    for seed in (3, 4):
        scene.reset_physics(seed=seed)
        original.reset(seed=seed)
        for action in ACTIONS:
            action = reached_for(scene) if task == 'Reach' else action
            info = scene.step_physics(action)
            _, reward, _, _, theirs = original.step(action)
            assert (scene.simulator.data.qpos == original.data.qpos).all()
            assert info['is_success'] == bool(theirs['is_success']) == (reward == 0)
    assert task != 'Reach' or info['is_success']


def test_observation_has_the_first_familys_keys(scene):
    """Two cameras that show something, gripper and opening within the declared bounds."""
    observation, info = scene.reset(seed=1)
    assert scene.observation_space.contains(observation)
    assert list(observation['pixels']) == ['front', 'wrist']
    assert all(frame.std() > 10 for frame in observation['pixels'].values())
    assert list(info) == ['subgoal', 'is_success', 'subgoals', 'ticks']
    assert info['subgoal'] == scene.subgoal == next(iter(scene.SUBGOALS))


def test_a_state_continues_byte_identically(scene):
    """Joints, the family's own observation and the frames, also in another instance."""

    def go_on(scene):
        seen = [frame.tobytes() for frame in scene.render_observation()['pixels'].values()]
        for action in ACTIONS[8:20]:
            seen += [part.tobytes() for part in scene.simulator._get_obs().values()]
            scene.step_physics(action)
            seen.append(scene.get_state().tobytes())
        scene.reset_physics()
        return [*seen, scene.get_state().tobytes()]

    scene.reset_physics(seed=5)
    for action in ACTIONS[:8]:
        scene.step_physics(action)
    state = scene.get_state()
    expected = go_on(scene)
    twin = type(scene)()
    for other in (scene, twin):
        other.reset_physics(seed=6)
        other.step_physics(ACTIONS[0])
        assert not other.reset_physics(options={'capsule': state})['is_success']
        assert go_on(other) == expected
    twin.close()


def test_without_what_lags_behind_it_would_drift():
    """Negative control: joints alone are not the whole state of this family."""
    scene = make_scene('flashrt/FetchPickAndPlace-v0')
    scene.reset_physics(seed=5)
    for action in ACTIONS[:8]:
        scene.step_physics(action)
    seen = scene.simulator._get_obs()['observation'].tobytes()
    ready = scene._prepare(scene.get_state().tobytes()).simulator
    scene._state.apply(ready)
    assert scene.simulator._get_obs()['observation'].tobytes() == seen
    scene._state.apply(dataclasses.replace(ready, lagging=()))
    assert scene.simulator._get_obs()['observation'].tobytes() != seen


def test_what_is_missing_is_named(monkeypatch):
    """Without gymnasium-robotics one line says what to install."""
    monkeypatch.setitem(sys.modules, 'gymnasium_robotics.envs.fetch.reach', None)
    with pytest.raises(SimulationError, match=r"pip install 'flashrt_ros\[fetch\]'") as caught:
        ReachEnv()
    assert '\n' not in str(caught.value)
