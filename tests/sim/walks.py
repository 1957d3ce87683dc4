"""Environments whose capsules are whole, and one for each way in which they are not."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


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
