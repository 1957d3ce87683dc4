"""Examples: a situation, every question about it, and the right answers; a number decides each."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from flashrt_policies.planner_lm.questions import Choice, Question, Score, YesNo, levels
from flashrt_policies.planner_lm.situation import (
    CANNOT,
    DONE,
    FINISHED,
    NEXT,
    SAFE,
    STOP,
    Situation,
)
from flashrt_policies.planner_lm.training import robots
from flashrt_policies.planner_lm.training.instructions import Composer, Instruction
from flashrt_policies.planner_lm.training.words import Words, plain

DECISIONS = ('done', 'next', 'safe', 'stop')  # what the planner asks in every round
LEFT = Score('How many are left?', levels(7))
LONGEST = 640  # bytes of a state; longer ones are drawn again


@dataclass(frozen=True)
class Example:
    """One situation with its questions.

    Attributes:
        situation: what the planner knows.
        kinds: what each question is about, the four `DECISIONS` first.
        questions: in the same order.
        answers: index of the right option of each.
        possible: the instruction can be carried out.
    """

    situation: Situation
    kinds: tuple[str, ...]
    questions: tuple[Question, ...]
    answers: tuple[int, ...]
    possible: bool


class Examples:
    """All examples of one split.

    Args:
        words: how people ask, and which scenes there are.
        seed: of everything.
        held_out: the split for measuring: ways and blocks that are never trained.
    """

    def __init__(self, words: Words, seed: int, held_out: bool = False) -> None:
        self.words, self.seed, self.held_out = words, seed, held_out
        self.scenes = (*words.scenes * 4, *((name,) for name in words.skills))
        self.composer = Composer(words, held_out)

    def __getitem__(self, index: int) -> Example:
        """Return the example of that number, always the same."""
        rng = Random(f'{self.seed}/{int(self.held_out)}/{index}')
        while True:
            example = self._draw(rng)
            if len(example.situation.text.encode()) <= LONGEST:
                return example

    def _draw(self, rng: Random) -> Example:
        scene = self._scene(rng)
        asked = self.composer.compose(rng, scene, lack=rng.random() < 0.22)
        facts = robots.draw(rng, self.words, self.held_out)
        situation, right = self._moment(rng, scene, asked, facts)
        kinds, questions, answers = self._questions(rng, situation, asked, facts, right)
        return Example(situation, kinds, questions, answers, asked.possible)

    def _scene(self, rng: Random) -> list[str]:
        """Return the skills of an offered scene, or of one that could be, in any order."""
        if rng.random() < 0.4:
            scene = list(rng.choice(self.scenes))
        else:
            count = rng.choices((1, 2, 3, 4, 5, 6, 8, 10), (6, 16, 20, 20, 14, 12, 8, 4))[0]
            names = list(self.words.skills)
            scene = rng.sample(names, min(count, len(names)))
            if rng.random() < 0.6:  # things that can be both opened and closed
                first = rng.choice(scene)
                thing = self.words.skills[first].thing
                also = [n for n in names if n not in scene and self.words.skills[n].thing == thing]
                scene += also[:1]
        rng.shuffle(scene)
        return scene

    def _moment(
        self, rng: Random, scene: list[str], asked: Instruction, facts: robots.Facts
    ) -> tuple[Situation, str]:
        """Return a moment on the way through the steps, and what comes next in it."""
        steps = asked.steps if asked.possible else ()
        at = rng.randint(0, len(steps)) if rng.random() < 0.8 else 0
        working = at < len(steps) and rng.random() < 0.85
        now = steps[at] if working else ''
        reached = working and rng.random() < 0.5
        true = [s for s in scene if s != now and rng.random() < (0.5 if s in steps[:at] else 0.2)]
        true = [*true, now] if reached else true
        rng.shuffle(true)
        situation = Situation(
            tuple(scene), asked.text, tuple(steps[:at]), now, tuple(true), facts.hand, facts.grip,
            facts.age_ms, facts.missed, facts.held, facts.note,
        )  # fmt: skip
        if not asked.possible:
            return situation, CANNOT
        ahead = steps[at + 1 :] if reached else steps[at:]
        return situation, ahead[0] if ahead else FINISHED

    def _questions(
        self,
        rng: Random,
        situation: Situation,
        asked: Instruction,
        facts: robots.Facts,
        right: str,
    ) -> tuple[tuple[str, ...], tuple[Question, ...], tuple[int, ...]]:
        def yes(question: YesNo, answer: bool) -> tuple[Question, int]:
            return question, 0 if answer else 1

        def option(meant: str) -> int:
            return [situation.meaning(name) for name in situation.options].index(meant)

        reached = bool(situation.now) and situation.now in situation.true
        following = situation.next
        rows: dict[str, tuple[Question, int]] = {
            'done': yes(DONE, reached),
            'next': (following, option(right)),
            'safe': yes(SAFE, facts.safe),
            'stop': yes(STOP, facts.stop),
            'possible': yes(YesNo('Can it be done?'), asked.possible),
        }
        steps = asked.steps
        if asked.possible:
            left = len(steps) - len(situation.done) - reached
            rows['left'] = (LEFT, min(left, 6))
        if asked.possible and steps:
            for kind, text, step in (
                ('first', 'What comes first?', steps[0]), ('last', 'What comes last?', steps[-1])
            ):  # fmt: skip
                rows[kind] = Choice(text, situation.options), option(step)
            name = rng.choice(steps) if rng.random() < 0.5 else rng.choice(situation.skills)
            way = plain(self.composer.way(rng, self.words.skills[name]))
            rows['asked'] = yes(YesNo(f'Must it {way}?'), name in steps)
        return (
            tuple(rows), tuple(q for q, _ in rows.values()), tuple(a for _, a in rows.values())
        )  # fmt: skip


__all__ = ['DECISIONS', 'NEXT', 'Example', 'Examples']
