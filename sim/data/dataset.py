"""Demonstrations on disk, and the one class that reads them.

A folder holds `meta.json` (environment, cameras, subgoals with their wordings, how the data were
made) and one `episode-NNNNNN.npz` an episode, with an array a field of `Episode`; camera pictures
are stored as `pixels.<camera>`. Who trains asks `EpisodeDataset`, never the files.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import SimulationError

FORMAT = 'flashrt-episodes-2'
_PIXELS = 'pixels.'
_FIELDS = ('agent_pos', 'action', 'executed', 'subgoal', 'achieved', 'perturbed', 'segment_end',
           'seen')  # fmt: skip


@dataclass(frozen=True)
class Episode:
    """One recorded episode of T ticks; row t is what was seen, then done, at tick t.

    Attributes:
        pixels: for each camera uint8 [F, H, W, 3]; a picture is taken every few ticks only.
        agent_pos: hand x, y, z and gripper opening; float32 [T, 4].
        action: the expert's clean action at what was seen, the label; float32 [T, 4].
        executed: what the arm was really told, noise included; float32 [T, 4].
        subgoal: index into `EpisodeDataset.subgoals`; int8 [T].
        achieved: whether that subgoal holds at what was seen; bool [T].
        perturbed: the arm was pushed off the expert's way at this tick; bool [T].
        segment_end: the last tick before another subgoal is asked, or of all; bool [T].
        seen: the tick of each picture; int32 [F].
    """

    pixels: Mapping[str, NDArray[np.uint8]]
    agent_pos: NDArray[np.float32]
    action: NDArray[np.float32]
    executed: NDArray[np.float32]
    subgoal: NDArray[np.int8]
    achieved: NDArray[np.bool_]
    perturbed: NDArray[np.bool_]
    segment_end: NDArray[np.bool_]
    seen: NDArray[np.int32]

    def __len__(self) -> int:
        """Ticks."""
        return len(self.action)

    def chunks(self, horizon: int) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """For each tick the expert's next `horizon` actions, and which of them are true labels.

        A label is true up to the next perturbed tick (from there on the expert answers to another
        situation) and up to the end of the segment (from there on it follows another subgoal).
        What is not true is filled with a hold: no motion, the gripper as it was.

        Returns:
            actions float32 [T, horizon, 4]; mask bool [T, horizon]. A tick whose mask is empty
            (a perturbed one) is no example.
        """
        ticks = np.arange(len(self))
        end = _next(self.segment_end) + 1
        stop = np.minimum(end, _next(self.perturbed))  # [T]: the first tick that is not true
        index = ticks[:, None] + np.arange(horizon)  # [T, horizon]
        mask = index < stop[:, None]
        last = np.minimum(index, np.maximum(stop - 1, ticks)[:, None])
        actions = self.action[last]
        actions[~mask, :3] = 0.0
        return actions, mask

    def save(self, path: Path) -> None:
        """Write the episode; a reader sees all of it or nothing."""
        arrays = {name: getattr(self, name) for name in _FIELDS}
        arrays |= {_PIXELS + camera: frames for camera, frames in self.pixels.items()}
        temporary = path.with_name(f'.{path.name}.{os.getpid()}')
        # Stored as they are: read at the disk's speed, which is what training waits for.
        with zipfile.ZipFile(temporary, 'w', zipfile.ZIP_STORED) as archive:
            for name, array in arrays.items():
                with archive.open(f'{name}.npy', 'w', force_zip64=True) as file:
                    np.lib.format.write_array(
                        file, np.ascontiguousarray(array), allow_pickle=False
                    )
        os.replace(temporary, path)

    @classmethod
    def load(cls, path: Path) -> Episode:
        """Read what `save` wrote.

        Raises:
            SimulationError: if the file is damaged or lacks a field.
        """
        episode = cls.load_columns(path)
        with _opened(path) as file:
            names = [name for name in file.files if name.startswith(_PIXELS)]
            pixels = {name.removeprefix(_PIXELS): file[name] for name in names}
        return dataclasses.replace(episode, pixels=pixels)

    @classmethod
    def load_columns(cls, path: Path) -> Episode:
        """As `load`, without the pictures.

        Raises:
            SimulationError: if the file is damaged or lacks a field.
        """
        with _opened(path) as file:
            missing = [name for name in _FIELDS if name not in file.files]
            if missing:
                raise SimulationError(f'{path} has no {", ".join(missing)}; generate it again')
            return cls(pixels={}, **{name: file[name] for name in _FIELDS})

    @staticmethod
    def load_pictures(path: Path, camera: str) -> NDArray[np.uint8]:
        """The pictures of one camera alone; uint8 [F, H, W, 3].

        Raises:
            SimulationError: if the file is damaged or knows no such camera.
        """
        with _opened(path) as file:
            if _PIXELS + camera not in file.files:
                raise SimulationError(f'{path} has no pictures of {camera!r}; generate it again')
            return file[_PIXELS + camera]


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with np.load(path, allow_pickle=False) as file:
            yield file
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        if isinstance(error, SimulationError):
            raise
        raise SimulationError(f'{path} cannot be read ({error}); generate it again') from None


class EpisodeDataset:
    """All finished episodes of a folder, in the order of their numbers.

    Args:
        folder: as written by `flashrt data generate`.

    Raises:
        SimulationError: if there is no data set in `folder` or it has no episode yet.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.meta = read_meta(self.folder)
        self.files = sorted(self.folder.glob('episode-*.npz'))
        if not self.files:
            raise SimulationError(f'{self.folder} has no episode; run flashrt data generate')

    @property
    def environment(self) -> str:
        """The environment's name, for example 'flashrt/Drawer-v0'."""
        return str(self.meta['environment'])

    @property
    def cameras(self) -> tuple[str, ...]:
        """Names of the cameras, in the order of the environment."""
        return tuple(self.meta['cameras'])

    @property
    def subgoals(self) -> tuple[str, ...]:
        """Canonical instruction of each subgoal; `Episode.subgoal` counts along it."""
        return tuple(entry['text'] for entry in self.meta['subgoals'])

    def wordings(self, subgoal: int) -> tuple[str, ...]:
        """What a policy is trained to understand as this subgoal, the canonical text first."""
        entry = self.meta['subgoals'][subgoal]
        return (entry['text'], *entry['paraphrases'])

    def held_out(self, subgoal: int) -> tuple[str, ...]:
        """Wordings kept from training."""
        return tuple(self.meta['subgoals'][subgoal]['held_out'])

    def __len__(self) -> int:
        """Finished episodes."""
        return len(self.files)

    def __getitem__(self, index: int) -> Episode:
        """Load one episode."""
        return Episode.load(self.files[index])

    def __iter__(self) -> Iterator[Episode]:
        """Load one episode after another."""
        return (self[index] for index in range(len(self)))


