"""The fifty tasks and the shared scenes: named, told in words, decided by a seed, solvable."""

from __future__ import annotations

import itertools

import gymnasium
import numpy as np
import pytest

pytest.importorskip('metaworld')

import flashrt_sim  # noqa: F401  registers the environments
from flashrt_ros.control.text import encode
from flashrt_sim.envs.experts import expert_for
from flashrt_sim.envs.fifty import GROUPS, task_env, texts
from flashrt_sim.envs.make import make_scene, scene_class
from flashrt_sim.envs.registration import ENVIRONMENTS, FIFTY, SCENES, environment_name
from flashrt_sim.envs.tasks import TASKS
from flashrt_sim.errors import SimulationError


def test_all_fifty_are_there():
    """Exactly MetaWorld's tasks; the published groups have the published sizes."""
    assert {f'{task}-v3' for task in FIFTY} == set(TASKS) and len(FIFTY) == 50
    assert set(texts()) == set(FIFTY)
    sizes = [sum(entry['group'] == group for entry in texts().values()) for group in GROUPS]
    assert sizes == [28, 11, 6, 5]
    for name in ENVIRONMENTS:
        assert name in gymnasium.registry and scene_class(name).SUBGOALS


def test_every_wording_means_one_task():
    """Wordings fit into a subgoal row, and none of them is used twice, held-out ones included."""
    wordings = [
        wording
        for entry in texts().values()
        for wording in (entry['text'], *entry['paraphrases'], *entry['held_out'])
    ]
    assert len(set(wordings)) == len(wordings) == 50 * 8
    for wording in wordings:
        assert np.count_nonzero(encode(wording)) == len(wording)
    with pytest.raises(ValueError, match='at most'):  # control: a row does have an end
        encode('pick up the puck ' * 10)


@pytest.mark.parametrize('task', ['push', 'reach-wall', 'assembly', 'drawer-close'])
def test_a_seed_decides_a_task(task):
    """Same seed, same scene, whatever was done before; another seed, another scene."""
    scene = make_scene(environment_name(task))
    expert = expert_for(scene.subgoal, scene)

    def played(seed):
        scene.reset_physics(seed=seed)
        for _ in range(12):
            scene.step_physics(expert(scene.simulator))
        return scene.get_state().tobytes()

    first = played(3)
    assert played(4) != first
    assert played(3) == first


def test_the_goal_is_drawn_where_it_is():
    """The mark that a policy sees stands at the goal by which success is judged."""
    scene = make_scene(environment_name('push'))
    for seed in range(3):
        scene.reset_physics(seed=seed)
        mark = scene.simulator.data.site('goal').xpos
        assert np.allclose(mark, scene.simulator._target_pos)
    with_mark = scene.render_observation()['pixels']['front']
    scene._frames._options.sitegroup[:] = 0
    assert (scene.render_observation()['pixels']['front'] != with_mark).any()
    scene.close()


def test_success_is_the_tasks_own(monkeypatch):
    """Success is what MetaWorld's step says, survives a state, and is gone after a reset."""
    scene = make_scene(environment_name('reach'))
    expert = expert_for(scene.subgoal, scene)
    scene.reset_physics(seed=1)
    assert not any(scene.achieved().values())
    for _ in range(150):
        info = scene.step_physics(expert(scene.simulator))
        if info['is_success']:
            break
    assert info['is_success']
    state = scene.get_state()
    assert not scene.reset_physics(seed=2)['is_success']
    assert scene.reset_physics(options={'capsule': state})['is_success']


@pytest.mark.parametrize('name', sorted(set(SCENES) - {'flashrt/Drawer-v0'}))
def test_experts_go_from_any_subgoal_to_any_other(name):
    """Each ordered pair, the second one also from the first one's mid-motion."""
    scene = make_scene(name)
    for seed, (first, second) in enumerate(itertools.permutations(scene.SUBGOALS, 2)):
        scene.reset_physics(seed=seed, options={'subgoal': first})
        for goal, cut in ((first, None), (second, None), (first, 25), (second, None)):
            scene.ask(goal)
            expert = expert_for(goal, scene)
            for tick in range(260):
                if tick == cut or scene.step_physics(expert(scene.simulator))['is_success']:
                    break
            assert cut is not None or scene.achieved()[goal], (seed, goal)


def test_standing_still_achieves_nothing():
    """Negative control: from its own start no subgoal of a scene holds already."""
    for name in SCENES:
        scene = make_scene(name)
        for goal in scene.SUBGOALS:
            scene.reset_physics(seed=5, options={'subgoal': goal})
            for _ in range(5):
                assert not scene.step_physics(np.zeros(4, np.float32))['is_success']


def test_unknown_task():
    """One line with the nearest name."""
    with pytest.raises(SimulationError, match="did you mean 'push-wall'"):
        task_env('push-wal')
    with pytest.raises(SimulationError, match='MT50-reach-v0'):
        make_scene('flashrt/MT50-reech-v0')
