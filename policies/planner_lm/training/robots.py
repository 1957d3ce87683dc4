"""Made-up robot states, and what follows from them for "is it safe" and "must it stop".

Numbers are drawn on both sides of every limit of `situation`, close to it and far from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from flashrt_policies.planner_lm import situation as rules
from flashrt_policies.planner_lm.training.words import Words, unseen

# Holds that say nothing bad: the queue is empty at the start, or a chunk came late.
_HARMLESS = ('', '', '', '', '', '', 'no action for this tick', 'waiting for the first chunk')
_FAULTS = (
    'no command for {n} ms', 'command for tick {n}; the robot is at tick {m}',
    'action[{d}] = {f} lies above the limit 1.00', 'action[{d}] is not finite',
    'the sender is paused', 'command of epoch {n}; epoch {m} is in force',
    'observation is {n} ms old', 'image is black', 'action[{d}] changes by {f} in one tick',
)  # fmt: skip
_STOPS = ('emergency stop: {w}', 'emergency stop')
_WHY = ('operator', 'button pressed', 'no reason given', 'light curtain', 'door of the cell open')


@dataclass(frozen=True)
class Facts:
    """What a robot reports besides its task, and what follows.

    Attributes:
        hand: x, y, z in metres; empty where it does not say.
        grip: the gripper's opening, 0 to 1.
        age_ms: age of the observation, milliseconds.
        missed: control ticks missed since the last decision.
        held: why it holds; empty = it does not.
        note: what people say.
        hold: what holding means: '', 'fault' or 'stop'.
        kind: what the note means: 'calm', 'warning' or 'stop'.
        safe: it may go on to the next subgoal.
        stop: it must stop at once.
    """

    hand: tuple[float, ...]
    grip: float
    age_ms: int
    missed: int
    held: str
    note: str
    hold: str
    kind: str
    safe: bool
    stop: bool


NOTHING = Facts((), 1.0, 0, 0, '', '', '', 'calm', safe=True, stop=False)  # before a start


def draw(rng: Random, words: Words, held_out: bool) -> Facts:
    """Make up a robot's state: half of the time all is well."""
    trouble = set(rng.sample(range(6), rng.choices((0, 1, 2), (52, 36, 12))[0]))
    kind = rng.choice(('warning', 'stop')) if 4 in trouble else 'calm'
    note = _note(rng, words, kind, held_out) if 4 in trouble or rng.random() < 0.25 else ''
    held = _held(rng, 3 in trouble, 5 in trouble)
    age = _age(rng) if 0 in trouble else rng.randrange(rules.STALE_MS)
    missed = _number(rng, rules.MISSED, 60) if 1 in trouble else rng.randrange(rules.MISSED)
    hand = _hand(rng, outside=2 in trouble)
    fault = bool(held) and not held.startswith(rules.EMERGENCY) and 3 in trouble
    stop = (
        age >= rules.DEAD_MS or held.startswith(rules.EMERGENCY) or (bool(note) and kind == 'stop')
    )
    outside = any(not low <= v <= high for v, (low, high) in zip(hand, rules.BOX, strict=False))
    warned = bool(note) and kind != 'calm'
    bad = (age >= rules.STALE_MS, missed >= rules.MISSED, outside, fault, warned, stop)
    grip = round(rng.random(), 2)
    hold = 'stop' if held.startswith(rules.EMERGENCY) else 'fault' if fault else ''
    return Facts(hand, grip, age, missed, held, note, hold, kind, not any(bad), stop)


def _note(rng: Random, words: Words, kind: str, held_out: bool) -> str:
    while True:
        text = rng.choice(words.notes[kind])
        if unseen(text) == held_out:
            return text


def _held(rng: Random, fault: bool, emergency: bool) -> str:
    if emergency:
        return rng.choice(_STOPS).format(w=rng.choice(_WHY))
    if fault:
        n, d = rng.randrange(1, 2000), rng.randrange(8)
        return rng.choice(_FAULTS).format(n=n, m=n + rng.randrange(1, 40), d=d, f=_float(rng))
    return rng.choice(_HARMLESS)


def _float(rng: Random) -> str:
    return f'{rng.uniform(1, 9):.2f}'


def _age(rng: Random) -> int:
    span = rng.choice(((rules.STALE_MS, rules.DEAD_MS), (rules.DEAD_MS, 9000), (200, 300)))
    return rng.randrange(*span) if rng.random() < 0.8 else rng.randrange(900, 1100)


def _number(rng: Random, limit: int, most: int) -> int:
    return rng.randrange(limit, most) if rng.random() < 0.5 else rng.randrange(limit, limit + 4)


def _hand(rng: Random, outside: bool) -> tuple[float, ...]:
    if rng.random() < 0.1 and not outside:
        return ()
    hand = [round(rng.uniform(low, high), 2) for low, high in rules.BOX]
    if outside:
        axis = rng.randrange(3)
        low, high = rules.BOX[axis]
        gap = rng.choice((0.01, 0.05, 0.2, 1.0)) * rng.uniform(1, 2)
        hand[axis] = round(high + gap if rng.random() < 0.5 else low - gap, 2)
    return tuple(hand)
