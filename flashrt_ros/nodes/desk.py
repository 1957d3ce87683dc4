"""The Decide service: whoever wants puts questions of their own to the planner's model."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from flashrt_interfaces.msg import Answer, Question
from flashrt_interfaces.srv import Decide
from flashrt_ros.control.deciding import DecidingPlanner
from flashrt_ros.control.planner import Planner
from flashrt_ros.errors import FlashrtError
from flashrt_ros.nodes import names
from flashrt_ros.nodes.base import answers
from flashrt_ros.nodes.judging import RULES, ModelJudge


class Desk:
    """Answers questions put to the planner's model over the Decide service.

    Args:
        node: whose service it is.
        planner: returns the planner in force.
        call: runs a job where graphs are replayed, and returns what it returns.
        aside: that is another thread, and waited for.
    """

    def __init__(
        self,
        node: Any,
        planner: Callable[[], Planner],
        call: Callable[[Callable[[], Any]], Any],
        aside: bool = False,
    ) -> None:
        self._node, self._planner, self._call = node, planner, call
        node.offer(Decide, names.DECIDE, self._serve, aside)

    def _serve(self, request: Decide.Request, response: Decide.Response) -> Decide.Response:
        done: Decide.Response = answers(self.decide)(self._node, request, response)
        return done

    def decide(self, node: Any, request: Decide.Request, response: Decide.Response) -> str:
        """Fill in the answers; return the sentence that says what was done.

        Raises:
            FlashrtError: the planner goes by rule, there is no situation yet, or a question
                cannot be asked.
        """
        planner = self._planner()
        if not isinstance(planner, DecidingPlanner) or not isinstance(planner.judge, ModelJudge):
            raise FlashrtError(
                f'the planner goes by rule and answers no questions; set planner to a checkpoint '
                f'instead of {RULES!r}'
            )
        judge = planner.judge
        situation = judge.situation
        if not request.state and situation is None:
            raise FlashrtError('there is no situation yet; start an episode, or send a state')
        response.state = request.state or (situation.text if situation else '')
        questions = [question_of(msg) for msg in request.questions]
        if not questions and situation is not None:
            questions = list(situation.questions)
        began = time.perf_counter()
        found = self._call(lambda: judge.decider.decide(response.state, questions, keep=False))
        response.decide_ms = (time.perf_counter() - began) * 1e3
        for question, answer in zip(questions, found, strict=True):
            msg = Answer(answer=answer.text, probability=answer.probability)
            msg.probabilities = list(answer.probabilities)
            values = {'YesNo': answer.yes, 'Choice': float(answer.index), 'Score': answer.level}
            msg.value = values[type(question).__name__]
            response.answers.append(msg)
        return f'{len(questions)} questions answered in {response.decide_ms:.0f} ms'


def question_of(msg: Question) -> Any:
    """Return a message's question.

    Raises:
        FlashrtError: its kind is unknown.
    """
    from flashrt_policies.planner_lm.questions import Choice, Score, YesNo

    options, notes = tuple(msg.options), tuple(msg.descriptions)
    if msg.kind == Question.KIND_YES_NO:
        return YesNo(msg.text)
    if msg.kind == Question.KIND_CHOICE:
        return Choice(msg.text, options, notes)
    if msg.kind == Question.KIND_SCORE:
        return Score(msg.text, options)
    kinds = (Question.KIND_YES_NO, Question.KIND_CHOICE, Question.KIND_SCORE)
    raise FlashrtError(f'question kind {msg.kind!r}; want one of {", ".join(kinds)}')
