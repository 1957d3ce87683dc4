"""Examples: a situation, the right answers of the planner's four questions, and what leads there.

A number decides each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from flashrt_policies.planner_lm.situation import CANNOT, FINISHED, LETTERS, Situation
from flashrt_policies.planner_lm.training import robots
from flashrt_policies.planner_lm.training.instructions import Composer, Instruction
from flashrt_policies.planner_lm.training.marks import marks, meant
from flashrt_policies.planner_lm.training.words import Words

DECISIONS = ('next', 'done', 'safe', 'stop')  # what the planner asks, in `Situation.questions`
LONGEST = 640  # bytes of a state; longer ones are drawn again


@dataclass(frozen=True)
class Example:
    """One situation.

    Attributes:
        situation: what the planner knows.
        answers: index of the right option of each of its questions.
        possible: the instruction can be carried out.
        plan: all steps, as options of what comes next, `FINISHED` or `CANNOT` at the end.
        marks: character of the state -> what is settled there, see `marks`.
        meant: character of the state -> which of all skills, by number, see `marks.meant`.
    """

    situation: Situation
    answers: tuple[int, ...]
    possible: bool
    plan: tuple[str, ...]
    marks: Mapping[int, int]
    meant: Mapping[int, int]


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
        self.numbers = {name: i for i, name in enumerate(words.skills)}

    def __getitem__(self, index: int) -> Example:
        """Return the example of that number, always the same."""
        rng = Random(f'{self.seed}/{int(self.held_out)}/{index}')
        while True:
            example = self._draw(rng)
            if len(example.situation.text.encode()) <= LONGEST:
                return example

    def _draw(self, rng: Random) -> Example:
        scene = self._scene(rng)
        asked = self.composer.compose(rng, scene, lack=rng.random() < 0.2)
        planning = rng.random() < 0.4
        blank = planning and rng.random() < 0.5
        facts = robots.NOTHING if blank else robots.draw(rng, self.words, self.held_out)
        situation, following = self._moment(rng, scene, asked, facts, planning)
        reached = bool(situation.now) and situation.now in situation.true
        yes, no = 0, 1
        answers = (
            situation.options.index(self._option(situation, following)),
            yes if reached else no,
            yes if facts.safe else no,
            yes if facts.stop else no,
        )
        steps = (*asked.steps, FINISHED) if asked.possible else (CANNOT,)
        plan = tuple(self._option(situation, step) for step in steps)
        named = {at: self.numbers[name] for at, name in meant(situation, asked).items()}
        return Example(
            situation, answers, asked.possible, plan, marks(situation, asked, facts), named
        )

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
        self,
        rng: Random,
        scene: list[str],
        asked: Instruction,
        facts: robots.Facts,
        planning: bool,
    ) -> tuple[Situation, str]:
        """Return a moment on the way through the steps, and what comes next in it.

        Args:
            rng: decides everything.
            scene: the skills that there are.
            asked: the instruction.
            facts: what the robot reports.
            planning: the plan is still being made: nothing is under way.
        """
        steps = asked.steps if asked.possible else ()
        at = rng.randint(0, len(steps)) if rng.random() < 0.8 else 0
        working = at < len(steps) and not planning
        now = steps[at] if working else ''
        reached = working and rng.random() < 0.5
        true = [s for s in scene if s != now and rng.random() < (0.5 if s in steps[:at] else 0.2)]
        true = [*true, now] if reached else true
        rng.shuffle(true)
        situation = Situation(
            tuple(scene), asked.text, tuple(steps[:at]), now,
            () if facts is robots.NOTHING else tuple(true), facts.hand, facts.grip,
            facts.age_ms, facts.missed, facts.held, facts.note,
        )  # fmt: skip
        if not asked.possible:
            return situation, CANNOT
        ahead = steps[at + 1 :] if reached else steps[at:]
        return situation, ahead[0] if ahead else FINISHED

    @staticmethod
    def _option(situation: Situation, meant: str) -> str:
        """Return the option that a skill, `FINISHED` or `CANNOT` is."""
        return LETTERS[situation.skills.index(meant)] if meant in situation.skills else meant
