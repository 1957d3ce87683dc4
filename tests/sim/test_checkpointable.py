"""Capsules of environments, and the check that finds what one of them forgot."""

from __future__ import annotations

import sys
from collections import deque
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.wrappers import (
    FrameStackObservation,
    NormalizeReward,
    RecordEpisodeStatistics,
    TimeLimit,
)

from flashrt_sim import Checkpointable, EnvCapsule, check_checkpointable
from flashrt_sim.checks import NotCheckpointable
from flashrt_sim.codec import StateError

sys.path.insert(0, str(Path(__file__).parent))
from walks import (
    ForgetsAPart,
    ForgetsItsSum,
    ForgetsRandomNumbers,
    ForgetsWhatItTells,
    Habit,
    HiddenHabit,
    IgnoresSeeds,
    KeepsWhatItIsGiven,
    MovesWhenFrozen,
    RefusesTooLate,
    TellsItsHabit,
    Walk,
    WorksHereAlone,
)


def wrapped(kind=Walk):
    """With gymnasium's own stateful wrappers, and an end within reach."""
    env = RecordEpisodeStatistics(TimeLimit(kind(), 13), buffer_length=3)
    return Habit(FrameStackObservation(env, 3))


@pytest.mark.parametrize('make', [Walk, wrapped, lambda: TellsItsHabit(Walk())])
def test_whole_environments_pass(make):
    """Bare, with wrappers of gymnasium's that count and remember, and with a telling one."""
    env = make()
    # Gymnasium's statistics hold the time of day, the one thing that never comes again.
    if make is wrapped:
        env = WithoutTime(env)
    check_checkpointable(env, twin=lambda: WithoutTime(make()) if make is wrapped else make())


class WithoutTime(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Does not tell how long an episode took."""

    def step(self, action):
        """Without 't'."""
        *rest, info = super().step(action)
        if 'episode' in info:
            info['episode'].pop('t')
        return (*rest, info)


BROKEN = {
    ForgetsAPart: r"restored in the same environment, observation\['place'\] differs in step 1:",
    ForgetsItsSum: r'restored in the same environment, reward differs in step 1:',
    ForgetsRandomNumbers: r"restored in the same environment, observation\['place'\] differs",
    ForgetsWhatItTells: r"restored in the same environment, info\['count'\] differs in step 1:",
    MovesWhenFrozen: r"after a snapshot, observation\['place'\] differs in step 1: taking one",
    KeepsWhatItIsGiven: r"restored a second time, observation\['place'\] differs in step 1:",
    WorksHereAlone: r"restored in a fresh twin, from bytes, observation\['place'\] differs",
    RefusesTooLate: r"after set_state\(\) had refused a state without 'trail'",
    IgnoresSeeds: r'played again from the same seed, .* reset\(seed=...\) does not decide',
}


@pytest.mark.parametrize('kind', BROKEN, ids=lambda kind: kind.__name__)
def test_each_fault_is_named(kind):
    """One environment that is broken on purpose for every check; what diverged is named."""
    kind.held = None
    with pytest.raises(NotCheckpointable, match=BROKEN[kind]) as caught:
        check_checkpointable(kind(), twin=kind)
    assert '\n' not in str(caught.value)


def test_a_wrapper_that_hides_its_state_is_found():
    """Its attributes tell nothing; the twin walks another way."""
    with pytest.raises(NotCheckpointable, match=r"observation\['place'\] differs in step 1"):
        check_checkpointable(HiddenHabit(Walk()), twin=lambda: HiddenHabit(Walk()))


@pytest.mark.parametrize(
    ('env', 'message'),
    [
        (gymnasium.make('CartPole-v1'), r'CartPoleEnv has no get_state\(\) and set_state\(\)'),
        (NormalizeReward(Walk()), "NormalizeReward keeps 'return_rms'.*give the wrapper get_st"),
        (Walk(), 'give twin='),
    ],
)
def test_what_cannot_be_checked_says_why(env, message):
    """No methods, an attribute that is no plain value, no way to make a twin."""
    twin = None if message.startswith('give') else lambda: env
    with pytest.raises(NotCheckpointable, match=message):
        check_checkpointable(env, twin=twin)


def test_a_reset_by_capsule_draws_and_simulates_nothing():
    """It gives what was seen last, as often as one likes, and nobody's change gets into it."""
    env = Checkpointable(wrapped())
    with pytest.raises(StateError, match='reset the environment first'):
        env.snapshot()
    env.reset(seed=1)
    observation, *_, info = env.step(np.ones(2, np.float32))
    capsule = env.snapshot()
    observation['place'][:] = 0
    assert (capsule.observation['place'][-1] != 0).all() and capsule.info['sum'] == info['sum']
    env.step(np.ones(2, np.float32))
    env.unwrapped.step = None  # control: it would be called
    seen, told = env.reset(options={'capsule': capsule})
    assert (seen['place'] == capsule.observation['place']).all() and told['sum'] == info['sum']
    del env.unwrapped.step
    again = EnvCapsule(bytes(capsule))
    assert bytes(again) == bytes(capsule) and again.environment == 'Walk'
    assert isinstance(env.env.env.obs_queue, deque)


def test_new_noise_from_a_capsule():
    """A seed beside the capsule changes what is random afterwards, and nothing else."""
    env = Checkpointable(Walk())
    env.reset(seed=1)
    capsule = env.snapshot()

    def played(seed):
        first = env.reset(seed=seed, options={'capsule': capsule})[0]['place'].tobytes()
        return first, env.step(np.zeros(2, np.float32))[0]['place'].tobytes()

    assert played(None) == played(None) and played(5) == played(5)
    assert played(5)[0] == played(None)[0] and played(5)[1] != played(None)[1]


@pytest.mark.parametrize(
    ('call', 'message'),
    [
        (lambda e, c: Checkpointable(Walk()).reset(options={'capsule': c}), 'cannot be set on'),
        (
            lambda e, c: e.reset(options={'capsule': c, 'start': 1}),
            'no other option; drop .*start',
        ),
        (lambda e, c: EnvCapsule(bytes(c)[:-1]), 'its header says'),
        (lambda e, c: EnvCapsule(b'x' * 99), 'expected'),
    ],
)
def test_wrong_capsules_are_refused_and_nothing_changes(call, message):
    """Other wrappers, other options, damaged bytes: one line each."""
    env = Checkpointable(wrapped())
    env.reset(seed=1)
    capsule = env.snapshot()
    env.step(np.ones(2, np.float32))
    before = bytes(env.snapshot())
    with pytest.raises(StateError, match=message) as caught:
        call(env, capsule)
    assert '\n' not in str(caught.value)
    assert bytes(env.snapshot()) == before


def test_a_wrapper_that_refuses_leaves_the_environment_alone():
    """All layers or none: what was set before the refusal is put back."""

    class Refuses(TellsItsHabit):
        """Takes nothing back."""

        def set_state(self, state):
            raise StateError('no')

    env = Checkpointable(Habit(Refuses(Walk())))
    env.reset(seed=1)
    capsule = env.snapshot()
    env.step(np.ones(2, np.float32))
    place = env.unwrapped.place.copy()
    # The way back is refused as well: the environment itself and plain wrappers still go back.
    with pytest.raises(StateError, match='no'):
        env.reset(options={'capsule': capsule})
    assert (env.unwrapped.place == place).all()
