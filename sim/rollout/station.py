"""What one worker process holds: a brain, a few open scenes, and where pictures go.

Rollouts in this process, in processes of its own and over Ray all play their episodes here.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flashrt_ros.control.types import DELAY, EXECUTE

from ..data.recording import EpisodeRecorder, slug
from ..envs.make import make_scene
from ..envs.scene import SceneEnv
from ..episode import LiveEpisode
from .evaluation import Result, Task
from .play import begin, play

_KEPT = 3  # scenes that are held open


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


@dataclass(frozen=True)
class Outputs:
    """What is wanted of each episode beside its result; None = not wanted.

    Attributes:
        video: folder for one mp4 an episode.
        ends: folder for a picture of each episode's end.
        record: folder for what the policy saw and did, see `EpisodeRecorder`.
    """

    video: Path | None = None
    ends: Path | None = None
    record: Path | None = None


class Station:
    """Plays episodes one after the other.

    Args:
        deployment: policy and timing.
        outputs: what is written.
        store: folder for capsules, where episodes come from elsewhere.
    """

    def __init__(
        self, deployment: Deployment, outputs: Outputs, store: Path | None = None
    ) -> None:
        import torch

        # The number of threads may change the last bit of a sum: always one, whatever the workers.
        torch.set_num_threads(1)
        self.deployment, self.outputs, self._store = deployment, outputs, store
        self._live: LiveEpisode | None = None
        self._scenes: dict[str, SceneEnv] = {}

    def open(self, environment: str) -> LiveEpisode:
        """The brain, in a scene of `environment`.

        Raises:
            FlashrtError: missing weights, or a policy for another robot.
        """
        if self._live is None:
            chosen = dataclasses.asdict(self.deployment)
            self._live = LiveEpisode.open(
                environment, chosen.pop('policy'), store=self._store, **chosen
            )
            self._scenes[environment] = self._live.scene
        if environment not in self._scenes:
            if len(self._scenes) == _KEPT:
                self._scenes.pop(next(iter(self._scenes))).close()
            self._scenes[environment] = make_scene(environment)
        self._live.move_to(self._scenes[environment])
        return self._live

    def run(self, task: Task, number: int, seed: int) -> Result:
        """One whole episode.

        Raises:
            SimulationError: if the expert that prepares the start fails.
        """
        live = self.open(task.environment)
        begin(live, task, seed)
        return self.finish(live, task, number, seed)

    def finish(self, live: LiveEpisode, task: Task, number: int, seed: int) -> Result:
        """The episode that stands at its start in `live`, and all that is wanted of it."""
        from .video import Recorder

        wanted = self.outputs
        film = Recorder() if wanted.video is not None else None
        recorder = EpisodeRecorder(task) if wanted.record is not None else None
        if recorder is not None:
            recorder.begin(live)

        def watch(live: LiveEpisode, moment: Any) -> None:
            for one in (film, recorder):
                if one is not None:
                    one.watch(live, moment)

        result = play(live, task, number, seed, watch)
        if wanted.ends is not None:
            from .sheet import save_end

            end = live.scene.picture(192, 192)
            save_end(wanted.ends, task.environment, number, result.success, end)
        if recorder is not None and wanted.record is not None:
            recorder.save(wanted.record, number, dataclasses.asdict(self.deployment))
        if film is not None and wanted.video is not None:
            verdict = 'success' if result.success else 'failure'
            film.write(wanted.video / f'{slug(task)}-{number:03d}-{verdict}.mp4', live.scene)
        return result

    def close(self) -> None:
        """Give back the scenes."""
        for scene in self._scenes.values():
            scene.close()
        self._scenes.clear()
