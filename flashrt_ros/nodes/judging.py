"""The planner's judge: a language model, asked about the robot's situation in one round.

Whoever wants may put questions of their own to it, over the Decide service.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from rclpy.callback_groups import MutuallyExclusiveCallbackGroup

from flashrt_interfaces.msg import Answer, Question
from flashrt_interfaces.srv import Decide
from flashrt_ros.control.deciding import DecidingPlanner, Moment, Verdict
from flashrt_ros.control.planner import Planner, ScriptedPlanner
from flashrt_ros.control.text import encode
from flashrt_ros.errors import FlashrtError
from flashrt_ros.nodes import names
from flashrt_ros.nodes.base import answers

if TYPE_CHECKING:
    from flashrt_policies.planner_lm.decide import Decider
    from flashrt_policies.planner_lm.handoff import HandOff
    from flashrt_policies.planner_lm.situation import Situation
    from flashrt_ros.contract.context import Context
    from flashrt_ros.control.mailbox import Mailbox

RULES = 'rules'  # in place of a checkpoint: plan by rule
CAPACITY = 2048  # tokens of the longest situation
CHECKPOINT_BYTES = 32 << 20  # for the states that a next situation resumes


class ModelJudge:
    """Asks a decider about the robot's situation.

    Args:
        decider: the model.
        skills: what the policy can do.
        hand_off: the end of its graph, where the policy reads the same device's mailbox.
        mailbox: that mailbox.
    """

    def __init__(
        self,
        decider: Decider,
        skills: Sequence[str],
        hand_off: HandOff | None = None,
        mailbox: Mailbox | None = None,
    ) -> None:
        self.decider, self.skills = decider, tuple(skills)
        self._hand_off, self._mailbox = hand_off, mailbox
        self.situation: Situation | None = None  # the last one

    def judge(self, moment: Moment, least: float) -> Verdict:
        """Put the situation into words and ask what comes next, is it done, is it safe, stop."""
        self.situation = situation = self._situation(moment)
        questions = situation.questions if moment.now else situation.questions[:1]
        hand_off, box = self._hand_off, self._mailbox
        handed: bool | None = None
        if hand_off is None or box is None or not moment.following or not box.settled:
            answers = self.decider.decide(situation.text, questions)
        else:
            options = situation.next.options
            rows = [self._row(option, moment.following) for option in options]
            with box.offering(moment.tick), hand_off.armed(rows, least):
                answers = self.decider.decide(situation.text, questions)
            handed = hand_off.chosen >= 0
        following, *rest = answers
        done, safe, stop = [answer.yes for answer in rest] or [0.0, 1.0, 0.0]
        return Verdict(following.text, following.probability, done, safe, stop, handed)

    def _row(self, option: str, following: str) -> int:
        """Return the row that an answer hands over: only what the plan has next ever moves."""
        return self.skills.index(option) if option == following else -1

    def _situation(self, moment: Moment) -> Situation:
        from flashrt_policies.planner_lm.situation import Situation

        facts = moment.facts
        if facts is None:
            return Situation(self.skills, moment.task, moment.history)
        true = tuple(skill for skill in self.skills if facts.reached.get(skill, False))
        return Situation(
            self.skills, moment.task, moment.history, moment.now, true, facts.hand, facts.grip,
            facts.age_ms, facts.missed, facts.held, facts.note,
        )  # fmt: skip


def make_planner(
    params: Any, skills: Sequence[str], ctx: Context | None = None, mailbox: Mailbox | None = None
) -> Planner:
    """Return the planner that a node's parameters ask for.

    Args:
        params: `PLANNER_PARAMS`.
        skills: what the policy can do.
        ctx: the device that policy and planner share, not frozen yet; None for a planner apart.
        mailbox: where the policy reads its subgoal on that device.

    Raises:
        CheckpointError: there is no such model.
    """
    if params.planner == RULES:
        return ScriptedPlanner(skills, params.done_ticks, params.subgoal_max_ticks)
    from flashrt_policies.planner_lm.decide import open_decider
    from flashrt_policies.planner_lm.handoff import HandOff
    from flashrt_ros.capsule.registry import Registry
    from flashrt_ros.contract.context import Context

    ctx = ctx or Context(params.planner_device)
    hand_off = None
    if mailbox is not None:
        rows = np.stack([encode(skill, mailbox.length) for skill in skills])
        hand_off = HandOff(ctx, rows, mailbox.gather, mailbox.buffers)
    decider = open_decider(
        params.planner,
        ctx,
        registry=Registry(ctx, CHECKPOINT_BYTES, keep=False),
        capacity=CAPACITY,
        longest_round=CAPACITY,
        hand_off=hand_off,
    )
    judge = ModelJudge(decider, skills, hand_off, mailbox)
    return DecidingPlanner(judge, skills, params.sure, params.subgoal_max_ticks)


def asks(planner: Planner) -> bool:
    """Whether a planner asks a model, and so takes its time."""
    return isinstance(planner, DecidingPlanner)


class Desk:
    """Answers questions put to the planner's model over the Decide service.

    Args:
        node: whose service it is.
        planner: returns the planner in force.
        call: runs a job where graphs are replayed, and returns what it returns.
    """

    def __init__(
        self, node: Any, planner: Callable[[], Planner], call: Callable[[Callable[[], Any]], Any]
    ) -> None:
        self._node, self._planner, self._call = node, planner, call
        group = MutuallyExclusiveCallbackGroup()
        node.offer(Decide, names.DECIDE, self._serve, group)

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
