"""A planner that asks: what comes next, is it done, is it safe, must we stop.

Who answers is a `Judge` (a language model, in the nodes). The plan is what the judge says comes
next when each step is done; then, while the robot works, it is asked again and again, and nothing
happens that it is not sure of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from flashrt_ros.control.planner import (
    DONE,
    FAILED,
    KEEP,
    NEXT,
    Decision,
    Facts,
    PlannerError,
)

FINISHED, CANNOT = 'finished', 'cannot'
LONGEST_PLAN = 16


@dataclass(frozen=True)
class Verdict:
    """What a judge says of a moment.

    Attributes:
        next: the skill to work on from here, `FINISHED` or `CANNOT`.
        sure: probability of that.
        done: probability that the current subgoal is done.
        safe: probability that it is safe to go on.
        stop: probability that the robot must stop.
        handed: whether the following subgoal was handed over on the device; None = the judge
            hands nothing over.
    """

    next: str
    sure: float
    done: float = 0.0
    safe: float = 1.0
    stop: float = 0.0
    handed: bool | None = None


@dataclass(frozen=True)
class Moment:
    """What is judged.

    Attributes:
        task: the instruction.
        history: subgoals reached so far, in order.
        now: the current one; empty while a plan is made.
        following: the subgoal that a judge may hand over by itself; empty = none.
        facts: what the robot reports; None while a plan is made.
        tick: the control tick, -1 while a plan is made.
    """

    task: str
    history: tuple[str, ...]
    now: str = ''
    following: str = ''
    facts: Facts | None = None
    tick: int = -1


class Judge(Protocol):
    """Whoever answers."""

    def judge(self, moment: Moment, least: float) -> Verdict:
        """Judge a moment.

        Args:
            moment: what is judged.
            least: how sure every answer must be before a subgoal is handed over.
        """


class DecidingPlanner:
    """Plans and goes on by a judge's word.

    Args:
        judge: who answers.
        skills: the subgoals that a policy was trained on. Nothing else is ever posted.
        sure: how sure an answer must be to count, 0.5 to 1.
        max_ticks: ticks after which a subgoal counts as failed; 0 = never.
    """

    def __init__(
        self, judge: Judge, skills: Sequence[str], sure: float = 0.8, max_ticks: int = 0
    ) -> None:
        self.judge, self.skills = judge, tuple(skills)
        self.sure, self.max_ticks = sure, max_ticks
        self._task = ''
        self._plan: tuple[str, ...] = ()
        self._index = 0
        self._since = 0  # tick at which the current subgoal was taken up

    @property
    def plan(self) -> tuple[str, ...]:
        """The subgoals of the current instruction, in order."""
        return self._plan

    @property
    def index(self) -> int:
        """Which of them is current; ``len(plan)`` once all are done."""
        return self._index

    def start(self, instruction: str) -> tuple[str, ...]:
        """Take an instruction and return the plan; on a `PlannerError` the old plan stays."""
        plan = self.parse(instruction)
        self._task, self._plan, self._index, self._since = instruction, plan, 0, 0
        return plan

    def parse(self, instruction: str) -> tuple[str, ...]:
        """Return the subgoals of ``instruction``, in order.

        Raises:
            PlannerError: it asks for what is not there, for nothing, or is not understood.
        """
        if not instruction.strip():
            raise PlannerError(f'the instruction is empty; say for example "{self.skills[0]}"')
        known = ', '.join(f'"{skill}"' for skill in self.skills)
        plan: list[str] = []
        while len(plan) < LONGEST_PLAN:
            verdict = self.judge.judge(Moment(instruction, tuple(plan)), self.sure)
            if verdict.next == CANNOT:
                raise PlannerError(f'"{instruction}" cannot be done here; what can: {known}')
            if verdict.sure < self.sure:
                raise PlannerError(
                    f'"{instruction}" is not clear (step {len(plan) + 1}: "{verdict.next}", '
                    f'{100 * verdict.sure:.0f} % sure); say it in other words; what can be '
                    f'done: {known}'
                )
            if verdict.next == FINISHED:
                break
            plan.append(verdict.next)
        else:
            raise PlannerError(
                f'"{instruction}" has more than {LONGEST_PLAN - 1} steps; give it in parts'
            )
        if not plan:
            raise PlannerError(f'"{instruction}" asks for nothing to be done; what can: {known}')
        return tuple(plan)

    def decide(self, tick: int, facts: Facts) -> Decision:
        """Ask, and go on where every answer says so surely enough."""
        if self._index >= len(self._plan):
            return Decision(DONE, '', 'every subgoal is reached')
        current = self._plan[self._index]
        ahead = self._plan[self._index + 1 :]
        following = ahead[0] if ahead else ''
        history = self._plan[: self._index]
        moment = Moment(self._task, history, current, following, facts, tick)
        verdict = self.judge.judge(moment, self.sure)
        if verdict.stop >= self.sure:
            return Decision(FAILED, current, f'stop: {100 * verdict.stop:.0f} % sure')
        if not self._agreed(verdict, following or FINISHED):
            if self.max_ticks and tick - self._since >= self.max_ticks:
                text = f'"{current}" is not reached after {tick - self._since} ticks'
                return Decision(FAILED, current, text)
            return Decision(KEEP, current, self._why(verdict))
        self._index, self._since = self._index + 1, tick
        if self._index == len(self._plan):
            return Decision(DONE, '', f'"{current}" is reached, and it was the last')
        handed = bool(verdict.handed)
        return Decision(NEXT, self._plan[self._index], f'"{current}" is reached', handed)

    def _agreed(self, verdict: Verdict, following: str) -> bool:
        """Whether every answer says that the current subgoal is over.

        What was decided on the device is so: the policy may be at it already.
        """
        if verdict.handed is not None:
            return verdict.handed
        least = self.sure
        certain = min(verdict.sure, verdict.done, verdict.safe) >= least
        return verdict.next == following and certain and verdict.stop <= 1 - least

    def _why(self, verdict: Verdict) -> str:
        if verdict.safe < self.sure:
            return f'not safe to go on: {100 * verdict.safe:.0f} % sure that it is'
        return ''

    def state(self) -> dict[str, object]:
        """Return instruction, plan and position in it."""
        return {
            'task': self._task,
            'plan': list(self._plan),
            'index': self._index,
            'since': self._since,
        }

    def set_state(self, state: dict) -> None:
        """Put back what `state` gave."""
        self._task = str(state['task'])
        self._plan = tuple(str(text) for text in state['plan'])
        self._index, self._since = int(state['index']), int(state['since'])
