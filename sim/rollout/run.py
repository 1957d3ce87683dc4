"""Rollouts: many episodes of a policy in parallel, on this machine or over Ray.

What an episode does depends on its seed and its task alone: not on the workers, nor on which of
them plays it. Seeds of evaluations lie far from those of demonstrations, see `flashrt_sim.seeds`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from ..envs.make import make_scene, scene_class
from ..episode import LiveEpisode, require_fits
from ..errors import SimulationError, unknown
from ..seeds import evaluation_seed
from .evaluation import Result, Task
from .play import prepare_start, run_episode
from .station import Deployment, Outputs, Station
from .workers import spread

__all__ = [
    'ENGINES', 'Deployment', 'Outputs', 'check_policy', 'open_scene', 'prepare_start', 'roll_out',
    'run_episode', 'start_worker',
]  # fmt: skip
ENGINES = ('local', 'ray')
_station: Station | None = None  # of this process


def roll_out(
    deployment: Deployment,
    tasks: Sequence[Task],
    episodes: int,
    *,
    seed: int = 0,
    workers: int = 1,
    outputs: Outputs | None = None,
    done: Collection[tuple[str, int]] = (),
    engine: str = 'local',
    address: str | None = None,
) -> Iterator[Result]:
    """Run `episodes` episodes of every task; gives results as they are finished.

    Args:
        deployment: policy and timing.
        tasks: in any environments.
        episodes: of each task.
        seed: chooses the evaluation seeds.
        workers: processes.
        outputs: pictures and records to write.
        done: (key of the task, number) of episodes that are left out.
        engine: 'local' (processes of this machine) or 'ray'.
        address: of a Ray cluster, whose size then counts instead of `workers`.

    Raises:
        FlashrtError: unknown names, missing weights, a policy for another robot, numbers out of
            range, no Ray; before any process is started.
    """
    if episodes < 1 or workers < 1:
        raise SimulationError(f'{episodes} episodes with {workers} workers; both start at 1')
    if engine not in ENGINES:
        raise unknown('engine', engine, ENGINES)
    if address is not None and engine != 'ray':
        raise SimulationError(f'address {address} is for the engine ray, not for {engine}')
    for environment in dict.fromkeys(task.environment for task in tasks):
        scene_class(environment)
    check_policy(deployment, tasks[0].environment)
    outputs = outputs or Outputs()
    numbered = [(number, evaluation_seed(seed, number)) for number in range(episodes)]
    todo = [
        (task, [entry for entry in numbered if (task.key, entry[0]) not in done]) for task in tasks
    ]
    jobs = [(task, *entry) for task, entries in todo for entry in entries]
    if engine == 'ray':
        from .ray_engine import play_on_ray

        return play_on_ray(deployment, outputs, jobs, workers, address)
    # Opening a scene takes most of a second: a worker stays in one as long as it can.
    return spread(jobs, _work, workers, start_worker, (deployment, outputs), _environment)


def check_policy(deployment: Deployment, environment: str) -> None:
    """Refuse a policy that cannot run in `environment`, before anything heavy is loaded.

    Raises:
        FlashrtError: one line.
    """
    from flashrt_policies import registry

    scene = make_scene(environment)
    spec = registry.spec(deployment.policy)
    require_fits(scene, environment, spec, deployment.policy)


def start_worker(deployment: Deployment, outputs: Outputs | None = None) -> None:
    """Prepare this process for `open_scene` and for the jobs of `roll_out`."""
    global _station
    _station = Station(deployment, outputs or Outputs())


def open_scene(environment: str) -> LiveEpisode:
    """This process's brain, in a scene of `environment`; call `start_worker` first."""
    assert _station is not None
    return _station.open(environment)


def _work(task: Task, number: int, seed: int) -> Result:
    assert _station is not None
    return _station.run(task, number, seed)


def _environment(job: tuple[Task, int, int]) -> str:
    return job[0].environment
