"""Own episodes and demonstrations as what the trainer takes, every chunk called good or bad."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from flashrt_policies.flow_vla.advantage import GOOD
from flashrt_policies.flow_vla.model import FlowVLA
from flashrt_policies.training import advantage
from flashrt_policies.training.data import Demonstrations, Frames
from flashrt_policies.training.value import Value, cross_fit, features
from flashrt_policies.training.value_function import ValueNetwork

from ..data.dataset import EpisodeDataset, open_all
from ..data.training import demonstrations
from ..errors import SimulationError
from ..rollout.evaluation import Result
from .recipe import Relabel

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Judged:
    """What is thought of every picture of the own episodes, [F] each.

    Attributes:
        expected: return to expect, by a value function that does not know the episode.
        returned: what the episode really returned.
        advantage: of what was done from there on.
        indicator: what that is called.
    """

    expected: Floats
    returned: Floats
    advantage: Floats
    indicator: NDArray[np.int64]

    def save(self, path: Path) -> None:
        """Write all of it or nothing."""
        temporary = path.with_name(f'.{path.stem}.{os.getpid()}.npz')
        np.savez(temporary, **vars(self))
        os.replace(temporary, path)

    @classmethod
    def load(cls, path: Path) -> Judged:
        """Read what `save` wrote."""
        with np.load(path, allow_pickle=False) as file:
            return cls(**{name: file[name] for name in file.files})


class OwnEpisodes:
    """What a policy did by itself, over all rounds so far.

    Args:
        folders: recorded episodes of each round.
        results: how they went, of each round.
        horizon: actions in a chunk.

    Raises:
        SimulationError: an episode's outcome is not known.
    """

    def __init__(
        self, folders: Sequence[Path], results: Sequence[Sequence[Result]], horizon: int
    ) -> None:
        self.datasets: list[EpisodeDataset] = []
        self.outcomes: list[Result] = []  # of each file, in the order of the data
        for folder, known in zip(folders, results, strict=True):
            by_name = {(each.environment, each.episode): each for each in known}
            for dataset in open_all(folder):
                self.datasets.append(dataset)
                for path in dataset.files:
                    key = dataset.environment, int(path.stem.rpartition('-')[2])
                    if key not in by_name:
                        raise SimulationError(f'how {path} went is not known; remove it')
                    self.outcomes.append(by_name[key])
        self.data = demonstrations(self.datasets, horizon)

    def judge(
        self,
        model: FlowVLA,
        value: Value,
        relabel: Relabel,
        limit: int,
        device: torch.device,
        seed: int,
    ) -> tuple[Judged, ValueNetwork]:
        """Fit a value function to the episodes, and say what was good in them.

        Args:
            model: whose view of the pictures the value function has.
            value: how it is fitted.
            relabel: what is called good.
            limit: ticks after which an episode failed.
            device: where the fit runs.
            seed: of the fit.

        Returns:
            what is thought of the pictures, each by a fit to other episodes, and all the fits.
        """
        data = self.data
        assert data.seen is not None
        frames = Frames(data, model.spec.cameras, model.spec.horizon, device, 0.0, seed)
        episode = data.episode[data.seen]  # [F]
        first = np.searchsorted(data.episode, np.arange(len(self.outcomes)))
        seen = data.seen - first[episode]  # tick within the episode, [F]
        returned = np.empty(len(seen))
        own = [episode == number for number in range(len(self.outcomes))]
        for mine, outcome in zip(own, self.outcomes, strict=True):
            returned[mine] = advantage.returns(seen[mine], outcome.ticks, outcome.success, limit)
        expected, network = cross_fit(
            features(model, frames, bar=partial(tqdm, desc='pictures', unit='batch')),
            torch.from_numpy(returned).float().to(device),
            torch.from_numpy(episode).to(device),
            value,
            seed,
        )
        values = expected.double().cpu().numpy()
        found = np.empty(len(seen))
        for mine, outcome in zip(own, self.outcomes, strict=True):
            found[mine] = advantage.advantages(
                values[mine], seen[mine], outcome.ticks, outcome.success, limit, relabel.trace
            )
        names = [dataset.environment for dataset in self.datasets]
        task = np.array([names.index(name) for name in names])  # of each skill
        indicator = advantage.labels(found, task[data.skill[data.seen]], relabel.good)
        return Judged(values, returned, found, indicator), network


def mixture(
    shown: Sequence[EpisodeDataset], own: OwnEpisodes, judged: Judged, share: float, horizon: int
) -> Demonstrations:
    """Demonstrations, all of them good, and own episodes as they were judged.

    Args:
        shown: demonstrations.
        own: the policy's episodes.
        judged: what is thought of them.
        share: of every batch that is from the demonstrations.
        horizon: actions in a chunk.
    """
    data = demonstrations([*shown, *own.datasets], horizon)
    assert data.seen is not None
    skills, mine = len(data.skills), len(own.data.skills)
    # Own episodes were told the canonical words; they mean the same in all the others.
    words, kept = list(data.wordings), list(data.held_out)
    for index in range(skills - mine, skills):
        same = list(data.skills).index(data.skills[index])
        words[index], kept[index] = words[same], kept[same]
    data.wordings, data.held_out = words, kept
    data.weights = np.repeat([share / (skills - mine), (1 - share) / mine], [skills - mine, mine])
    good = np.full(len(data.seen) - len(judged.indicator), GOOD, np.int64)
    data.indicator = np.concatenate((good, judged.indicator))
    return data
