"""Many environments at once: gymnasium's `make_vec`, its autoreset modes, and capsules."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

pytest.importorskip('metaworld')

DRAWER = 'flashrt_sim:flashrt/Drawer-v0'
ACTION = np.array([0.3, 0.5, -0.5, -1.0], np.float32)


def seen(observation, index=None):
    """One observation as bytes; of one environment of many where `index` is given."""
    parts = [*observation['pixels'].values(), observation['agent_pos']]
    return [(part if index is None else part[index]).tobytes() for part in parts]


def alone(seed, steps):
    """What one environment shows after `seed` and each of its steps."""
    env = gymnasium.make(DRAWER)
    found = [seen(env.reset(seed=seed)[0])]
    found += [seen(env.step(ACTION)[0]) for _ in range(steps)]
    env.close()
    return found


@pytest.mark.parametrize('mode', [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_each_of_many_is_like_one_alone(mode):
    """Seeds one after the other; the mode is declared, and an episode's end begins the next."""
    many = gymnasium.make_vec(
        DRAWER, num_envs=2, max_episode_steps=3, vector_kwargs={'autoreset_mode': mode}
    )
    assert many.metadata['autoreset_mode'] is mode
    found = [many.reset(seed=5)[0]]
    expected = [alone(5, 3), alone(6, 3)]
    for _ in range(3):
        observation, _, terminated, truncated, info = many.step(np.stack([ACTION, ACTION]))
        assert not terminated.any() and observation['agent_pos'].shape == (2, 4)
        found.append(info.get('final_obs', observation) if truncated.all() else observation)
    assert truncated.all()
    for index in range(2):
        if mode is AutoresetMode.SAME_STEP:  # the last observations are in `info` there
            last = found[-1][index]
            assert [*(seen(o, index) for o in found[:-1]), seen(last)] == expected[index]
        else:
            assert [seen(o, index) for o in found] == expected[index]
    if mode is AutoresetMode.NEXT_STEP:
        _, reward, _, truncated, info = many.step(np.stack([ACTION, ACTION]))
        assert not truncated.any() and not reward.any()
    assert info['ticks'].tolist() == [0, 0]
    many.close()


@pytest.mark.parametrize('vectorization', ['sync', 'async'])
def test_all_of_them_go_on_from_one_capsule(vectorization):
    """In this process and in others: the same bytes in every environment."""
    env = gymnasium.make(DRAWER)
    env.reset(seed=8)
    env.step(ACTION)
    capsule = env.snapshot()
    expected = [seen(env.step(ACTION)[0]) for _ in range(2)]
    env.close()
    # Processes started afresh: a rendering context does not survive a fork.
    context = {'context': 'spawn'} if vectorization == 'async' else {}
    many = gymnasium.make_vec(
        DRAWER, num_envs=2, vectorization_mode=vectorization, vector_kwargs=context
    )
    many.reset(seed=1)
    observation, info = many.reset(options={'capsule': capsule})
    assert seen(observation, 0) == seen(observation, 1) == seen(capsule.observation)
    assert info['ticks'].tolist() == [1, 1]
    for one in expected:
        observation, *_ = many.step(np.stack([ACTION, ACTION]))
        assert seen(observation, 0) == seen(observation, 1) == one
    many.close()
