"""Many trees, and beside each of them whole episodes from the same start at equal simulator steps.

The whole episodes differ in their noise alone and are run one after the other until one succeeds
or the budget is spent: the best of them is recognised by the success criterion itself, which the
tree's judge never sees. No other way of choosing among whole episodes can do better. The first of
them is the plain episode.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..envs.make import scene_class
from ..episode import LiveEpisode
from ..errors import SimulationError
from ..rollout.evaluation import Task
from ..rollout.play import prepare_start
from ..rollout.run import check_policy
from ..rollout.station import Deployment, Outputs, Station
from ..rollout.workers import spread
from ..seeds import evaluation_seed
from . import judges
from .search import Fork, Path, Search, grow, noise_seed


@dataclass(frozen=True)
class Whole:
    """Whole episodes from one start.

    Attributes:
        success: the last one succeeded.
        steps: simulator steps of all of them.
        ticks: of each.
    """

    success: bool
    steps: int
    ticks: tuple[int, ...]


@dataclass(frozen=True)
class TreeResult:
    """One tree, and the whole episodes from its start; `tree` and `whole` had the same budget."""

    environment: str
    task: str
    start: str
    episode: int
    seed: int
    tree: Path
    whole: Whole | None

    @property
    def key(self) -> str:
        """That of its task."""
        return f'{self.environment} {self.start} {self.task}'

    @property
    def plain(self) -> bool:
        """Whether the plain episode succeeded."""
        return self.whole is not None and self.whole.success and len(self.whole.ticks) == 1


def as_result(values: Mapping[str, Any]) -> TreeResult:
    """A result from its JSON.

    Raises:
        KeyError, TypeError, ValueError: it is none.
    """
    values = dict(values)
    tree, whole = dict(values.pop('tree')), values.pop('whole')
    forks = [Fork(**{**fork, 'scores': tuple(fork['scores'])}) for fork in tree.pop('forks')]
    if whole is not None:
        whole = Whole(**{**whole, 'ticks': tuple(whole['ticks'])})
    return TreeResult(tree=Path(forks=tuple(forks), **tree), whole=whole, **values)


def run_whole(live: LiveEpisode, task: Task, seed: int, budget: int) -> Whole:
    """Whole episodes of `task` until one succeeds or `budget` steps are spent."""
    ticks: list[int] = []
    success = False
    while not success and sum(ticks) < budget:
        prepare_start(live.scene, task, seed)
        live.begin(noise_seed(seed, 0, len(ticks)) if ticks else seed, task.goals[0].text)
        spent = 0
        while not success and spent < min(task.limit, budget - sum(ticks)):
            success = bool(live.tick().info['is_success'])
            spent += 1
        ticks.append(spent)
    return Whole(success, sum(ticks), tuple(ticks))


def check(deployment: Deployment, tasks: Sequence[Task], search: Search) -> None:
    """Refuse a search that makes no trees of these tasks, or a judge that knows nothing of them.

    Raises:
        FlashrtError: one line.
    """
    search.check(deployment.execute)
    environments = list(dict.fromkeys(task.environment for task in tasks))
    for environment in environments:
        scene_class(environment)
    judges.require_fits(judges.load(search.judge), environments)


def grow_all(
    deployment: Deployment,
    tasks: Sequence[Task],
    search: Search,
    episodes: int,
    *,
    seed: int = 0,
    workers: int = 1,
    compare: bool = True,
    done: Collection[tuple[str, int]] = (),
) -> Iterator[TreeResult]:
    """Grow `episodes` trees of every task; gives results as they are finished.

    One start of every task comes before the second start of any, so that what a stopped run has
    measured is balanced.

    Args:
        deployment: policy and timing.
        tasks: of one goal each.
        search: how trees grow.
        episodes: starts of each task.
        seed: chooses the evaluation seeds.
        workers: processes.
        compare: run whole episodes too.
        done: (key of the task, number) of starts that are left out.

    Raises:
        FlashrtError: unknown names, numbers out of range; before any process is started.
    """
    if episodes < 1 or workers < 1:
        raise SimulationError(f'{episodes} episodes with {workers} workers; both start at 1')
    check(deployment, tasks, search)
    check_policy(deployment, tasks[0].environment)
    jobs = [
        (task, number, evaluation_seed(seed, number))
        for number in range(episodes)
        for task in tasks
        if (task.key, number) not in done
    ]
    return spread(jobs, _work, workers, _start, (deployment, search, compare))


_station: Station | None = None  # of this process
_search, _compare = Search(), True
_judge: judges.Judge = judges.reward


def _start(deployment: Deployment, search: Search, compare: bool) -> None:
    global _station, _search, _compare, _judge
    _station = Station(deployment, Outputs())
    _search, _compare, _judge = search, compare, judges.load(search.judge)


def _work(task: Task, number: int, seed: int) -> TreeResult:
    assert _station is not None
    live = _station.open(task.environment)
    tree = grow(live, task, seed, _search, _judge)
    whole = run_whole(live, task, seed, _search.steps(task.limit)) if _compare else None
    return TreeResult(task.environment, task.name, task.start, number, seed, tree, whole)
