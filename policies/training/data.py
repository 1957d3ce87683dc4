"""Demonstrations as flat arrays, and the batches drawn from them.

The trainer knows no file format: whoever calls it fills `Demonstrations`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from flashrt_ros.errors import FlashrtError


class DataError(FlashrtError):
    """Demonstrations whose arrays do not fit together, or that hold NaN."""


class Pictures(Protocol):
    """Pictures that are still in files; only the training device ever holds them whole."""

    shape: tuple[int, ...]

    def load(self, device: torch.device) -> Tensor:
        """Read all of them; uint8 [F, H, W, 3] on `device`."""


@dataclass
class Demonstrations:
    """Ticks of all episodes, one after another, and the pictures taken at some of them.

    Attributes:
        images: camera name -> uint8 [F, H, W, 3], in memory or still in files.
        proprio: float32 [N, P].
        actions: float32 [N, A], the clean expert's action at each frame.
        episode: int64 [N], increasing.
        skill: int64 [N], which of `skills` was pursued at the frame.
        ahead: int64 [N], how many actions from this frame on are the expert's answer to it: a
            chunk ends where the episode or the subgoal does, or where the arm was pushed off its
            way. A frame with 0 is no example.
        skills: canonical instruction of each skill.
        wordings: per skill the instruction rows to train on, int32 [K, L].
        held_out: per skill the instruction rows kept out of training, int32 [K, L]; may be empty.
        seen: int64 [F], the tick of each picture; every tick has one if left out.
        indicator: int64 [F], how good the chunk from each picture on is said to be, see
            `flow_vla.advantage`; left out where nothing is said.
        weights: float [S], how often each skill is drawn, in place of `balance`.
    """

    images: Mapping[str, np.ndarray | Pictures]
    proprio: np.ndarray
    actions: np.ndarray
    episode: np.ndarray
    skill: np.ndarray
    ahead: np.ndarray
    skills: Sequence[str]
    wordings: Sequence[np.ndarray]
    held_out: Sequence[np.ndarray] = field(default_factory=list)
    seen: np.ndarray | None = None
    indicator: np.ndarray | None = None
    weights: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.episode)

    def check(self) -> None:
        """Refuse arrays that do not fit together.

        Raises:
            DataError: one line that names the array and says what would be right.
        """
        count = len(self)
        if count == 0:
            raise DataError('the demonstrations hold no frame; want at least one episode')
        arrays = {
            'proprio': self.proprio,
            'actions': self.actions,
            'skill': self.skill,
            'ahead': self.ahead,
        }
        for name, array in arrays.items():
            if len(array) != count:
                raise DataError(f'{name} has {len(array)} frames; want {count}, as episode has')
        pictures = count if self.seen is None else len(self.seen)
        for name, images in self.images.items():
            if images.shape[0] != pictures:
                raise DataError(
                    f'images[{name!r}] has {images.shape[0]} frames; want {pictures}, as '
                    f'{"episode" if self.seen is None else "seen"} has'
                )
        if self.seen is not None and ((self.seen < 0) | (self.seen >= count)).any():
            raise DataError(f'seen leaves the data; want ticks from 0 to {count - 1}')
        if self.indicator is not None and len(self.indicator) != pictures:
            raise DataError(
                f'indicator has {len(self.indicator)} frames; want {pictures}, one a picture'
            )
        if self.weights is not None and len(self.weights) != len(self.skills):
            raise DataError(
                f'{len(self.weights)} weights for {len(self.skills)} skills; want one each'
            )
        for name in ('proprio', 'actions'):
            if not np.isfinite(arrays[name]).all():
                raise DataError(f'{name} holds NaN or infinity; want finite numbers')
        if (np.diff(self.episode) < 0).any():
            raise DataError('episode decreases; want the frames of each episode in a row')
        if len(self.wordings) != len(self.skills):
            raise DataError(
                f'{len(self.wordings)} sets of wordings for {len(self.skills)} skills; '
                'want one each'
            )
        left = np.append(np.flatnonzero(np.diff(self.episode)) + 1, count)  # ends of episodes
        room = left[np.searchsorted(left, np.arange(count), side='right')] - np.arange(count)
        if (self.ahead < 0).any() or (self.ahead > room).any():
            raise DataError('ahead leaves its episode; want 0 to the frames left in the episode')
        if self.skill.min() < 0 or self.skill.max() >= len(self.skills):
            raise DataError(
                f'skill runs from {self.skill.min()} to {self.skill.max()}; '
                f'want 0 to {len(self.skills) - 1}'
            )


@dataclass
class Batch:
    """One batch on the training device.

    Attributes:
        images: uint8 [B, V, H, W, 3].
        proprio: float32 [B, P].
        rows: int32 [B, L].
        actions: float32 [B, T, A]; where not valid, the last valid one.
        valid: bool [B, T]; false from where the actions answer to something else.
        skill: int64 [B].
        indicator: int64 [B], how good each chunk is said to be; None where nothing is said.
    """

    images: Tensor
    proprio: Tensor
    rows: Tensor
    actions: Tensor
    valid: Tensor
    skill: Tensor
    indicator: Tensor | None = None


class Frames:
    """Demonstrations held whole on a device, and the chunks that start at each frame.

    Args:
        data: checked demonstrations.
        cameras: the order of the views.
        horizon: actions T of a chunk.
        device: where the arrays live.
        validation: share of the episodes kept out of training, chosen by `seed`.
        seed: of the split.
        balance: skills are drawn in proportion to their number of frames to this power, unless
            the data have weights.
    """

    def __init__(
        self,
        data: Demonstrations,
        cameras: Sequence[str],
        horizon: int,
        device: torch.device,
        validation: float,
        seed: int,
        balance: float = 0.0,
    ) -> None:
        data.check()
        for camera in cameras:
            if camera not in data.images:
                raise DataError(
                    f'there are no images of camera {camera!r}; want {", ".join(cameras)}'
                )
        self.device, self.horizon = device, horizon
        self.images = [_pictures(data.images[name], device) for name in cameras]
        seen = np.arange(len(data)) if data.seen is None else data.seen
        self.seen = _tensor(seen, device)  # [F] -> tick
        self.actions = _tensor(data.actions, device)  # [N, A]
        self.proprio = _tensor(data.proprio[seen], device)
        self.skill = _tensor(data.skill[seen], device)
        self.episode = _tensor(data.episode[seen], device)
        self.ahead = _tensor(data.ahead[seen], device)
        self.indicator = None if data.indicator is None else _tensor(data.indicator, device)
        self.words, self.word_counts = _pad(data.wordings, device)
        self.held_out = None
        if len(data.held_out) and all(len(rows) for rows in data.held_out):
            self.held_out = _pad(data.held_out, device)
        draw = np.random.default_rng(seed)
        names = np.unique(data.episode)
        kept = draw.permutation(names)[: max(1, round(validation * len(names)))]
        held = np.isin(data.episode[seen], kept) & (validation > 0)
        example = data.ahead[seen] > 0
        self.validation = _tensor(np.flatnonzero(held & example), device)
        train = np.flatnonzero(~held & example)
        skill = data.skill[seen][train]
        by_skill = [train[skill == i] for i in range(len(data.skills))]
        if any(len(frames) == 0 for frames in by_skill):
            missing = next(i for i, frames in enumerate(by_skill) if len(frames) == 0)
            raise DataError(
                f'no training frame shows skill {data.skills[missing]!r}; want more episodes'
            )
        self.order = _tensor(np.concatenate(by_skill), device)
        self.counts = torch.tensor([len(frames) for frames in by_skill], device=device)
        self.starts = self.counts.cumsum(0) - self.counts
        share = self.counts.double() ** balance
        if data.weights is not None:
            share = torch.tensor(data.weights, dtype=torch.float64, device=device)
        self.shares = (share.cumsum(0) / share.sum()).float()  # [S], the last one is 1

    def sample(self, count: int, generator: torch.Generator) -> Batch:
        """Draw `count` training frames, skills as `balance` says, each with some wording."""
        draw = torch.rand(3, count, generator=generator, device=self.device)
        skill = torch.searchsorted(self.shares, draw[0], right=True).clamp(
            max=len(self.counts) - 1
        )
        count_of = self.counts[skill]
        at = self.starts[skill] + torch.minimum((draw[1] * count_of).long(), count_of - 1)
        return self.at(self.order[at], draw[2])

    def at(self, index: Tensor, wording: Tensor) -> Batch:
        """Return the batch of frames `index` [B]; `wording` [B] in [0, 1) picks the wording."""
        steps = torch.arange(self.horizon, device=self.device)  # [T]
        ahead = self.ahead[index][:, None]  # [B, 1]
        # Beyond the last true action it is repeated, so that no foreign label is ever shown.
        ticks = self.seen[index][:, None] + torch.minimum(steps, ahead - 1)  # [B, T]
        skill = self.skill[index]
        return Batch(
            images=torch.stack([images[index] for images in self.images], dim=1),
            proprio=self.proprio[index],
            rows=self.rows(skill, wording),
            actions=self.actions[ticks],
            valid=steps < ahead,
            skill=skill,
            indicator=None if self.indicator is None else self.indicator[index],
        )

    def rows(self, skill: Tensor, wording: Tensor, held_out: bool = False) -> Tensor:
        """Return instruction rows [B, L] of skills [B]; `wording` [B] in [0, 1) picks one."""
        words, counts = self.words, self.word_counts
        if held_out and self.held_out is not None:
            words, counts = self.held_out
        return words[skill, (wording * counts[skill]).long()]

    def statistics(self) -> dict[str, Tensor]:
        """Return means and spreads of proprioception and actions over the training frames.

        A component that hardly varies gets a least spread (2 cm, 0.05 of an action), so that
        dividing by it never turns rounding into signal.
        """
        found = {}
        for name, values, least in (
            ('proprio', self.proprio[self.order], 0.02),
            ('action', self.actions[self.seen[self.order]], 0.05),
        ):
            found[f'{name}_mean'] = values.double().mean(0).float()
            spread = values.double().std(0, correction=0).float()
            found[f'{name}_std'] = spread.clamp(min=least)
        return found


def _pictures(images: np.ndarray | Pictures, device: torch.device) -> Tensor:
    return _tensor(images, device) if isinstance(images, np.ndarray) else images.load(device)


def _tensor(array: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)


def _pad(groups: Sequence[np.ndarray], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return rows of all groups [S, K, L], short groups padded, and the group sizes [S]."""
    most = max(len(rows) for rows in groups)
    padded = np.stack([np.resize(rows, (most, rows.shape[1])) for rows in groups])
    return _tensor(padded, device), torch.tensor([len(rows) for rows in groups], device=device)
