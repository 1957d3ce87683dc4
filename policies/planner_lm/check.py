"""Measures a planner where it runs: held-out situations through the engine that the robot uses."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from flashrt_policies.planner_lm.decide import Decider
from flashrt_policies.planner_lm.training.examples import DECISIONS, Example
from flashrt_policies.planner_lm.training.measure import Tally, summarise


@dataclass
class Report:
    """What was measured.

    Attributes:
        kinds: per kind of decision, and of all together, the share that was right, the
            calibration error and the count; ``cannot``: of `next` where the scene lacks
            something.
        ms: wall time of each round, milliseconds.
        wrong: situations and what was answered instead, for people to read.
    """

    kinds: dict[str, dict[str, float]]
    ms: list[float]
    wrong: list[str] = field(default_factory=list)

    @property
    def median_ms(self) -> float:
        """Half of the rounds took no longer, milliseconds."""
        return statistics.median(self.ms)


def check(decider: Decider, examples: Iterable[Example]) -> Report:
    """Ask the planner's four questions about each situation in one round.

    Args:
        decider: the planner.
        examples: situations with right answers.
    """
    tallies = {name: Tally() for name in (*DECISIONS, 'cannot')}
    spent, wrong = [], []
    for example in examples:
        questions = example.situation.questions
        began = time.perf_counter()
        answers = decider.decide(example.situation.text, questions, keep=False)
        spent.append((time.perf_counter() - began) * 1e3)
        for name, answer, want in zip(DECISIONS, answers, example.answers, strict=True):
            right = answer.index == want
            tallies[name].add([right], [answer.probability])
            if name == 'next' and not example.possible:
                tallies['cannot'].add([right], [answer.probability])
            if not right:
                wrong.append(
                    f'{example.situation.text}\n{name}: {answer.options[want]}, answered '
                    f'{answer.text} ({100 * answer.probability:.0f} %)'
                )
    return Report(summarise(tallies), spent, wrong)
