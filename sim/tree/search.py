"""Best of N from the middle of an episode: branch at boundaries, judge, keep the best, go on.

The episode is frozen at tick 0 and at every `every` ticks. From there it goes on N times: once
with the noise that the policy has, so that a tree of one branch is a plain episode, and otherwise
with new noise. Every tick of every branch counts as one simulator step.

A branch runs to its end whether it reaches the subgoal or not: which one is kept is the judge's
choice alone. Success is read off the kept path, and ends it, as it ends a plain episode.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ..episode import LiveEpisode, Moment
from ..errors import SimulationError
from ..rollout.evaluation import Task
from ..rollout.play import begin
from .judges import Judge


@dataclass(frozen=True)
class Search:
    """How a tree grows.

    Attributes:
        branches: continuations at each boundary.
        every: ticks from one boundary to the next; no fewer than those between two chunks, or
            the branches would be the same.
        budget: simulator steps of one tree; 0 = as many as that many whole episodes could take.
        judge: see `flashrt_sim.tree.judges.load`.
    """

    branches: int = 4
    every: int = 16
    budget: int = 0
    judge: str = 'reward'

    def check(self, execute: int) -> None:
        """Refuse numbers that make no tree; `execute` is the ticks from one chunk to the next.

        Raises:
            SimulationError: one line.
        """
        if self.branches < 1 or self.budget < 0:
            raise SimulationError(
                f'{self.branches} branches with a budget of {self.budget} steps; branches start '
                'at 1, a budget of 0 is that of as many whole episodes'
            )
        if self.every < execute:
            raise SimulationError(
                f'branches of {self.every} ticks would be the same: a chunk is asked for every '
                f'{execute} ticks; branch every {execute} ticks or more'
            )

    def steps(self, limit: int) -> int:
        """The budget for episodes of at most `limit` ticks."""
        return self.budget or self.branches * limit


@dataclass(frozen=True)
class Fork:
    """What was tried at one boundary.

    Attributes:
        tick: where it is.
        length: ticks of each branch.
        scores: what the judge said of each.
        kept: which one was kept, the first of the best.
        noise: the kept branch's new noise; None where the policy kept its own.
    """

    tick: int
    length: int
    scores: tuple[float, ...]
    kept: int
    noise: int | None


@dataclass(frozen=True)
class Path:
    """The path that a tree kept.

    Attributes:
        success: the subgoal was reached on it.
        ticks: until then, or in all.
        steps: simulator steps of the whole tree.
        forks: in order; they say all that `replay` needs.
        digest: of every action and of the simulator at the end of the last branch.
    """

    success: bool
    ticks: int
    steps: int
    forks: tuple[Fork, ...]
    digest: str


def noise_seed(seed: int, tick: int, number: int) -> int:
    """The noise of branch `number` at `tick`: the same on every machine, below 2**48."""
    word = np.random.SeedSequence((seed, tick, number)).generate_state(1, np.uint64)[0]
    return int(word >> np.uint64(16))


def grow(live: LiveEpisode, task: Task, seed: int, search: Search, judge: Judge) -> Path:
    """Grow one tree from the start of `task` that `seed` decides; `live` stands at its end then.

    Raises:
        SimulationError: the task has several goals, or the judge gives no finite number.
    """
    search.check(live.actor.execute)
    _begin(live, task, seed)
    budget = search.steps(task.limit)
    digest, forks, steps, tick = hashlib.sha256(), [], 0, 0
    success = False
    root = live.snapshot('tree')
    while not success and tick < task.limit and steps < budget:
        length = min(search.every, task.limit - tick, budget - steps)
        count = min(search.branches, (budget - steps) // length)
        scores: list[float] = []
        for number in range(count):
            noise = noise_seed(seed, tick, number) if number else None
            if number:
                live.restore(root, noise=noise)
            moments = [live.tick() for _ in range(length)]
            steps += length
            score = float(judge(live, moments))
            if not math.isfinite(score):
                raise SimulationError(f'judge {search.judge} gave {score}; want a finite number')
            if not scores or score > max(scores):
                kept, taken, chosen, leaf = number, noise, moments, live.snapshot('branch')
            scores.append(score)
        if kept != count - 1:
            live.restore(leaf)
        root = leaf
        forks.append(Fork(tick, length, tuple(scores), kept, taken))
        _add(digest, chosen)
        reached = next((i for i, m in enumerate(chosen, 1) if m.info['is_success']), 0)
        success = reached > 0
        tick += reached or length
    digest.update(live.scene.get_state().tobytes())
    return Path(success, tick, steps, tuple(forks), digest.hexdigest())


def replay(live: LiveEpisode, task: Task, seed: int, forks: Iterable[Fork]) -> str:
    """Walk a kept path again, without its tree; returns what must be the path's digest."""
    _begin(live, task, seed)
    digest = hashlib.sha256()
    for fork in forks:
        if fork.noise is not None:
            live.restore(live.snapshot('fork'), noise=fork.noise)
        _add(digest, [live.tick() for _ in range(fork.length)])
    digest.update(live.scene.get_state().tobytes())
    return digest.hexdigest()


def _begin(live: LiveEpisode, task: Task, seed: int) -> None:
    if len(task.goals) != 1:
        raise SimulationError(f'a tree is grown for one subgoal; {task.name!r} has several')
    begin(live, task, seed)


def _add(digest: hashlib._Hash, moments: Iterable[Moment]) -> None:
    for moment in moments:
        digest.update(moment.command.action.tobytes())
