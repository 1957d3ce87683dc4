"""Capsules of environments, and the check that finds what one of them forgot."""

from __future__ import annotations

import copy
from collections import deque
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import (
    FrameStackObservation,
    NormalizeReward,
    RecordEpisodeStatistics,
    TimeLimit,
)

from flashrt_sim import Checkpointable, EnvCapsule, check_checkpointable
from flashrt_sim.checks import NotCheckpointable
from flashrt_sim.codec import StateError


class Walk(gymnasium.Env[Any, Any]):
    """A walk with wind and memory, whose state is whole; the broken ones below forget a part."""

    observation_space = spaces.Dict({'place': spaces.Box(-np.inf, np.inf, (2,), np.float64)})
    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        """Begin somewhere."""
        super().reset(seed=seed)
        self.place = self.np_random.normal(size=2)
        self.trail, self.sum = np.zeros(2), 0.0
        return self.seen(), self.info()

    def step(self, action):
        """Walk; the trail comes after."""
        self.trail *= 0.5
        self.trail += action
        self.place = self.place + self.trail + self.wind()
        self.sum += float(self.place.sum())
        return self.seen(), self.sum, False, False, self.info()

    def wind(self):
        """Random numbers of the environment's own."""
        return 0.1 * self.np_random.normal(size=2)

    def seen(self):
        """What is observed."""
        return {'place': self.place.copy()}

    def info(self):
        """What is told beside it."""
        return {'trail': self.trail.copy(), 'sum': self.sum}

    def get_state(self):
        """Everything that the next step depends on."""
        return {
            'place': self.place,
            'trail': self.trail,
            'sum': self.sum,
            'random': self.np_random.bit_generator.state,
        }

    def set_state(self, state):
        """Put it back."""
        place, trail, total, random = (state[k] for k in ('place', 'trail', 'sum', 'random'))
        self.place, self.trail, self.sum = place.copy(), trail.copy(), total
        self.np_random.bit_generator.state = random


class ForgetsAPart(Walk):
    """The trail is not put back."""

    def set_state(self, state):
        """Forgets."""
        super().set_state(state | {'trail': getattr(self, 'trail', state['trail'])})


class ForgetsItsSum(Walk):
    """What only the reward shows is not put back."""

    def set_state(self, state):
        """Forgets."""
        super().set_state(state | {'sum': getattr(self, 'sum', 0.0)})

    def info(self):
        """Does not tell the sum."""
        return {}


class ForgetsRandomNumbers(Walk):
    """The wind blows on."""

    def set_state(self, state):
        """Forgets."""
        super().set_state(state | {'random': self.np_random.bit_generator.state})


class ForgetsWhatItTells(Walk):
    """A count that only `info` shows."""

    count = 0

    def info(self):
        """Counts calls for ever."""
        self.count += 1
        return super().info() | {'count': self.count}

    def reset(self, *, seed=None, options=None):
        """Begin to count."""
        self.count = 0
        return super().reset(seed=seed)


class MovesWhenFrozen(Walk):
    """`get_state` draws a random number."""

    def get_state(self):
        """Moves."""
        self.np_random.normal()
        return super().get_state()


class KeepsWhatItIsGiven(Walk):
    """`get_state` hands out live memory, which a copy of the value shares."""

    held: Any = None

    def get_state(self):
        """The same box every time, which the next steps fill."""
        return super().get_state() | {'box': [self.sum]}

    def set_state(self, state):
        """Keeps the box of the first time, and goes by it ever after."""
        if type(self).held is None:
            type(self).held = state
        else:
            state = type(self).held
        self.place, self.trail, self.sum = state['place'], state['trail'], state['sum']
        self.np_random.bit_generator.state = state['random']


class WorksHereAlone(Walk):
    """Its state lies in the class's memory; what is handed out is a ticket."""

    def __init__(self):
        self.shelf = {}

    def get_state(self):
        """A ticket."""
        self.shelf[str(len(self.shelf))] = copy.deepcopy(super().get_state())
        return {'ticket': str(len(self.shelf) - 1)}

    def set_state(self, state):
        """Redeem it."""
        if state['ticket'] in self.shelf:
            super().set_state(self.shelf[state['ticket']])


class RefusesTooLate(Walk):
    """A part that is missing is found when others are set."""

    def set_state(self, state):
        """Sets one after the other."""
        self.place = state['place'].copy()
        self.trail = state['trail'].copy()
        self.sum = state['sum']
        self.np_random.bit_generator.state = state['random']


class IgnoresSeeds(Walk):
    """Every episode is another."""

    def reset(self, *, seed=None, options=None):
        """Does not hear."""
        return super().reset()


class Habit(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Adds the last action to the next; an attribute, so it is saved."""

    last = np.zeros(2)

    def reset(self, **options):
        """No habit yet."""
        self.last = np.zeros(2)
        return super().reset(**options)

    def step(self, action):
        """Both."""
        mixed, self.last = action + self.last, action
        return super().step(mixed)


class HiddenHabit(Habit):
    """The same, kept where nobody looks: in a function's memory."""

    def __init__(self, env):
        super().__init__(env)
        kept = [np.zeros(2, np.float32)]

        def mix(action):
            mixed, kept[0] = action + kept[0], action
            return mixed

        self.mix = mix

    def step(self, action):
        """Both."""
        return self.env.step(self.mix(action))

    def reset(self, **options):
        """No habit yet."""
        self.mix(np.zeros(2, np.float32))
        return self.env.reset(**options)


class TellsItsHabit(HiddenHabit):
    """Two methods make it whole."""

    def get_state(self):
        """The last action, found by asking for the next."""
        last = self.mix(np.zeros(2, np.float32))
        self.mix(last)
        return {'last': last}

    def set_state(self, state):
        """Put it back."""
        self.mix(state['last'])


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
