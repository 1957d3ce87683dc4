"""Runs a policy in a scene, many episodes in parallel, exactly as the robot loop would.

Each worker process holds one `LiveEpisode`: actor and simulator in lockstep, with the delay in
ticks that the robot has. Seeds of evaluations lie far from those of demonstrations, see
`flashrt_sim.seeds`. What an episode does depends on its seed and its task, not on the workers.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flashrt_ros.control.types import DELAY, EXECUTE

from .envs import make_scene, scene_class
from .episode import LiveEpisode, Moment, require_fits
from .errors import SimulationError
from .evaluation import Result, Stage, Task
from .experts import expert_for
from .scene import SceneEnv
from .seeds import evaluation_seed
from .workers import spread


@dataclass(frozen=True)
class Deployment:
    """Which policy runs, and how.

    Attributes:
        policy: name of shipped weights, or a folder.
        device: 'cpu', 'cuda' or 'cuda:N'.
        execute: ticks from one chunk to the next.
        delay: ticks from an observation to its chunk's first action.
    """

    policy: str = 'mt50'
    device: str = 'cpu'
    execute: int = EXECUTE
    delay: int = DELAY


def run_episode(
    live: LiveEpisode,
    task: Task,
    number: int,
    seed: int,
    watch: Callable[[LiveEpisode, Moment], None] | None = None,
) -> Result:
    """One episode of `task`, decided by `seed`; `watch` is called after every tick.

    Raises:
        SimulationError: if the expert that prepares the start fails.
    """
    scene, first = live.scene, task.goals[0]
    prepare_start(scene, task, seed)
    live.begin(seed, first.text)
    stages: list[Stage] = []
    inferences = held = refused = ticks = 0
    for goal in task.goals:
        if goal is not first:
            live.ask(goal.subgoal, text=goal.text)
        if task.interrupt is not None and goal is first:
            for _ in range(int(np.random.default_rng([seed, 3]).integers(*task.interrupt))):
                moment = live.tick()
                ticks += 1
                inferences += moment.inferred
                if watch is not None:
                    watch(live, moment)
            continue
        achieved, spent = False, 0
        # Nothing is to be done where the goal holds already, except the very first time: a skill
        # is judged by what it does.
        while spent < task.limit and not achieved:
            moment = live.tick()
            spent += 1
            achieved = bool(moment.info['is_success'])
            inferences += moment.inferred
            held += moment.command.held
            refused += bool(moment.refused)
            if watch is not None:
                watch(live, moment)
        ticks += spent
        stages.append(Stage(goal.subgoal, goal.text, achieved, spent))
        if not achieved:
            break
        if goal is not task.goals[-1]:
            for _ in range(task.settle):
                moment = live.tick()
                ticks += 1
                if watch is not None:
                    watch(live, moment)
    asked = len(task.goals) - (task.interrupt is not None)
    success = len(stages) == asked and stages[-1].success
    return Result(
        task.environment, task.name, task.start, number, seed, success, ticks, tuple(stages),
        inferences, held, refused,
    )  # fmt: skip


def prepare_start(scene: SceneEnv, task: Task, seed: int) -> None:
    """Put the scene where `task` starts, at tick 0.

    Raises:
        SimulationError: if the expert cannot bring about the start.
    """
    subgoal = task.goals[0].subgoal
    if task.start != 'after':
        options = {'subgoal': subgoal} | ({'start': 'random'} if task.start == 'random' else {})
        scene.reset_physics(seed=seed, options=options)
        return
    rng = np.random.default_rng([seed, 2])
    before = str(rng.choice([name for name in scene.SUBGOALS if name != subgoal]))
    scene.reset_physics(seed=seed, options={'subgoal': before})
    expert, linger = expert_for(before, scene), int(rng.integers(2, 10))
    for _ in range(400):
        scene.step_physics(expert(scene.simulator))
        linger -= scene.achieved()[before]
        if linger <= 0:
            scene.ask(subgoal)
            scene.restart_clock()
            return
    raise SimulationError(f'the expert could not {before} from seed {seed}')


def roll_out(
    deployment: Deployment,
    tasks: Sequence[Task],
    episodes: int,
    *,
    seed: int = 0,
    workers: int = 1,
    video: Path | None = None,
    ends: Path | None = None,
    done: Collection[tuple[str, int]] = (),
) -> Iterator[Result]:
    """Run `episodes` episodes of every task; gives results as they are finished.

    Args:
        deployment: policy and timing.
        tasks: in any environments.
        episodes: of each task.
        seed: chooses the evaluation seeds.
        workers: processes.
        video: folder for one mp4 an episode.
        ends: folder for a picture of each episode's end.
        done: (key of the task, number) of episodes that are left out.

    Raises:
        FlashrtError: unknown names, missing weights, a policy for another robot, numbers out of
            range; before any process is started.
    """
    if episodes < 1 or workers < 1:
        raise SimulationError(f'{episodes} episodes with {workers} workers; both start at 1')
    for environment in dict.fromkeys(task.environment for task in tasks):
        scene_class(environment)
    check_policy(deployment, tasks[0].environment)
    numbered = [(number, evaluation_seed(seed, number)) for number in range(episodes)]
    block = max(1, min(_BLOCK, len(tasks) * episodes // (4 * workers)))
    jobs = []
    for task in tasks:
        todo = [entry for entry in numbered if (task.key, entry[0]) not in done]
        jobs += [(task, tuple(todo[i : i + block])) for i in range(0, len(todo), block)]
    finished = spread(jobs, _work, workers, start_worker, (deployment, video, ends))
    return itertools.chain.from_iterable(finished)


def check_policy(deployment: Deployment, environment: str) -> None:
    """Refuse a policy that cannot run in `environment`, before anything heavy is loaded.

    Raises:
        FlashrtError: one line.
    """
    from flashrt_policies import registry

    scene = make_scene(environment)
    spec = registry.spec(deployment.policy)
    require_fits(scene, environment, spec, deployment.policy)


_BLOCK = 5  # episodes that one process runs in a row: opening a scene takes most of a second
_KEPT = 3  # scenes that a process holds open
_deployment: Deployment | None = None
_live: LiveEpisode | None = None  # one for each worker process
_scenes: dict[str, SceneEnv] = {}
_video: Path | None = None  # folder for videos
_ends: Path | None = None  # folder for pictures of ends


def start_worker(
    deployment: Deployment, video: Path | None = None, ends: Path | None = None
) -> None:
    """Make this process one that runs episodes of `deployment`."""
    global _deployment, _live, _video, _ends
    import torch

    # The number of threads may change the last bit of a sum: always one, whatever the workers.
    torch.set_num_threads(1)
    _deployment, _live, _video, _ends = deployment, None, video, ends
    _scenes.clear()


def open_scene(environment: str) -> LiveEpisode:
    """This process's brain, in a scene of `environment`."""
    global _live
    assert _deployment is not None
    if _live is None:
        _live = LiveEpisode.open(
            environment,
            _deployment.policy,
            device=_deployment.device,
            execute=_deployment.execute,
            delay=_deployment.delay,
        )
        _scenes[environment] = _live.scene
    if environment not in _scenes:
        if len(_scenes) == _KEPT:
            _scenes.pop(next(iter(_scenes))).close()
        _scenes[environment] = make_scene(environment)
    _live.move_to(_scenes[environment])
    return _live


