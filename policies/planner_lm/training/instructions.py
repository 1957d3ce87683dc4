"""Instructions made up from steps and building blocks.

An instruction for measuring is built from held-out blocks and held-out ways wherever they exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from flashrt_policies.planner_lm.training import blocks
from flashrt_policies.planner_lm.training.words import (
    SAID,
    Skill,
    Words,
    gerund,
    participle,
    plain,
    unseen,
    with_pronoun,
)


@dataclass(frozen=True)
class Instruction:
    """What somebody asks for.

    Attributes:
        text: in lower case.
        steps: the skills asked for, in the order in which they must be done.
        possible: the scene has all of them, and it is clear what is meant.
        said: where in the text a way ends, and the skill that it means; '' where it means none.
    """

    text: str
    steps: tuple[str, ...]
    possible: bool
    said: tuple[tuple[int, str], ...] = ()


class Composer:
    """Makes up instructions.

    Args:
        words: how people ask for skills.
        held_out: use held-out blocks and ways wherever there are any, for measuring.
    """

    def __init__(self, words: Words, held_out: bool = False) -> None:
        self.words, self.held_out = words, held_out
        ways = [(w, (s.text,)) for s in words.skills.values() for w in (*s.ways, *s.held_out)]
        loose = [(w, skills) for said, skills in words.loose for w in said]
        self._meant: dict[str, set[str]] = {}  # way with "it" for its thing -> what it may mean
        for way, skills in (*ways, *loose):
            self._meant.setdefault(with_pronoun(way), set()).update(skills)
        self._loosely = frozenset(plain(way) for way, _ in loose)

    def pick(self, rng: Random, table: Sequence[str]) -> str:
        """Return one block of a table: never a held-out one in training."""
        trained, marked = blocks.parts(tuple(table))
        if self.held_out and marked and rng.random() < 0.6:
            return rng.choice(marked)
        return rng.choice(trained)

    def way(self, rng: Random, skill: Skill) -> str:
        """Return one way to ask for a skill, the thing in braces."""
        if self.held_out and skill.held_out and rng.random() < 0.8:
            return rng.choice(skill.held_out)
        return skill.ways[0] if rng.random() < 0.15 else rng.choice(skill.ways)

    def compose(self, rng: Random, scene: Sequence[str], lack: bool) -> Instruction:
        """Make up an instruction.

        Args:
            rng: decides everything.
            scene: the skills that the scene has.
            lack: ask for something that it has not, among other things.
        """
        if not lack and rng.random() < 0.03:
            return self._only_not(rng, scene)
        count = rng.choices((1, 2, 3, 4, 5), (32, 32, 20, 11, 5))[0]
        count = count if len(scene) > 1 else min(count, 2)
        steps = _draw(rng, scene, count)
        ways = self._ways(rng, steps, scene)
        possible = True
        if lack:
            at = rng.randrange(count)
            ways[at], steps[at] = self._elsewhere(rng, scene, ways)
            possible = False
        elif count == 1 and rng.random() < 0.03:
            text = with_pronoun(ways[0])  # nothing before it says what is meant
            if 'it' in text.split() and 'it' not in plain(ways[0]).split():
                text, said = _told(self._wrap(rng, text + SAID[0], True), [''])
                return Instruction(text, tuple(steps), False, said)
        named = list(steps)
        text, verb_first, steps = self._arrange(rng, ways, steps)
        text, verb_first, refused = self._not(rng, text, verb_first, scene, steps)
        text, said = _told(self._wrap(rng, text, verb_first), [*named, refused])
        return Instruction(text, tuple(steps), possible, said)

    def _ways(self, rng: Random, steps: Sequence[str], scene: Sequence[str]) -> list[str]:
        ways, thing = [], ''
        for text in steps:
            skill = self.words.skills[text]
            way = self._loose(rng, text, scene) or self.way(rng, skill)
            short = with_pronoun(way)
            clear = thing == skill.thing and self._meant[short] & set(scene) == {text}
            thing = skill.thing
            ways.append(short if clear and rng.random() < 0.5 else way)
        return ways

    def _loose(self, rng: Random, text: str, scene: Sequence[str]) -> str:
        """Return fewer words for a skill, where the scene has only one that they can mean."""
        for ways, skills in self.words.loose:
            if text in skills and len(set(skills) & set(scene)) == 1 and rng.random() < 0.2:
                return rng.choice(ways)
        return ''

    def _elsewhere(
        self, rng: Random, scene: Sequence[str], ways: Sequence[str]
    ) -> tuple[str, str]:
        """Return a way to ask for something that the scene lacks, and its name."""
        others = [name for name in self.words.skills if not self._offered(name, scene)]
        if rng.random() < 0.65 and others:
            near = [n for n in others if self._thing(n) in {self._thing(s) for s in scene}]
            name = rng.choice(near if near and rng.random() < 0.5 else others)
            way = self.way(rng, self.words.skills[name])
            said = plain(way)
            meant = any(said in self.words.skills[other].said for other in scene)
            if not meant and said not in self._loosely:
                return said, name
        return self._foreign(rng), ''

    def _offered(self, name: str, scene: Sequence[str]) -> bool:
        """Whether a scene has a skill, or one so near it that asking for it could mean that."""
        return name in scene or any(
            name in pair and other in scene for pair in self.words.akin for other in pair
        )

    def _thing(self, name: str) -> str:
        return self.words.skills[name].thing

    def _foreign(self, rng: Random) -> str:
        foreign = self.words.foreign
        while True:
            kind = rng.random()
            if kind < 0.25:
                text = rng.choice(foreign['whole'])
            elif kind < 0.5:  # a known way with another thing
                way = self.way(rng, self.words.skills[rng.choice(list(self.words.skills))])
                head, _, rest = way.partition('{')
                tail = rest.partition('}')[2]
                thing = rng.choice(foreign['things'])
                text = f'{head}the {thing}{tail}' if rest else f'open the {thing}'
            else:
                text = f'{rng.choice(foreign["verbs"])} the {rng.choice(foreign["things"])}'
            if unseen(text, 8) == self.held_out:
                return text

    def _only_not(self, rng: Random, scene: Sequence[str]) -> Instruction:
        name = rng.choice(list(scene))
        way = plain(self.way(rng, self.words.skills[name])) + SAID[0]
        text = self.pick(rng, blocks.NOTS_ALONE).format(x=way, gx=gerund(way))
        text, said = _told(self._wrap(rng, text, False), [name])
        return Instruction(text, (), True, said)

    def _arrange(
        self, rng: Random, ways: list[str], steps: list[str]
    ) -> tuple[str, bool, list[str]]:
        """Return the steps as one text, whether it begins with a verb, and what is to be done."""
        texts = [plain(way) + mark for way, mark in zip(ways, SAID, strict=False)]
        count, kind = len(ways), rng.random()
        if count == 1:
            if kind < 0.06:
                return self.pick(rng, blocks.TWICE).format(b=texts[0]), True, steps * 2
            return texts[0], True, steps
        # "It" must stay what was named last, so such steps keep their order in the text.
        pronoun = any('it' in plain(way).split() for way in ways[1:3])
        if kind < 0.28 and not pronoun:
            template = self.pick(rng, blocks.PAIRS)
            text = template.format(
                b1=texts[0], b2=texts[1], g1=gerund(texts[0]), g2=gerund(texts[1]),
                p1=participle(texts[0]), p2=participle(texts[1]),
            )  # fmt: skip
            return self._join(rng, text, texts[2:]), template.startswith('{b'), steps
        if kind < 0.36:
            number = self.pick(rng, blocks.NUMBERS)
            end = rng.choice((' ', '. ', ', ', '; '))
            names = blocks.ORDINALS if 'step' in number and rng.random() < 0.5 else '123456'
            parts = [number.format(n=names[i]) + text for i, text in enumerate(texts)]
            return end.join(parts), False, steps
        if kind < 0.46:
            return ', '.join(texts[:-1]) + rng.choice((' and ', ', and ')) + texts[-1], True, steps
        opener = self.pick(rng, blocks.OPENERS)
        head = opener.format(g=gerund(texts[0]))
        text = head if '{g}' in opener else head + texts[0]
        verb_first = opener in ('', 'first ', 'first of all ')
        return self._join(rng, text, texts[1:]), verb_first, steps

    def _join(self, rng: Random, text: str, rest: Sequence[str]) -> str:
        for index, step in enumerate(rest):
            last = index == len(rest) - 1 and rng.random() < 0.6
            join = self.pick(rng, blocks.LASTS if last else blocks.JOINS)
            text += join.format(g=gerund(step)) if '{g}' in join else join + step
        return text

    def _not(
        self, rng: Random, text: str, verb_first: bool, scene: Sequence[str], steps: Sequence[str]
    ) -> tuple[str, bool, str]:
        """Add, now and then, what must not be done, of this scene or of another; return that."""
        if rng.random() > 0.2:
            return text, verb_first, ''
        here = [name for name in scene if name not in steps]
        pool = here if here and rng.random() < 0.6 else list(self.words.skills)
        name = rng.choice(pool)
        if name in steps:
            return text, verb_first, ''
        way = plain(self.way(rng, self.words.skills[name])) + SAID[-1]
        filling = {'x': way, 'gx': gerund(way)}
        if verb_first and rng.random() < 0.45:
            return self.pick(rng, blocks.NOTS_BEFORE).format(**filling) + text, False, name
        return text + self.pick(rng, blocks.NOTS_AFTER).format(**filling), verb_first, name

    def _wrap(self, rng: Random, text: str, verb_first: bool) -> str:
        if verb_first:
            text = self.pick(rng, blocks.WRAPS).format(text)
        elif rng.random() < 0.1:
            text = f'please, {text}'
        text = self.pick(rng, blocks.FRONTS) + text + self.pick(rng, blocks.BACKS)
        if rng.random() < 0.06:
            text = text.replace(' the ', ' ')
        return ' '.join(text.lower().split())


def _told(text: str, names: Sequence[str]) -> tuple[str, tuple[tuple[int, str], ...]]:
    """Take the marks out of a text; return it, and where they stood with what they stood for.

    Args:
        text: with marks from `SAID`; the last one stands for the last name.
        names: of skills.
    """
    said = []
    while (at := next((i for i, c in enumerate(text) if c in SAID), -1)) >= 0:
        mark = SAID.index(text[at])
        said.append((at, names[-1 if mark == len(SAID) - 1 else mark]))
        text = text[:at] + text[at + 1 :]
    return text, tuple(said)


def _draw(rng: Random, scene: Sequence[str], count: int) -> list[str]:
    """Return `count` skills of a scene, no two alike in a row where it has more than one."""
    steps: list[str] = []
    while len(steps) < count:
        pool = [name for name in scene if not steps or name != steps[-1] or len(scene) == 1]
        fresh = [name for name in pool if name not in steps]
        steps.append(rng.choice(fresh if fresh and rng.random() < 0.8 else pool))
    return steps
