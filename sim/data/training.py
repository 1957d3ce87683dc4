"""Recorded episodes as what the trainer takes: flat arrays, and pictures read when wanted."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

from flashrt_policies.training.data import Demonstrations
from flashrt_ros.control.text import encode

from ..envs.words import varied
from .dataset import Episode, EpisodeDataset


def demonstrations(
    datasets: Sequence[EpisodeDataset], horizon: int, synonyms: bool = False
) -> Demonstrations:
    """Read data sets into flat arrays; their pictures stay in the files until a device wants them.

    A skill is one subgoal of one data set, so that every task weighs the same in training.

    Args:
        datasets: with the same cameras.
        horizon: actions in a chunk.
        synonyms: add wordings with words changed for others of the same meaning, see `words`.
    """

    def rows(wordings: tuple[str, ...]) -> np.ndarray:
        return np.stack([encode(text) for text in wordings]) if wordings else np.zeros((0, 0))

    files = [path for dataset in datasets for path in dataset.files]
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        episodes = list(pool.map(Episode.load_columns, files))
    lengths = [len(episode) for episode in episodes]
    first = np.cumsum([0, *lengths[:-1]])
    skill, offset = [], 0
    each = iter(episodes)
    for dataset in datasets:
        skill += [next(each).subgoal.astype(np.int64) + offset for _ in dataset.files]
        offset += len(dataset.subgoals)
    counts = [len(episode.seen) for episode in episodes]
    held_out = {
        text
        for dataset in datasets
        for goal in range(len(dataset.subgoals))
        for text in dataset.held_out(goal)
    }

    def wordings(dataset: EpisodeDataset, goal: int) -> tuple[str, ...]:
        known = dataset.wordings(goal)
        return varied(known, held_out) if synonyms else known

    pairs = [(dataset, goal) for dataset in datasets for goal in range(len(dataset.subgoals))]
    return Demonstrations(
        images={camera: StoredPictures(files, counts, camera) for camera in datasets[0].cameras},
        proprio=np.concatenate([episode.agent_pos for episode in episodes]),
        actions=np.concatenate([episode.action for episode in episodes]),
        episode=np.repeat(np.arange(len(episodes)), lengths),
        skill=np.concatenate(skill),
        ahead=np.concatenate([e.chunks(horizon)[1].sum(1) for e in episodes]).astype(np.int64),
        skills=[dataset.subgoals[goal] for dataset, goal in pairs],
        wordings=[rows(wordings(dataset, goal)) for dataset, goal in pairs],
        held_out=[rows(dataset.held_out(goal)) for dataset, goal in pairs],
        seen=np.concatenate([e.seen + at for e, at in zip(episodes, first, strict=True)]),
    )


class StoredPictures:
    """Pictures of one camera in the files of many episodes; see `training.data.Pictures`.

    Args:
        files: of the episodes.
        counts: pictures in each.
        camera: which.
    """

    def __init__(self, files: Sequence[Path], counts: Sequence[int], camera: str) -> None:
        self._files, self._counts, self._camera = files, counts, camera
        size = Episode.load_pictures(files[0], camera).shape[1:]
        self.shape = (sum(counts), *size)

    def load(self, device: torch.device) -> torch.Tensor:
        """Read all of them, several files at a time, straight to their places."""
        out = torch.empty(self.shape, dtype=torch.uint8, device=device)
        places = list(itertools.accumulate(self._counts, initial=0))

        def one(number: int) -> None:
            pictures = Episode.load_pictures(self._files[number], self._camera)
            out[places[number] : places[number + 1]].copy_(torch.from_numpy(pictures))

        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            list(pool.map(one, range(len(self._files))))
        return out
