"""Demonstrations of the scripted experts, with mistakes in them that the expert puts right.

An episode asks for a sequence of subgoals. What is recorded as the label is always the expert's
clean action; what is executed carries noise (as in DART, Laskey et al. 2017, arXiv:1703.09327)
and, now and then, a push: for some ticks the arm is driven elsewhere, and the expert finds back.
So a policy sees the neighbourhood of the expert's way, where its own mistakes will take it. Some
segments are cut short and the next subgoal is asked in mid-motion, as an interrupt does.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from ..envs.experts import expert_for
from ..envs.make import make_scene, scene_class
from ..envs.registration import FIFTY, SCENES, environment_name
from ..envs.scene import SceneEnv
from ..errors import SimulationError
from ..rollout.workers import spread
from ..seeds import demonstration_seed
from .dataset import Episode, write_meta

_PHYSICS = mujoco.mjtState.mjSTATE_INTEGRATION
_COLUMNS = (
    'agent_pos', 'action', 'executed', 'subgoal', 'achieved', 'perturbed', 'segment_end'
)  # fmt: skip


@dataclass(frozen=True)
class Recipe:
    """How demonstrations vary; every number is part of the data set's description.

    Attributes:
        segments: least and most subgoals in an episode.
        standard_start: share of episodes that start where the first subgoal's evaluation starts.
        cut: share of segments that are cut short in mid-motion.
        linger: least and most ticks that a segment goes on after it succeeded.
        noise: largest standard deviation of an episode's noise (correlated over some five ticks).
        push_every: mean ticks between two pushes.
        push_ticks: least and most ticks of a push.
        push_gripper: share of pushes that also move the gripper anywhere.
        every: ticks from one picture to the next.
        limit: ticks after which a segment counts as failed.
    """

    segments: tuple[int, int] = (2, 4)
    standard_start: float = 0.6
    cut: float = 0.2
    linger: tuple[int, int] = (8, 24)
    noise: float = 0.35
    push_every: float = 90.0
    push_ticks: tuple[int, int] = (4, 14)
    push_gripper: float = 1.0
    every: int = 1
    limit: int = 220


# How the scenes with several subgoals, and single tasks, are demonstrated for the shipped policy.
SCENE = Recipe(
    noise=0.25, push_every=120.0, push_ticks=(3, 10), push_gripper=0.15, every=2, limit=260
)
TASK = Recipe(
    segments=(1, 1), standard_start=0.85, cut=0.0, linger=(4, 10), noise=0.2, push_every=150.0,
    push_ticks=(3, 8), push_gripper=0.1, every=2, limit=300,
)  # fmt: skip
_ATTEMPTS, _RETRY = 40, 25_000_000  # tries of an episode, and how far apart their seeds are
_BLOCK = 20  # episodes that one process records in a row: opening a scene takes a second


class Disturbance:
    """Noise of one episode: correlated jitter on every action, and pushes.

    Args:
        recipe: its sizes.
        rng: everything is drawn from it.
    """

    def __init__(self, recipe: Recipe, rng: np.random.Generator) -> None:
        self._recipe, self._rng = recipe, rng
        self._scale = rng.uniform(0.0, recipe.noise)
        self._drift = np.zeros(3)
        self._left = 0
        self._push = np.zeros(4)

    def __call__(self, action: NDArray[np.float32]) -> tuple[NDArray[np.float32], bool]:
        """What is executed in place of `action`, and whether it is a push."""
        rng, recipe = self._rng, self._recipe
        if self._left == 0 and rng.random() < 1.0 / recipe.push_every:
            self._left = int(rng.integers(*recipe.push_ticks, endpoint=True))
            direction = rng.normal(size=3)
            direction *= rng.uniform(0.4, 1.0) / np.abs(direction).max()
            effort = rng.choice([-1.0, 1.0])
            if rng.random() >= recipe.push_gripper:
                effort = np.nan  # the gripper does what the expert says
            self._push = np.append(direction, effort)
        if self._left > 0:
            self._left -= 1
            push = np.where(np.isnan(self._push), action, self._push)
            return push.astype(np.float32), True
        self._drift = 0.8 * self._drift + 0.6 * self._scale * rng.normal(size=3)
        executed = action.copy()
        executed[:3] += self._drift
        return np.clip(executed, -1.0, 1.0), False


def record(scene: SceneEnv, seed: int, recipe: Recipe) -> Episode | None:
    """One episode, decided by `seed` alone; None if the expert failed in it."""
    rng = np.random.default_rng([seed, 1])
    disturb = Disturbance(recipe, rng)
    names = list(scene.SUBGOALS)
    subgoal = str(rng.choice(names))
    options: dict[str, Any] = {'subgoal': subgoal}
    if rng.random() >= recipe.standard_start:
        options['start'] = 'random'
    scene.reset_physics(seed=seed, options=options)
    rows: list[dict[str, Any]] = []
    for _ in range(int(rng.integers(*recipe.segments, endpoint=True))):
        scene.ask(subgoal)
        if not _segment(scene, rows, recipe, rng, disturb):
            return None
        rows[-1]['segment_end'] = True
        subgoal = str(rng.choice([name for name in names if name != subgoal] or names))
    seen = np.arange(0, len(rows), recipe.every, dtype=np.int32)
    pixels = _draw(scene, [rows[tick].pop('physics') for tick in seen])
    columns = {name: np.stack([row[name] for row in rows]) for name in _COLUMNS}
    return Episode(pixels=pixels, seen=seen, **columns)


def _draw(scene: SceneEnv, states: list[NDArray[np.float64]]) -> dict[str, NDArray[np.uint8]]:
    """Pictures of recorded states, from every camera; only an episode that counts is drawn."""
    model, data = scene.simulator.model, scene.simulator.data
    shots: dict[str, list[NDArray[np.uint8]]] = {camera: [] for camera in scene.CAMERAS}
    for state in states:
        mujoco.mj_setState(model, data, state, _PHYSICS)
        mujoco.mj_forward(model, data)
        for camera, frame in scene.render_observation()['pixels'].items():
            shots[camera].append(frame)
    return {camera: np.stack(frames) for camera, frames in shots.items()}


def _segment(
    scene: SceneEnv,
    rows: list[dict[str, Any]],
    recipe: Recipe,
    rng: np.random.Generator,
    disturb: Disturbance,
) -> bool:
    """Append the ticks of one subgoal to `rows`; whether it went as meant."""
    expert, index = expert_for(scene.subgoal, scene), list(scene.SUBGOALS).index(scene.subgoal)
    cut = int(rng.integers(8, 60)) if rng.random() < recipe.cut else None
    linger = int(rng.integers(*recipe.linger, endpoint=True))
    succeeded = None
    for tick in range(recipe.limit):
        achieved = scene.achieved()[scene.subgoal]
        if achieved and succeeded is None:
            succeeded = tick
        if tick == cut or (succeeded is not None and tick >= succeeded + linger):
            return True
        action = expert(scene.simulator)
        executed, perturbed = disturb(action)
        rows.append({
            'physics': _physics(scene) if len(rows) % recipe.every == 0 else None,
            'agent_pos': scene.proprioception(),
            'action': action,
            'executed': executed,
            'subgoal': np.int8(index),
            'achieved': np.bool_(achieved),
            'perturbed': np.bool_(perturbed),
            'segment_end': False,
        })  # fmt: skip
        scene.step_physics(executed)
    return False


def _physics(scene: SceneEnv) -> NDArray[np.float64]:
    """What a picture shows: MuJoCo's integration state."""
    model, data = scene.simulator.model, scene.simulator.data
    state = np.empty(mujoco.mj_stateSize(model, _PHYSICS))
    mujoco.mj_getState(model, data, state, _PHYSICS)
    return state


