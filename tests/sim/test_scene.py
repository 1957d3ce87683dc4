"""The drawer scene: two subgoals judged as MetaWorld judges, seeds that hold, errors that help."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip('metaworld')

from gymnasium.utils.env_checker import check_env

from flashrt_sim.codec import StateError
from flashrt_sim.envs.drawer import handle_position, is_closed, is_open
from flashrt_sim.envs.experts import EXPERTS
from flashrt_sim.envs.tasks import make_simulator
from flashrt_sim.errors import SimulationError

OPEN, CLOSE = 'open the drawer', 'close the drawer'


def test_gymnasium_accepts_it(drawer):
    """Gymnasium's own checker finds nothing to complain about."""
    drawer.ask(OPEN)
    check_env(drawer, skip_render_check=True)


def test_made_by_name_without_an_import():
    """In a fresh process one line makes it, limited to MetaWorld's 500 steps."""
    code = (
        'import gymnasium\n'
        "env = gymnasium.make('flashrt_sim:flashrt/Drawer-v0')\n"
        'print(env.spec.id, env.spec.max_episode_steps)\n'
        "print(gymnasium.spec('flashrt/Drawer-v0').id)\n"
    )
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ['flashrt/Drawer-v0', '500', 'flashrt/Drawer-v0']


def test_observation_is_what_it_says(drawer):
    """Two cameras uint8 [96, 96, 3] that show something, hand and gripper float32 [4]."""
    observation, info = drawer.reset(seed=1, options={'subgoal': OPEN})
    assert drawer.observation_space.contains(observation)
    assert list(observation['pixels']) == ['front', 'wrist']
    for frame in observation['pixels'].values():
        assert frame.shape == (96, 96, 3) and frame.dtype == np.uint8 and frame.std() > 10
    hand = drawer.simulator.get_endeff_pos()
    np.testing.assert_allclose(observation['agent_pos'][:3], hand, atol=1e-6)
    assert info == {
        'subgoal': OPEN,
        'is_success': False,
        'subgoals': {OPEN: False, CLOSE: True},
        'ticks': 0,
    }
    assert drawer.render().shape == (48, 64, 3)


def test_seed_decides_everything(drawer):
    """Same seed, same state and frames, whatever was before; another seed, another drawer."""
    first, _ = drawer.reset(seed=7, options={'subgoal': OPEN})
    state = drawer.get_state()
    for _ in range(5):
        drawer.step_physics(drawer.action_space.sample())
    drawer.reset_physics(seed=8, options={'start': 'random'})
    assert drawer.simulator.model.body('drawer').pos[0] != pytest.approx(0.0, abs=1e-9)
    other = float(drawer.simulator.model.body('drawer').pos[0])
    again, _ = drawer.reset(seed=7, options={'subgoal': OPEN})
    assert (drawer.get_state() == state).all()
    assert (again['pixels']['front'] == first['pixels']['front']).all()
    assert float(drawer.simulator.model.body('drawer').pos[0]) != other


def test_drawer_stands_where_metaworld_puts_it(drawer):
    """X is uniform in [-0.1, 0.1], y is 0.9."""
    places = []
    for seed in range(40):
        drawer.reset_physics(seed=seed)
        places.append(np.array(drawer.simulator.model.body('drawer').pos))
    places = np.array(places)
    assert (np.abs(places[:, 0]) <= 0.1).all() and np.ptp(places[:, 0]) > 0.15
    assert (places[:, 1] == 0.9).all() and (places[:, 2] == 0).all()


@pytest.mark.parametrize(
    ('task', 'criterion', 'subgoal'),
    [('drawer-open-v3', is_open, OPEN), ('drawer-close-v3', is_closed, CLOSE)],
)
def test_success_is_metaworlds_own(task, criterion, subgoal):
    """At every step of an episode of the original task both say the same, and both happen."""
    simulator = make_simulator(task, seed=3)
    seen = set()
    for _ in range(120):
        _, _, _, _, info = simulator.step(EXPERTS[subgoal](simulator))
        assert criterion(simulator) == bool(info['success'])
        seen.add(bool(info['success']))
    assert seen == {True, False}


def test_wrong_criterion_would_be_noticed():
    """Negative control: the other task's criterion disagrees with MetaWorld somewhere."""
    simulator = make_simulator('drawer-open-v3', seed=3)
    agreed = []
    for _ in range(120):
        _, _, _, _, info = simulator.step(EXPERTS[OPEN](simulator))
        agreed.append(is_closed(simulator) == bool(info['success']))
    assert not all(agreed)


