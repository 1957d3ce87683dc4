"""What is true at which character of a state: taught inside the network while it trains.

A decision is one bit of teaching for hundreds of characters. Much of what leads to it is settled
on the way: which skill a phrase of the instruction means, whether a number lies beyond its limit,
what a note warns of. Each such fact is a class that the network names where it is settled, by a
head that is not exported. Lower down a second head names which skill of all there are is meant, by
an entry of the scene as by a phrase: what both have in common is how one finds the other. The
questions, and so the prompts, know nothing of it.
"""

from __future__ import annotations

from flashrt_policies.planner_lm import situation as rules
from flashrt_policies.planner_lm.situation import LETTERS, Situation
from flashrt_policies.planner_lm.training.instructions import Instruction
from flashrt_policies.planner_lm.training.robots import Facts

OTHERS = (
    'lacking', 'reached', 'another', 'inside', 'outside', 'fresh', 'stale', 'dead', 'few', 'many',
    'free', 'fault', 'emergency', 'calm', 'warning', 'stop',
)  # fmt: skip
CLASSES = (*LETTERS, *OTHERS)
# Characters after a phrase at which its meaning is asked for: by then it is clear where it ended.
LAG = 4


def marks(situation: Situation, asked: Instruction, facts: Facts) -> dict[int, int]:
    """Return place -> class, an index into `CLASSES`.

    Args:
        situation: the state.
        asked: the instruction that it holds.
        facts: the robot's part of it.
    """
    found: dict[int, str] = {}
    begin = 0
    for line in situation.text.split('\n'):
        name, _, rest = line.partition(' ')
        end = begin + len(line)  # where the line break stands, or would
        if name == 'task:':
            for at, skill in asked.said:
                place = min(begin + len(name) + 1 + at + LAG, end)
                known = skill in situation.skills
                found[place] = LETTERS[situation.skills.index(skill)] if known else 'lacking'
        elif name == 'true:' and situation.true:
            for i, skill in enumerate(situation.true):
                place = begin + len(name) + 1 + 2 * i
                found[place] = 'reached' if skill == situation.now else 'another'
        elif name == 'hand':
            found |= _numbers(situation, begin, line)
        elif name == 'held:':
            found[end] = {'': 'free', 'fault': 'fault', 'stop': 'emergency'}[facts.hold]
        elif name == 'note:':
            found[end - 1] = facts.kind if rest != rules.NOTHING else 'calm'
        begin = end + 1
    return {place: _INDEX[name] for place, name in found.items()}


def meant(situation: Situation, asked: Instruction) -> dict[int, str]:
    """Return place -> name of a skill: where its entry ends, or a phrase that means it.

    Args:
        situation: the state.
        asked: the instruction that it holds.
    """
    found: dict[int, str] = {}
    begin = 0
    for line in situation.text.split('\n'):
        name, _, rest = line.partition(' ')
        at = begin + len(name) + 1
        if name == 'can:':
            for entry, skill in zip(rest.split('; '), situation.skills, strict=False):
                found[at + len(entry)] = skill  # what stands behind it
                at += len(entry) + len('; ')
        elif name == 'task:':
            end = begin + len(line)
            found |= {min(at + place + LAG, end): skill for place, skill in asked.said if skill}
        begin += len(line) + 1
    return found


def _numbers(situation: Situation, begin: int, line: str) -> dict[int, str]:
    """Return what is settled in the line of numbers, each at the character after its number."""
    found: dict[int, str] = {}
    at = len('hand')
    for value, (low, high) in zip(situation.hand, rules.BOX, strict=False):
        at += 1 + len(f'{value:.2f}')
        found[begin + at] = 'inside' if low <= value <= high else 'outside'
    age = situation.age_ms
    late = 'dead' if age >= rules.DEAD_MS else 'stale' if age >= rules.STALE_MS else 'fresh'
    found[begin + line.index(' ms')] = late
    found[begin + len(line)] = 'many' if situation.missed >= rules.MISSED else 'few'
    return found


_INDEX = {name: i for i, name in enumerate(CLASSES)}