def describe(environment: str, seed: int, recipe: Recipe) -> dict[str, Any]:
    """What `meta.json` says of a data set."""
    scene = scene_class(environment)
    return {
        'environment': environment,
        'seed': seed,
        'recipe': asdict(recipe),
        'cameras': list(scene.CAMERAS),
        'subgoals': [
            {'text': s.text, 'paraphrases': s.paraphrases, 'held_out': s.held_out}
            for s in scene.SUBGOALS.values()
        ],
    }


@dataclass(frozen=True)
class Order:
    """Demonstrations wanted of one environment.

    Attributes:
        environment: for example 'flashrt/Drawer-v0'.
        episodes: how many, those that are there already included.
        folder: where they go.
        recipe: how they vary.
    """

    environment: str
    episodes: int
    folder: Path
    recipe: Recipe


def suite(out: str | Path, episodes: int, scene_episodes: int) -> list[Order]:
    """Orders for all that the shipped policy learns: the fifty tasks and the shared scenes."""
    names = [(environment_name(task), episodes, TASK) for task in FIFTY]
    names += [(name, scene_episodes, SCENE) for name in SCENES]
    return [
        Order(name, count, Path(out) / name.split('/')[1], recipe)
        for name, count, recipe in names
        if count > 0
    ]


def generate(
    environment: str,
    episodes: int,
    out: str | Path,
    *,
    workers: int = 1,
    seed: int = 0,
    recipe: Recipe | None = None,
) -> Iterator[tuple[int, int]]:
    """Record `episodes` episodes into `out`; those that are there already are left alone.

    Nothing depends on the number of workers: every episode is decided by its own seed.

    Returns:
        (episode number, its ticks), in the order in which they are finished; 0 ticks for one that
        was there already.

    Raises:
        SimulationError: for an unknown environment, numbers out of range, or a folder that holds
            other data.
    """
    order = Order(environment, episodes, Path(out), recipe or Recipe())
    found = generate_all([order], workers=workers, seed=seed)
    return ((number, ticks) for _, number, ticks in found)


