"""What a rollout is asked to do and what comes out of one episode; plain values throughout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..envs.make import scene_class
from ..envs.registration import MAX_EPISODE_STEPS
from ..errors import SimulationError, unknown
from .intervals import wilson

# 'standard': where the skill's official evaluation starts. 'after': right after the scripted
# expert has achieved another subgoal, hand and drawer as it left them. 'random': anywhere.
STARTS = ('standard', 'after', 'random')


@dataclass(frozen=True)
class Goal:
    """A subgoal and the words in which the policy is told of it.

    Attributes:
        subgoal: canonical name; success is judged by it.
        text: what the policy is told.
        control: the words are those of something else, to see whether they matter.
    """

    subgoal: str
    text: str
    control: bool = False

    @property
    def label(self) -> str:
        """The goal as it stands in tables."""
        return f'{self.subgoal} (told: {self.text})' if self.control else self.text


@dataclass(frozen=True)
class Task:
    """What one episode asks: goals one after the other, from a start.

    Attributes:
        environment: for example 'flashrt/Drawer-v0'.
        goals: in this order; the next one is asked `settle` ticks after one is achieved.
        start: one of `STARTS`.
        limit: ticks for each goal; MetaWorld's limit of an episode if not said otherwise.
        settle: ticks between an achieved goal and the next request.
        interrupt: least and most ticks after which the first goal is dropped in mid-motion and
            the second one asked; only the second one counts then.
    """

    environment: str
    goals: tuple[Goal, ...]
    start: str = 'standard'
    limit: int = MAX_EPISODE_STEPS
    settle: int = 8
    interrupt: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.start not in STARTS:
            raise unknown('start', self.start, STARTS)
        if not self.goals or self.limit < 1:
            raise SimulationError('a task needs at least one goal and one tick')
        if self.interrupt is not None and len(self.goals) != 2:
            raise SimulationError(f'an interrupt needs two goals; there are {len(self.goals)}')

    @property
    def key(self) -> str:
        """What tells this task from all others of a rollout."""
        return f'{self.environment} {self.start} {self.name}'

    @property
    def name(self) -> str:
        """The goals as one text, as they stand in tables."""
        link = ', then ' if self.interrupt is None else ', no: '
        return link.join(goal.label for goal in self.goals)


def find_goal(environment: str, text: str) -> Goal:
    """The subgoal that `text` stands for: its canonical name or any of its known wordings.

    Raises:
        SimulationError: for an unknown environment or wording; suggests the nearest ones.
    """
    subgoals = scene_class(environment).SUBGOALS
    known = {
        wording: name
        for name, subgoal in subgoals.items()
        for wording in (*subgoal.wordings, *subgoal.held_out)
    }
    if text not in known:
        raise unknown('subgoal', text, known)
    return Goal(known[text], text)


@dataclass(frozen=True)
class Stage:
    """How one goal of an episode went; `ticks` is when it was achieved, or given up."""

    subgoal: str
    text: str
    success: bool
    ticks: int


@dataclass(frozen=True)
class Result:
    """How one episode went.

    Attributes:
        environment: where it was.
        task: name of its task.
        start: where it started.
        episode: its number in the rollout.
        seed: of scene and noise.
        success: all goals were achieved, in order.
        ticks: in total.
        stages: one for each goal that was asked.
        inferences: chunks that the policy made.
        held: ticks on which the robot held still.
        refused: observations or chunks that a guard refused.
    """

    environment: str
    task: str
    start: str
    episode: int
    seed: int
    success: bool
    ticks: int
    stages: tuple[Stage, ...]
    inferences: int
    held: int
    refused: int

    @property
    def key(self) -> str:
        """That of its task."""
        return f'{self.environment} {self.start} {self.task}'


def summarise(results: Sequence[Result]) -> list[dict[str, Any]]:
    """One row for each task and start: rate and its 95 % interval, ticks of the successes."""
    rows = []
    for key in dict.fromkeys(result.key for result in results):
        group = [result for result in results if result.key == key]
        won = sorted(result.ticks for result in group if result.success)
        low, high = wilson(len(won), len(group))
        rows.append({
            'environment': group[0].environment,
            'task': group[0].task,
            'start': group[0].start,
            'episodes': len(group),
            'successes': len(won),
            'rate': len(won) / len(group),
            'low': low,
            'high': high,
            'median_ticks': won[len(won) // 2] if won else None,
        })  # fmt: skip
    return rows


def as_json(result: Result) -> dict[str, Any]:
    """The episode as plain values."""
    return asdict(result)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The summary for people."""
    width = max(4, *(len(row['task']) for row in rows))
    lines = [f'{"task":<{width}}  {"start":<8}  success        95 % interval    median ticks']
    for row in rows:
        score = f'{row["successes"]}/{row["episodes"]}'
        ticks = '-' if row['median_ticks'] is None else str(row['median_ticks'])
        lines.append(
            f'{row["task"]:<{width}}  {row["start"]:<8}  {score:>7} {row["rate"]:6.1%}'
            f'  {row["low"]:6.1%} to {row["high"]:6.1%}  {ticks:>12}'
        )
    return '\n'.join(lines)