def test_starts(drawer):
    """Closed and open as MetaWorld's tasks start; random anywhere between, reproducibly."""
    drawer.reset_physics(seed=0, options={'subgoal': OPEN})
    assert drawer.drawer == 0.0
    drawer.reset_physics(seed=0, options={'subgoal': CLOSE})
    assert drawer.drawer == 0.15
    closing = make_simulator('drawer-close-v3', seed=0)
    np.testing.assert_allclose(
        handle_position(drawer.simulator)[1:], handle_position(closing)[1:], atol=1e-9
    )
    pulled = []
    for seed in range(20):
        drawer.reset_physics(seed=seed, options={'start': 'random'})
        pulled.append(drawer.drawer)
    assert min(pulled) >= 0 and max(pulled) <= 0.16 and np.ptp(pulled) > 0.1


def test_subgoal_may_change_in_mid_motion(drawer):
    """Asking for another subgoal moves nothing and changes what success means."""
    drawer.reset_physics(seed=0, options={'subgoal': OPEN, 'start': 'closed'})
    before = drawer.simulator.data.qpos.copy()
    drawer.ask(CLOSE)
    assert (drawer.simulator.data.qpos == before).all()
    info = drawer.step_physics(np.zeros(4, np.float32))
    assert info['subgoal'] == CLOSE and info['is_success'] and not info['subgoals'][OPEN]
    _, reward, terminated, truncated, _ = drawer.step(np.zeros(4, np.float32))
    assert (reward, terminated, truncated) == (1.0, False, False)


def test_state_continues_byte_identically(drawer):
    """Also through reset(options=), with frames, clock, subgoal and the next episode's seed."""
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1, 1, (12, 4)).astype(np.float32)
    drawer.reset_physics(seed=4, options={'subgoal': CLOSE})
    for action in actions[:4]:
        drawer.step_physics(action)
    state = drawer.get_state()

    def go_on():
        seen = []
        for action in actions[4:]:
            drawer.step_physics(action)
            seen.append(drawer.get_state().tobytes())
        seen.append(drawer.render_observation()['pixels']['wrist'].tobytes())
        drawer.reset_physics(options={'start': 'random'})
        return [*seen, drawer.get_state().tobytes()]

    expected = go_on()
    drawer.reset_physics(seed=99, options={'subgoal': OPEN})
    _, info = drawer.reset(options={'capsule': state})
    assert (info['subgoal'], info['ticks']) == (CLOSE, 4)
    assert go_on() == expected
    drawer.set_state(state.tobytes())
    assert go_on() == expected


def test_damaged_state_changes_nothing(drawer):
    """A state that is cut or of something else is refused in one line."""
    drawer.reset_physics(seed=4)
    state = drawer.get_state()
    flipped = state.copy()
    flipped[len(state) // 2] ^= 1
    for bad in (state[:-1], flipped, b'', b'x' * 100):
        with pytest.raises(StateError) as caught:
            drawer.set_state(bad)
        assert '\n' not in str(caught.value)
    assert (drawer.get_state() == state).all()


@pytest.mark.parametrize(
    ('call', 'message'),
    [
        (
            lambda s: s.reset(options={'subgoal': 'open the draw'}),
            "did you mean 'open the drawer'",
        ),
        (lambda s: s.reset(options={'start': 'opened'}), "did you mean 'open'"),
        (lambda s: s.reset(options={'stat': 1}), 'did you mean'),
        (lambda s: s.reset(options={'capsule': b'', 'start': 'open'}), 'not both'),
        (lambda s: s.ask('dance'), 'expected one of'),
        (lambda s: s.step(np.zeros(3)), r'shape \(3,\); expected \(4,\)'),
        (lambda s: s.step(np.array([0, np.nan, 0, 0])), 'not finite'),
        (lambda s: type(s)(render_mode='human'), 'render_mode'),
        (lambda s: s.picture(8, 8, 'back'), 'camera'),
    ],
)
def test_wrong_input_is_one_line_and_moves_nothing(drawer, call, message):
    """What is wrong, what would be right, and the scene stays as it was."""
    drawer.reset_physics(seed=0)
    before = drawer.get_state()
    with pytest.raises(SimulationError, match=message) as caught:
        call(drawer)
    assert '\n' not in str(caught.value)
    assert (drawer.get_state() == before).all()
