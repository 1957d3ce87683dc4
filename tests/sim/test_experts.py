"""The scripted experts reach their subgoal from wherever they are asked."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip('metaworld')

from flashrt_sim.data.demonstrations import Disturbance, Recipe
from flashrt_sim.envs.experts import EXPERTS, expert_for
from flashrt_sim.envs.make import scene_class
from flashrt_sim.envs.registration import SCENES
from flashrt_sim.errors import SimulationError

OPEN, CLOSE = 'open the drawer', 'close the drawer'


def pursue(scene, subgoal, expert, limit=200, disturb=None):
    """Ticks until `subgoal` is achieved, None if it never is."""
    scene.ask(subgoal)
    for tick in range(limit):
        action = expert(scene.simulator)
        if disturb is not None:
            action, _ = disturb(action)
        if scene.step_physics(action)['is_success']:
            return tick
    return None


@pytest.mark.parametrize('start', ['closed', 'random'])
def test_sequence_of_subgoals(drawer, start):
    """Open, close, open, each within 200 ticks, from both kinds of start."""
    for seed in range(100, 106):
        print(f'seed {seed}')
        drawer.reset_physics(seed=seed, options={'subgoal': OPEN, 'start': start})
        for subgoal in (OPEN, CLOSE, OPEN):
            assert pursue(drawer, subgoal, expert_for(subgoal)) is not None


def test_after_an_interruption_and_despite_noise(drawer):
    """Asked for the contrary in mid-motion, with noise and pushes, it still arrives."""
    for seed in range(200, 206):
        print(f'seed {seed}')
        rng = np.random.default_rng(seed)
        disturb = Disturbance(Recipe(), rng)
        drawer.reset_physics(seed=seed, options={'subgoal': OPEN, 'start': 'closed'})
        pursue(drawer, OPEN, expert_for(OPEN), limit=int(rng.integers(20, 50)))
        for subgoal in (CLOSE, OPEN):
            assert pursue(drawer, subgoal, expert_for(subgoal), 300, disturb) is not None


def test_holds_still_when_done(drawer):
    """Once the subgoal is reached it stays reached, and the arm comes to rest."""
    for subgoal, start in ((OPEN, 'closed'), (CLOSE, 'open')):
        drawer.reset_physics(seed=5, options={'subgoal': subgoal, 'start': start})
        assert pursue(drawer, subgoal, expert_for(subgoal)) is not None
        for _ in range(60):
            info = drawer.step_physics(expert_for(subgoal)(drawer.simulator))
        assert info['is_success']
        before = drawer.proprioception()[:3]
        for _ in range(10):
            action = expert_for(subgoal)(drawer.simulator)
            assert drawer.step_physics(action)['is_success']
        assert np.abs(drawer.proprioception()[:3] - before).max() < 0.01


def test_the_wrong_expert_fails(drawer):
    """Negative control: neither standing still nor the other expert opens the drawer."""
    for expert in (lambda _: np.zeros(4, np.float32), expert_for(CLOSE)):
        drawer.reset_physics(seed=1, options={'subgoal': OPEN, 'start': 'closed'})
        assert pursue(drawer, OPEN, expert) is None


def test_actions_are_clean(drawer):
    """Every scene's subgoals have an expert; actions are float32 [4] in [-1, 1]."""
    goals = {goal for name in SCENES for goal in scene_class(name).SUBGOALS}
    assert set(EXPERTS) == goals
    drawer.reset_physics(seed=1)
    for subgoal in drawer.SUBGOALS:
        action = EXPERTS[subgoal](drawer.simulator)
        assert action.shape == (4,) and action.dtype == np.float32
        assert (np.abs(action) <= 1).all()


def test_unknown_subgoal():
    """One line that suggests the nearest."""
    with pytest.raises(SimulationError, match="did you mean 'open the drawer'"):
        expert_for('open the drawr')
