"""From an instruction to subgoals, one at a time.

A planner is asked once for a plan and then, again and again, whether the current subgoal is over.
`DecidingPlanner` (in `deciding`) asks a language model. `ScriptedPlanner` goes by rule: for tests,
and for machines that must not load one.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from flashrt_ros.errors import FlashrtError

KEEP, NEXT, DONE, FAILED = 'keep', 'next', 'done', 'failed'
_SEPARATOR = re.compile(r'\s*(?:;|\.(?=\s)|,?\s*\b(?:and\s+)?then\b|,(?:\s*and\b)?)\s*')
_AND = re.compile(r'\s+and\s+')
_PRONOUN = re.compile(r'\b(?:it|that|this|them)$')
_FILLER = frozenset({'please', 'first', 'finally', 'now', 'the', 'a', 'an', 'again'})


class PlannerError(FlashrtError, ValueError):
    """An instruction that nobody understands; the message names what is understood."""


@dataclass(frozen=True)
class Decision:
    """What a planner says at one tick.

    Attributes:
        kind: ``keep`` the subgoal, go on to the ``next``, the plan is ``done`` or ``failed``.
        subgoal: The subgoal from now on; empty once the plan is over.
        reason: Why, in words.
        handed: The subgoal is in the policy's mailbox already.
    """

    kind: str
    subgoal: str
    reason: str = ''
    handed: bool = False


@dataclass(frozen=True)
class Facts:
    """What the robot reports at one tick.

    Attributes:
        reached: skill -> whether its condition holds at this moment.
        hand: x, y, z in metres; empty where the robot does not say.
        grip: the gripper's opening, 0 to 1.
        age_ms: age of the observation, milliseconds.
        missed: control ticks missed since the last decision.
        held: why the robot holds; empty = it does not.
        note: what people say meanwhile, in words.
    """

    reached: Mapping[str, bool]
    hand: tuple[float, ...] = ()
    grip: float = 1.0
    age_ms: float = 0.0
    missed: int = 0
    held: str = ''
    note: str = ''


class Planner(Protocol):
    """What the brain asks of a planner. Its whole state goes in and out as one dict."""

    @property
    def plan(self) -> tuple[str, ...]:
        """The subgoals of the current instruction, in order."""

    @property
    def index(self) -> int:
        """Which of them is current; ``len(plan)`` once all are done."""

    def start(self, instruction: str) -> tuple[str, ...]:
        """Take an instruction, return the plan; `PlannerError` if it is not understood."""

    def decide(self, tick: int, facts: Facts) -> Decision:
        """Say what follows from the robot's report at ``tick``."""

    def state(self) -> dict[str, object]:
        """Everything the next decision depends on."""

    def set_state(self, state: dict) -> None:
        """Put back what `state` gave."""


def normalise(text: str) -> str:
    """Return ``text`` in lower case without punctuation, articles and polite words."""
    words = re.findall(r"[\w'-]+", text.lower())
    return ' '.join(word for word in words if word not in _FILLER)


class ScriptedPlanner:
    """Plans by rule: "A, then B", "A and then B", "A; B", "A then close it".

    Args:
        skills: The subgoals a policy was trained on. Nothing else is ever posted.
        done_ticks: Ticks in a row a subgoal must be reported reached before it is over.
        max_ticks: Ticks after which a subgoal counts as failed; 0 = never.
    """

    def __init__(self, skills: Sequence[str], done_ticks: int = 1, max_ticks: int = 0) -> None:
        self.skills = tuple(skills)
        self.done_ticks = max(1, done_ticks)
        self.max_ticks = max_ticks
        self._known = {normalise(skill): skill for skill in self.skills}
        self._plan: tuple[str, ...] = ()
        self._index = 0
        self._since = 0  # tick at which the current subgoal was taken up
        self._streak = 0  # ticks in a row it has been reported reached

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
        self._plan, self._index, self._since, self._streak = plan, 0, 0, 0
        return plan

    def parse(self, instruction: str) -> tuple[str, ...]:
        """Return the subgoals of ``instruction``, in order.

        Raises:
            PlannerError: A part of it is no skill of the policy.
        """
        parts = [part for part in _SEPARATOR.split(instruction.strip().lower()) if part]
        if not parts:
            raise PlannerError(f'the instruction is empty; say for example {self._example()}')
        plan: list[str] = []
        for part in parts:
            found = self._match(part, plan)
            pieces = [part] if found or part in self._known else _AND.split(part)
            for piece in pieces:
                skill = found if len(pieces) == 1 else self._match(piece, plan)
                if not skill:
                    raise PlannerError(self._unknown(piece, plan))
                plan.append(skill)
        return tuple(plan)

    def _match(self, part: str, plan: list[str]) -> str:
        text = normalise(part)
        if text in self._known:
            return self._known[text]
        if plan and _PRONOUN.search(text):
            thing = normalise(plan[-1]).partition(' ')[2]  # "open drawer" -> "drawer"
            return self._known.get(_PRONOUN.sub(thing, text), '')
        return ''

    def _unknown(self, part: str, plan: list[str]) -> str:
        known = ', '.join(f'"{skill}"' for skill in self.skills) or 'none'
        if not plan and _PRONOUN.search(normalise(part)):
            return f'"{part}": nothing before it says what is meant; understood are: {known}'
        near = difflib.get_close_matches(normalise(part), self._known, 1, 0.0)
        hint = f'; nearest: "{self._known[near[0]]}"' if near else ''
        return f'"{part}" is no subgoal of this policy; understood are: {known}{hint}'

    def _example(self) -> str:
        return f'"{", then ".join(self.skills[:2])}"'

    def decide(self, tick: int, facts: Facts) -> Decision:
        """Go on to the next subgoal once the current one is reported reached for long enough."""
        if self._index >= len(self._plan):
            return Decision(DONE, '', 'every subgoal is reached')
        current = self._plan[self._index]
        self._streak = self._streak + 1 if facts.reached.get(current, False) else 0
        if self._streak < self.done_ticks:
            if self.max_ticks and tick - self._since >= self.max_ticks:
                text = f'"{current}" is not reached after {tick - self._since} ticks'
                return Decision(FAILED, current, text)
            return Decision(KEEP, current)
        self._index, self._since, self._streak = self._index + 1, tick, 0
        if self._index == len(self._plan):
            return Decision(DONE, '', f'"{current}" is reached, and it was the last')
        return Decision(NEXT, self._plan[self._index], f'"{current}" is reached')

    def state(self) -> dict[str, object]:
        """Return plan, position in it and counters."""
        return {
            'plan': list(self._plan),
            'index': self._index,
            'since': self._since,
            'streak': self._streak,
        }

    def set_state(self, state: dict) -> None:
        """Put back what `state` gave."""
        self._plan = tuple(str(text) for text in state['plan'])
        self._index = int(state['index'])
        self._since = int(state['since'])
        self._streak = int(state['streak'])
