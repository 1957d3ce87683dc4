"""One episode from its start to its verdict, exactly as the robot loop would run it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..envs.experts import expert_for
from ..envs.scene import SceneEnv
from ..episode import LiveEpisode, Moment
from ..errors import SimulationError
from .evaluation import Result, Stage, Task

Watch = Callable[[LiveEpisode, Moment], None]


def run_episode(
    live: LiveEpisode, task: Task, number: int, seed: int, watch: Watch | None = None
) -> Result:
    """One episode of `task`, decided by `seed`; `watch` is called after every tick.

    Raises:
        SimulationError: if the expert that prepares the start fails.
    """
    begin(live, task, seed)
    return play(live, task, number, seed, watch)


def begin(live: LiveEpisode, task: Task, seed: int) -> None:
    """Scene and brain as they are before the first tick of an episode.

    Raises:
        SimulationError: if the expert that prepares the start fails.
    """
    prepare_start(live.scene, task, seed)
    live.begin(seed, task.goals[0].text)


def play(
    live: LiveEpisode, task: Task, number: int, seed: int, watch: Watch | None = None
) -> Result:
    """Go on from `begin` to the verdict; see `run_episode`."""
    first = task.goals[0]
    stages: list[Stage] = []
    inferences = held = refused = ticks = 0

    def tick() -> Moment:
        nonlocal ticks
        moment = live.tick()
        ticks += 1
        if watch is not None:
            watch(live, moment)
        return moment

    for goal in task.goals:
        if goal is not first:
            live.ask(goal.subgoal, text=goal.text)
        if task.interrupt is not None and goal is first:
            for _ in range(int(np.random.default_rng([seed, 3]).integers(*task.interrupt))):
                inferences += tick().inferred
            continue
        achieved, spent = False, 0
        # Nothing is to be done where the goal holds already, except the very first time: a skill
        # is judged by what it does.
        while spent < task.limit and not achieved:
            moment = tick()
            spent += 1
            achieved = bool(moment.info['is_success'])
            inferences += moment.inferred
            held += moment.command.held
            refused += bool(moment.refused)
        stages.append(Stage(goal.subgoal, goal.text, achieved, spent))
        if not achieved:
            break
        if goal is not task.goals[-1]:
            for _ in range(task.settle):
                tick()
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
