"""A robot's situation as the text that the shipped planner reads, and what it is asked about it.

The text is short, what changes comes last, so that a state's beginning can be resumed::

    can: open the drawer; close the drawer
    task: open the drawer, then close it
    done: open the drawer
    now: close the drawer
    true: open the drawer
    hand 0.01 0.62 0.12, grip 0.98, age 40 ms, missed 0
    held: no
    note: none

The rules that the answers follow stand here too, so that training, tests and documents agree.
"""

from __future__ import annotations

from dataclasses import dataclass

from flashrt_policies.planner_lm.questions import Choice, YesNo

FINISHED, CANNOT = 'finished', 'cannot'
DONE = YesNo('Is it done?')
SAFE = YesNo('Is it safe?')
STOP = YesNo('Must it stop?')
NEXT = 'What comes next?'
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

    @property
    def text(self) -> str:
        """The state that questions are put to."""
        hand = ' '.join(f'{value:.2f}' for value in self.hand) or NOTHING
        return '\n'.join(
            (
                f'can: {_list(self.skills)}',
                f'task: {" ".join(self.task.lower().split())}',
                f'done: {_list(self.done)}',
                f'now: {self.now or NOTHING}',
                f'true: {_list(self.true)}',
                f'hand {hand}, grip {self.grip:.2f}, age {self.age_ms:.0f} ms, '
                f'missed {self.missed}',
                f'held: {" ".join(self.held.lower().split())[:48] or "no"}',
                f'note: {" ".join(self.note.lower().split())[:96] or NOTHING}',
            )
        )

    @property
    def next(self) -> Choice:
        """The question what the robot must work on from here."""
        return Choice(NEXT, (*self.skills, FINISHED, CANNOT))

    @property
    def questions(self) -> tuple[Choice, YesNo, YesNo, YesNo]:
        """What the planner asks in every round: next, done, safe, stop."""
        return (self.next, DONE, SAFE, STOP)


def _list(items: tuple[str, ...]) -> str:
    return '; '.join(items) or NOTHING