def open_all(folder: str | Path) -> list[EpisodeDataset]:
    """The data set in `folder`, or those in its sub-folders, in the order of their names.

    Raises:
        SimulationError: if there is none, or they do not show the same cameras.
    """
    folder = Path(folder)
    found = sorted(path.parent for path in folder.glob('*/meta.json'))
    datasets = [EpisodeDataset(path) for path in found] or [EpisodeDataset(folder)]
    for dataset in datasets:
        if dataset.cameras != datasets[0].cameras:
            raise SimulationError(
                f'{dataset.folder} shows {", ".join(dataset.cameras)} and {datasets[0].folder} '
                f'{", ".join(datasets[0].cameras)}; want the same cameras in all'
            )
    return datasets


def read_meta(folder: Path) -> dict[str, Any]:
    """The description of a data set.

    Raises:
        SimulationError: if there is none or it is of another format.
    """
    path = folder / 'meta.json'
    try:
        meta = json.loads(path.read_text('utf-8'))
    except (OSError, ValueError) as error:
        raise SimulationError(
            f'no data set in {folder} ({error}); run flashrt data generate --out {folder}'
        ) from None
    if not isinstance(meta, dict) or meta.get('format') != FORMAT:
        raise SimulationError(f'{path} is not of the format {FORMAT!r}; generate the data again')
    return meta


def write_meta(folder: Path, meta: dict[str, Any]) -> None:
    """Describe a data set, or check that `folder` already holds the very same one.

    Raises:
        SimulationError: if another data set stands there; names what differs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    meta = json.loads(json.dumps({'format': FORMAT, **meta}))
    path = folder / 'meta.json'
    if path.exists():
        there = read_meta(folder)
        differs = [key for key in {**there, **meta} if there.get(key) != meta.get(key)]
        if differs:
            raise SimulationError(
                f'{folder} holds data with another {" and ".join(differs)}; '
                'choose another --out or remove it'
            )
        return
    temporary = folder / f'.meta.json.{os.getpid()}'
    temporary.write_text(json.dumps(meta, indent=1, ensure_ascii=False) + '\n', 'utf-8')
    os.replace(temporary, path)


def _next(flags: NDArray[np.bool_]) -> NDArray[np.int64]:
    """For each position the first one from there on that is set, or the length; [T] -> [T]."""
    size = len(flags)
    places = np.where(flags, np.arange(size), size)
    return np.minimum.accumulate(places[::-1])[::-1]
