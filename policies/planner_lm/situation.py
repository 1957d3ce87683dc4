"""A robot's situation as the text that the shipped planner reads, and what it is asked about it.

The text is short: the scene's skills have letters, and what is done, under way and true is said by
letter. What changes comes last, so that a state's beginning can be resumed::

    can: A open the drawer; B close the drawer
    task: open the drawer, then close it
    done: A
    now: B
    true: A
    hand 0.01 0.62 0.12, grip 0.98, age 40 ms, missed 0
    held: no
    note: none

The rules that the answers follow stand here too, so that training, tests and documents agree.
"""

from __future__ import annotations

import string
from dataclasses import dataclass
from functools import cached_property

from flashrt_policies.planner_lm.questions import Choice, QuestionError, YesNo

# Every token is computed in every round, so the shipped planner's questions are of one word.
FINISHED, CANNOT = 'finished', 'cannot'
LETTERS = string.ascii_uppercase + string.ascii_lowercase + string.digits
DONE = YesNo('Done?')
SAFE = YesNo('Safe?')
STOP = YesNo('Stop?')
NEXT = 'Next?'
# Skills of a scene at most, where a planner of `flashrt train planner` is asked.
MOST = 11
# Safe is: an observation younger than this,
STALE_MS = 250
# fewer ticks missed since the last decision than this,
MISSED = 5
# the hand inside this box (metres), and no hold of a fault, nor a warning in the note.
BOX = ((-0.5, 0.5), (0.3, 1.0), (0.0, 0.5))
# Stop is: an observation as old as this, an emergency stop, or a note that says so.
DEAD_MS = 1000
EMERGENCY = 'emergency stop'
NOTHING = 'none'


@dataclass(frozen=True)
class Situation:
    """What the planner knows when it decides.

    Attributes:
        skills: the subgoals that the scene has and the policy can do.
        task: the instruction, as it was given.
        done: subgoals reached so far, in order.
        now: the subgoal that the robot works on; empty = none.
        true: skills whose condition holds at this moment.
        hand: x, y, z in metres; empty where the robot does not say.
        grip: the gripper's opening, 0 to 1.
        age_ms: age of the observation, milliseconds.
        missed: control ticks missed since the last decision.
        held: why the robot holds; empty = it does not.
        note: what people say, in words; empty = nothing.
    """

    skills: tuple[str, ...]
    task: str
    done: tuple[str, ...] = ()
    now: str = ''
    true: tuple[str, ...] = ()
    hand: tuple[float, ...] = ()
    grip: float = 1.0
    age_ms: float = 0.0
    missed: int = 0
    held: str = ''
    note: str = ''

    def __post_init__(self) -> None:
        if len(self.skills) > len(LETTERS):
            raise QuestionError(
                f'a scene of {len(self.skills)} skills; want at most {len(LETTERS)}: '
                'they are told apart by letter'
            )

    @cached_property
    def text(self) -> str:
        """The state that questions are put to."""
        hand = ' '.join(f'{value:.2f}' for value in self.hand) or NOTHING
        named = (f'{letter} {skill}' for letter, skill in zip(LETTERS, self.skills, strict=False))
        now = self._letters((self.now,)) if self.now else NOTHING
        return '\n'.join(
            (
                f'can: {"; ".join(named) or NOTHING}',
                f'task: {" ".join(self.task.lower().split())}',
                f'done: {self._letters(self.done)}',
                f'now: {now}',
                f'true: {self._letters(self.true)}',
                f'hand {hand}, grip {self.grip:.2f}, age {self.age_ms:.0f} ms, '
                f'missed {self.missed}',
                f'held: {" ".join(self.held.lower().split())[:48] or "no"}',
                f'note: {" ".join(self.note.lower().split())[:96] or NOTHING}',
            )
        )

    def _letters(self, skills: tuple[str, ...]) -> str:
        return ' '.join(LETTERS[self.skills.index(skill)] for skill in skills) or NOTHING

    @property
    def options(self) -> tuple[str, ...]:
        """What may come next: the skills' letters, `FINISHED` and `CANNOT`."""
        return (*LETTERS[: len(self.skills)], FINISHED, CANNOT)

    @property
    def next(self) -> Choice:
        """The question what the robot must work on from here."""
        return Choice(NEXT, self.options)

    def meaning(self, option: str) -> str:
        """Return the skill that a letter stands for; other options mean themselves."""
        at = self.options.index(option)
        return self.skills[at] if at < len(self.skills) else option

    @property
    def questions(self) -> tuple[Choice, YesNo, YesNo, YesNo]:
        """What the planner asks in every round: next, done, safe, stop."""
        return (self.next, DONE, SAFE, STOP)
