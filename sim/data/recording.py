"""What a policy saw and did in a rollout, in the form in which demonstrations are kept.

So whoever trains here, or anywhere by the LeRobot layout, reads rollouts as demonstrations. A
label is what the policy commanded; whether it was any good says `achieved`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..envs.make import scene_class
from ..rollout.evaluation import Task
from .dataset import Episode, write_meta

if TYPE_CHECKING:
    from ..episode import LiveEpisode, Moment

EVERY = 2  # ticks from one picture to the next, as in the demonstrations


def slug(task: Task) -> str:
    """A name for files of `task`: its environment, goals and start."""
    words = f'{task.environment.split("/")[-1]} {task.name} {task.start}'
    return re.sub(r'[^\w-]+', '-', words).strip('-')


class EpisodeRecorder:
    """Collects one episode tick by tick; call `begin` before the first one.

    Args:
        task: what is asked.
        every: ticks from one picture to the next.
    """

    def __init__(self, task: Task, every: int = EVERY) -> None:
        self._task, self._every = task, every
        self._goals = list(dict.fromkeys(task.goals))
        self._rows: list[dict[str, Any]] = []
        self._pixels: dict[str, list[np.ndarray]] = {}
        self._seen: dict[str, Any] = {}
        self._goal = 0  # place in the goals of the task

    def begin(self, live: LiveEpisode) -> None:
        """See the start."""
        self._see(live)

    def watch(self, live: LiveEpisode, moment: Moment) -> None:
        """Note what was done at what was seen, and see what came of it; fits `play`."""
        subgoal = moment.info['subgoal']
        if subgoal != self._task.goals[self._goal].subgoal:
            self._goal += 1
            self._rows[-1]['segment_end'] = True
        self._rows.append({
            'agent_pos': self._seen['agent_pos'],
            'action': moment.command.action,
            'subgoal': np.int8(self._goals.index(self._task.goals[self._goal])),
            'achieved': self._seen['achieved'][subgoal],
            'segment_end': False,
        })  # fmt: skip
        self._see(live)

    def _see(self, live: LiveEpisode) -> None:
        scene = live.scene
        self._seen = {'agent_pos': scene.proprioception(), 'achieved': scene.achieved()}
        if len(self._rows) % self._every == 0:
            for camera, frame in scene.render_observation()['pixels'].items():
                self._pixels.setdefault(camera, []).append(frame)

    def episode(self) -> Episode:
        """All ticks so far."""
        self._rows[-1]['segment_end'] = True
        columns = {name: np.stack([row[name] for row in self._rows]) for name in self._rows[0]}
        seen = np.arange(0, len(self._rows), self._every, dtype=np.int32)
        # The picture of what the last action led to has no action of its own.
        pixels = {camera: np.stack(shots[: len(seen)]) for camera, shots in self._pixels.items()}
        return Episode(
            pixels=pixels,
            executed=columns['action'],
            perturbed=np.zeros(len(self._rows), bool),
            seen=seen,
            **columns,
        )

    def save(self, folder: Path, number: int, policy: Mapping[str, Any]) -> Path:
        """Write the episode below `folder`, beside the others of its task.

        Args:
            folder: of the whole recording.
            number: of the episode.
            policy: what ran, part of the data's description.

        Raises:
            SimulationError: another policy's episodes of this task stand there.
        """
        mine = folder / slug(self._task)
        write_meta(mine, describe(self._task, self._every, policy))
        path = mine / f'episode-{number:06d}.npz'
        self.episode().save(path)
        return path


def describe(task: Task, every: int, policy: Mapping[str, Any]) -> dict[str, Any]:
    """What `meta.json` says of a task's episodes; a subgoal's words are those really told."""
    return {
        'environment': task.environment,
        'recipe': {'every': every, 'policy': dict(policy)},
        'cameras': list(scene_class(task.environment).CAMERAS),
        'subgoals': [
            {'text': goal.text, 'paraphrases': [], 'held_out': []}
            for goal in dict.fromkeys(task.goals)
        ],
    }
