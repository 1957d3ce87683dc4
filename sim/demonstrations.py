"""Demonstrations of the scripted experts, with mistakes in them that the expert puts right.

An episode asks for a sequence of subgoals. What is recorded as the label is always the expert's
clean action; what is executed carries noise (as in DART, Laskey et al. 2017, arXiv:1703.09327)
and, now and then, a push: for some ticks the arm is driven elsewhere, and the expert finds back.
So a policy sees the neighbourhood of the expert's way, where its own mistakes will take it. Some
segments are cut short and the next subgoal is asked in mid-motion, as an interrupt does.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .dataset import Episode, write_meta
from .envs import make_scene, scene_class
from .errors import SimulationError
from .experts import expert_for
from .scene import SceneEnv
from .seeds import demonstration_seed
from .workers import spread


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
        limit: ticks after which a segment counts as failed.
    """

    segments: tuple[int, int] = (2, 4)
    standard_start: float = 0.6
    cut: float = 0.2
    linger: tuple[int, int] = (8, 24)
    noise: float = 0.35
    push_every: float = 90.0
    push_ticks: tuple[int, int] = (4, 14)
    limit: int = 220


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
            self._push = np.append(direction, rng.choice([-1.0, 1.0]))
        if self._left > 0:
            self._left -= 1
            return self._push.astype(np.float32), True
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
    columns = {name: np.stack([row[name] for row in rows]) for name in rows[0] if name != 'pixels'}
    pixels = {c: np.stack([row['pixels'][c] for row in rows]) for c in scene.CAMERAS}
    return Episode(pixels=pixels, **columns)


def _segment(
    scene: SceneEnv,
    rows: list[dict[str, Any]],
    recipe: Recipe,
    rng: np.random.Generator,
    disturb: Disturbance,
) -> bool:
    """Append the ticks of one subgoal to `rows`; whether it went as meant."""
    expert, index = expert_for(scene.subgoal), list(scene.SUBGOALS).index(scene.subgoal)
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
            **scene.render_observation(),
            'action': action,
            'executed': executed,
            'subgoal': np.int8(index),
            'achieved': np.bool_(achieved),
            'perturbed': np.bool_(perturbed),
            'segment_end': False,
        })  # fmt: skip
        scene.step_physics(executed)
    return False


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
    if episodes < 1 or workers < 1:
        raise SimulationError(f'{episodes} episodes with {workers} workers; both start at 1')
    recipe = recipe or Recipe()
    demonstration_seed(seed, episodes - 1)
    out = Path(out)
    write_meta(out, describe(environment, seed, recipe))
    there = [(number, 0) for number in range(episodes) if _path(out, number).exists()]
    todo = sorted(set(range(episodes)) - {number for number, _ in there})
    jobs = [(number, str(out), seed, recipe) for number in todo]
    return itertools.chain(there, spread(jobs, _work, workers, _start_worker, (environment,)))


_scene: SceneEnv | None = None  # one for each worker process


def _start_worker(environment: str) -> None:
    global _scene
    _scene = make_scene(environment)


def _work(number: int, out: str, seed: int, recipe: Recipe) -> tuple[int, int]:
    assert _scene is not None
    episode = None
    # An episode in which the expert failed is drawn again from a seed that belongs to it alone.
    for attempt in range(10):
        episode = record(_scene, demonstration_seed(seed, number) + attempt * 100_000_000, recipe)
        if episode is not None:
            break
    if episode is None:
        raise SimulationError(f'the expert failed ten times in episode {number}; see Recipe')
    episode.save(_path(Path(out), number))
    return number, len(episode)


def _path(out: Path, number: int) -> Path:
    return out / f'episode-{number:06d}.npz'