def generate_all(
    orders: Sequence[Order], *, workers: int = 1, seed: int = 0
) -> Iterator[tuple[str, int, int]]:
    """As `generate`, for many environments; gives (environment, episode number, ticks).

    Raises:
        SimulationError: see `generate`; nothing has been written then.
    """
    for order in orders:
        if order.episodes < 1 or workers < 1:
            raise SimulationError(
                f'{order.episodes} episodes with {workers} workers; both start at 1'
            )
        demonstration_seed(seed, order.episodes - 1)
        scene_class(order.environment)
    there: list[tuple[str, int, int]] = []
    jobs: list[tuple[Order, int, tuple[int, ...]]] = []
    total = sum(order.episodes for order in orders)
    block = max(1, min(_BLOCK, total // (4 * workers)))
    for order in orders:
        write_meta(order.folder, describe(order.environment, seed, order.recipe))
        todo = []
        for number in range(order.episodes):
            if _path(order.folder, number).exists():
                there.append((order.environment, number, 0))
            else:
                todo.append(number)
        jobs += [(order, seed, tuple(todo[i : i + block])) for i in range(0, len(todo), block)]
    finished = spread(jobs, _work, workers, _start_worker)
    return itertools.chain(there, itertools.chain.from_iterable(finished))


_scene: SceneEnv | None = None  # the one this process holds open


def _start_worker() -> None:
    pass


def _open(environment: str) -> SceneEnv:
    global _scene
    if type(_scene) is not scene_class(environment):
        if _scene is not None:
            _scene.close()
        _scene = make_scene(environment)
    assert _scene is not None
    return _scene


def _work(order: Order, seed: int, numbers: tuple[int, ...]) -> list[tuple[str, int, int]]:
    scene = _open(order.environment)
    done = []
    for number in numbers:
        episode = None
        # An episode in which the expert failed is drawn again, from a seed that is its alone.
        for attempt in range(_ATTEMPTS):
            drawn = demonstration_seed(seed, number) + attempt * _RETRY
            episode = record(scene, drawn, order.recipe)
            if episode is not None:
                break
        if episode is None:
            raise SimulationError(
                f'{order.environment}: the expert failed {_ATTEMPTS} times in episode {number}; '
                'see Recipe'
            )
        episode.save(_path(order.folder, number))
        done.append((order.environment, number, len(episode)))
    return done


def _path(out: Path, number: int) -> Path:
    return out / f'episode-{number:06d}.npz'