def _work(task: Task, numbered: tuple[tuple[int, int], ...]) -> list[Result]:
    live = open_scene(task.environment)
    return [_one(live, task, number, seed) for number, seed in numbered]


def _one(live: LiveEpisode, task: Task, number: int, seed: int) -> Result:
    if _video is None:
        result = run_episode(live, task, number, seed)
    else:
        from .video import Recorder

        recorder = Recorder()
        result = run_episode(live, task, number, seed, recorder.watch)
        verdict = 'success' if result.success else 'failure'
        where = task.environment.split('/')[-1]
        name = f'{where}-{task.name}-{task.start}-{number:03d}-{verdict}.mp4'.replace(' ', '_')
        recorder.write(_video / name.replace(',', ''), live.scene)
    if _ends is not None:
        from .sheet import save_end

        save_end(_ends, task.environment, number, result.success, live.scene.picture(192, 192))
    return result


def write_report(
    path: Path, deployment: Deployment, seed: int, tasks: Sequence[Task], results: Sequence[Any]
) -> None:
    """Write everything that came out as one JSON object; see `docs` for its keys."""
    import json
    from dataclasses import asdict

    from .evaluation import as_json, summarise

    ordered = sorted(results, key=lambda r: (r.environment, r.task, r.start, r.episode))
    report = {
        'environments': list(dict.fromkeys(task.environment for task in tasks)),
        'policy': asdict(deployment),
        'seed': seed,
        'tasks': [asdict(task) | {'name': task.name} for task in tasks],
        'summary': summarise(ordered),
        'episodes': [as_json(result) for result in ordered],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f'.{path.name}.{os.getpid()}')
    temporary.write_text(json.dumps(report, indent=1, ensure_ascii=False) + '\n', 'utf-8')
    os.replace(temporary, path)
