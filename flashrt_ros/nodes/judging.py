"""The planner's judge: a language model, asked about the robot's situation in one round.

Here policy side and model side meet; no rclpy. `desk` lets others ask the same model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from flashrt_ros.control.deciding import DecidingPlanner, Moment, Verdict
from flashrt_ros.control.planner import Planner, PlannerError, ScriptedPlanner
from flashrt_ros.control.text import encode

if TYPE_CHECKING:
    from flashrt_policies.planner_lm.decide import Decider
    from flashrt_policies.planner_lm.handoff import HandOff
    from flashrt_policies.planner_lm.situation import Situation
    from flashrt_ros.contract.context import Context
    from flashrt_ros.control.mailbox import Mailbox

RULES = 'rules'  # in place of a checkpoint: plan by rule
TRAINED = 'short'  # style of the prompts of planners that were trained for these questions
SURE = 0.8  # how sure an answer must be to count
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
            meant = map(situation.meaning, situation.options)
            rows = [self._row(meaning, moment.following) for meaning in meant]
            with box.offering(moment.tick), hand_off.armed(rows, least):
                answers = self.decider.decide(situation.text, questions)
            handed = hand_off.chosen >= 0
        following, *rest = answers
        done, safe, stop = [answer.yes for answer in rest] or [0.0, 1.0, 0.0]
        meaning = situation.meaning(following.text)
        return Verdict(meaning, following.probability, done, safe, stop, handed)

    def _row(self, meaning: str, following: str) -> int:
        """Return the row that an answer hands over: only what the plan has next ever moves."""
        return self.skills.index(meaning) if meaning == following else -1

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
    planner: str,
    skills: Sequence[str],
    *,
    sure: float = SURE,
    max_ticks: int = 0,
    done_ticks: int = 1,
    ctx: Context | None = None,
    mailbox: Mailbox | None = None,
) -> Planner:
    """Return a planner.

    Args:
        planner: checkpoint of a language model, 'shipped', or `RULES`.
        skills: what the policy can do.
        sure: how sure an answer must be to count.
        max_ticks: ticks after which a subgoal counts as failed; 0 = never.
        done_ticks: by rule, ticks in a row a subgoal must be reached before it is over.
        ctx: the device, not frozen yet; None = the CPU, for this planner alone.
        mailbox: where the policy reads its subgoal on that device; None for a planner apart.

    Raises:
        CheckpointError: there is no such model.
        PlannerError: it has no skills to plan with, or was not trained on so many.
    """
    if planner == RULES:
        return ScriptedPlanner(skills, done_ticks, max_ticks)
    if not skills:
        raise PlannerError(
            f'planner {planner!r} has no skills to plan with, and the policy names none; list '
            'them in the parameter skills'
        )
    from flashrt_policies.planner_lm.decide import open_decider
    from flashrt_policies.planner_lm.handoff import HandOff
    from flashrt_policies.planner_lm.situation import MOST
    from flashrt_ros.capsule.registry import Registry
    from flashrt_ros.contract.context import Context

    ctx = ctx or Context('cpu')
    hand_off = None
    if mailbox is not None:
        rows = np.stack([encode(skill, mailbox.length) for skill in skills])
        hand_off = HandOff(ctx, rows, mailbox.gather, mailbox.buffers)
    decider = open_decider(
        planner,
        ctx,
        registry=Registry(ctx, CHECKPOINT_BYTES, keep=False),
        capacity=CAPACITY,
        longest_round=CAPACITY,
        hand_off=hand_off,
    )
    if decider.prompter.style == TRAINED and len(skills) > MOST:
        raise PlannerError(
            f'planner {planner!r} reads scenes of up to {MOST} skills, not of {len(skills)}; name '
            f"the scene's in the parameter skills, or set planner to {RULES!r}"
        )
    judge = ModelJudge(decider, skills, hand_off, mailbox)
    return DecidingPlanner(judge, skills, sure, max_ticks)


def asks(planner: Planner) -> bool:
    """Whether a planner asks a model, and so takes its time."""
    return isinstance(planner, DecidingPlanner)
