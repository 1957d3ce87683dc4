"""Demonstrations in the LeRobot dataset layout, version 3.0, so that others can train on them.

    meta/info.json  meta/stats.json  meta/tasks.parquet
    meta/episodes/chunk-000/file-000.parquet     where each episode stands
    data/chunk-000/file-NNN.parquet              one file an environment, one row a picture

Pictures are PNG inside the parquet files (lerobot's data type `image`): no bit is lost, as a
video would. A row's `action` is the expert's clean action at the picture's tick, `actions` are
those of all ticks up to the next picture, and `executed` is what the arm was really told.
Layout: lerobot's documentation of LeRobotDataset v3.0.
"""

from __future__ import annotations

import functools
import io
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..envs.scene import IMAGE_SIZE, SceneEnv
from ..errors import SimulationError
from ..rollout.workers import spread
from .arrow import load_arrow
from .dataset import Episode, EpisodeDataset

VERSION = 'v3.0'
STATE = ('hand_x', 'hand_y', 'hand_z', 'gripper')
ACTION = ('dx', 'dy', 'dz', 'effort')
_DATA = 'data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet'
_EPISODES = 'meta/episodes/chunk-000/file-000.parquet'
_PER_CHUNK = 1000  # files in one folder


def write(
    datasets: Sequence[EpisodeDataset], out: str | Path, workers: int = 1
) -> Iterator[tuple[int, int]]:
    """Write all episodes of `datasets` into `out`; gives (files done, files in all).

    A data file that is there already is left alone, so a stopped run goes on where it was.

    Raises:
        SimulationError: pyarrow is missing, or the data sets differ in cameras or picture rate.
    """
    load_arrow()
    out, every = Path(out), {int(dataset.meta['recipe']['every']) for dataset in datasets}
    if len(every) != 1:
        raise SimulationError(
            f'pictures were taken every {sorted(every)} ticks; want one rate in a data set'
        )
    tasks = list(dict.fromkeys(text for dataset in datasets for text in _texts(dataset)))
    episode, frame, jobs, rows = 0, 0, [], []
    for number, dataset in enumerate(datasets):
        jobs.append((dataset.folder, out / _data(number), every, tasks, episode, frame))
        for path in dataset.files:
            length = len(Episode.load_columns(path).seen)
            rows.append(_episode_row(number, episode, frame, length))
            episode, frame = episode + 1, frame + length
    parts = {}
    for done, (number, part) in enumerate(
        spread([(n, *job) for n, job in enumerate(jobs)], _file, workers, _nothing)
    ):
        parts[number] = part
        yield done + 1, len(jobs)
    for number, row in enumerate(rows):
        row['tasks'] = [name for part in parts.values() for name in part['tasks'].get(number, [])]
    _write_meta(out, datasets, rows, tasks, [parts[n] for n in sorted(parts)], every.pop())


def _data(number: int) -> str:
    return _DATA.format(chunk_index=number // _PER_CHUNK, file_index=number % _PER_CHUNK)


def _episode_row(file: int, episode: int, frame: int, length: int) -> dict[str, Any]:
    return {
        'episode_index': episode,
        'length': length,
        'data/chunk_index': file // _PER_CHUNK,
        'data/file_index': file % _PER_CHUNK,
        'dataset_from_index': frame,
        'dataset_to_index': frame + length,
        'meta/episodes/chunk_index': 0,
        'meta/episodes/file_index': 0,
    }


def _texts(dataset: EpisodeDataset) -> list[str]:
    """Every trained wording of a data set."""
    return [text for goal in range(len(dataset.subgoals)) for text in dataset.wordings(goal)]


def _nothing() -> None:
    """Processes need no preparation."""


def _file(
    number: int, folder: Path, path: Path, every: set[int], tasks: list[str], episode: int,
    frame: int,
) -> tuple[int, dict[str, Any]]:  # fmt: skip
    """Write one environment's rows; returns their tasks and statistics, also kept beside them."""
    dataset, (step,) = EpisodeDataset(folder), every
    # What this file was made of stands beside it: with other data it is written again.
    notes, made_of = path.with_name(f'.{path.stem}.json'), [len(dataset), episode, frame, tasks]
    if path.exists() and notes.exists():
        found = json.loads(notes.read_text('utf-8'))
        if found['made_of'] == made_of:
            found['tasks'] = {int(key): value for key, value in found['tasks'].items()}
            return number, found
    arrow, parquet = load_arrow()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f'.{path.name}.{os.getpid()}')
    sums, told = _Sums(), {}
    schema = _schema(dataset.cameras, step)
    with parquet.ParquetWriter(temporary, schema, compression='snappy') as writer:
        for file in dataset.files:
            recorded = Episode.load(file)
            # Each segment is told in one of its wordings, drawn by the episode's number.
            words = _words(dataset, recorded, np.random.default_rng([episode, 7]))
            columns = _columns(recorded, step, episode, frame, [tasks.index(w) for w in words])
            writer.write_table(arrow.table(columns, schema=schema))
            sums.add(recorded)
            told[episode] = list(dict.fromkeys(words))
            episode, frame = episode + 1, frame + len(recorded.seen)
    found = {'tasks': told, 'sums': sums.plain(), 'made_of': made_of}
    notes.write_text(json.dumps(found), 'utf-8')
    os.replace(temporary, path)
    return number, found


def _words(dataset: EpisodeDataset, episode: Episode, rng: np.random.Generator) -> list[str]:
    """The wording of each picture's segment."""
    segment = np.concatenate([[0], np.cumsum(episode.segment_end)[:-1]])
    chosen: dict[int, str] = {}
    words = []
    for tick in episode.seen:
        number = int(segment[tick])
        if number not in chosen:
            chosen[number] = str(rng.choice(dataset.wordings(int(episode.subgoal[tick]))))
        words.append(chosen[number])
    return words


def _columns(
    episode: Episode, every: int, number: int, frame: int, tasks: list[int]
) -> dict[str, Any]:
    seen, count = episode.seen, len(episode.seen)
    ticks = np.minimum(seen[:, None] + np.arange(every), len(episode) - 1)  # [F, every]
    columns: dict[str, Any] = {
        f'observation.images.{camera}': [
            {'bytes': _png(frame_), 'path': f'{camera}-{number:06d}-{at:06d}.png'}
            for at, frame_ in enumerate(frames)
        ]
        for camera, frames in episode.pixels.items()
    }
    return columns | {
        'observation.state': list(episode.agent_pos[seen]),
        'action': list(episode.action[seen]),
        'actions': list(episode.action[ticks].reshape(count, -1)),
        'executed': list(episode.executed[seen]),
        'next.success': episode.achieved[seen],
        'timestamp': (np.arange(count) / _fps(every)).astype(np.float32),
        'frame_index': np.arange(count),
        'episode_index': np.full(count, number),
        'index': np.arange(frame, frame + count),
        'task_index': np.asarray(tasks),
    }


def _png(frame: np.ndarray) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(frame).save(buffer, 'PNG', compress_level=1)
    return buffer.getvalue()


def _fps(every: int) -> float:
    return SceneEnv.metadata['render_fps'] / every


def _schema(cameras: Sequence[str], every: int) -> Any:
    arrow, _ = load_arrow()
    four = arrow.list_(arrow.float32(), 4)
    picture = arrow.struct({'bytes': arrow.binary(), 'path': arrow.string()})
    whole = ('frame_index', 'episode_index', 'index', 'task_index')
    return arrow.schema([
        *((f'observation.images.{camera}', picture) for camera in cameras),
        ('observation.state', four),
        ('action', four),
        ('actions', arrow.list_(arrow.float32(), 4 * every)),
        ('executed', four),
        ('next.success', arrow.bool_()),
        ('timestamp', arrow.float32()),
        *((name, arrow.int64()) for name in whole),
    ])  # fmt: skip


class _Sums:
    """What means, spreads and limits over all rows are made of."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, Any]] = {}

    def add(self, episode: Episode) -> None:
        """Take in one episode."""
        rows = {'observation.state': episode.agent_pos, 'action': episode.action,
                'executed': episode.executed}  # fmt: skip
        for name, values in rows.items():
            self._add(name, values[episode.seen].astype(np.float64))
        for camera, frames in episode.pixels.items():
            some = frames[:: max(1, len(frames) // 8)].astype(np.float64) / 255.0
            self._add(f'observation.images.{camera}', some.reshape(-1, 3))

    def _add(self, name: str, values: np.ndarray) -> None:
        new = {
            'min': values.min(0), 'max': values.max(0), 'count': len(values),
            'sum': values.sum(0), 'square': (values**2).sum(0),
        }  # fmt: skip
        self.found[name] = merge(self.found[name], new) if name in self.found else new

    def plain(self) -> dict[str, Any]:
        """The same as plain values."""
        return {
            name: {key: np.asarray(value).tolist() for key, value in entry.items()}
            for name, entry in self.found.items()
        }


def merge(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """The sums of two sets of rows taken together."""
    return {
        'min': np.minimum(one['min'], other['min']),
        'max': np.maximum(one['max'], other['max']),
        **{key: np.add(one[key], other[key]) for key in ('count', 'sum', 'square')},
    }


def _statistics(entry: dict[str, Any], picture: bool) -> dict[str, Any]:
    count = int(entry['count'])
    mean = np.asarray(entry['sum']) / count
    spread_ = np.sqrt(np.maximum(np.asarray(entry['square']) / count - mean**2, 0.0))
    found = {'min': entry['min'], 'max': entry['max'], 'mean': mean, 'std': spread_}
    shape = (3, 1, 1) if picture else (-1,)
    plain = {key: np.asarray(value).reshape(shape).tolist() for key, value in found.items()}
    return plain | {'count': [count]}


def _write_meta(
    out: Path,
    datasets: Sequence[EpisodeDataset],
    rows: list[dict[str, Any]],
    tasks: list[str],
    parts: list[dict[str, Any]],
    every: int,
) -> None:
    arrow, parquet = load_arrow()
    (out / _EPISODES).parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(arrow.Table.from_pylist(rows), out / _EPISODES)
    _write_tasks(out / 'meta' / 'tasks.parquet', tasks)
    names = parts[0]['sums']
    sums = {
        name: functools.reduce(merge, [part['sums'][name] for part in parts]) for name in names
    }
    stats = {name: _statistics(sums[name], 'images' in name) for name in sums}
    info = {
        'codebase_version': VERSION,
        'robot_type': 'sawyer',
        'total_episodes': len(rows),
        'total_frames': rows[-1]['dataset_to_index'],
        'total_tasks': len(tasks),
        'chunks_size': _PER_CHUNK,
        'data_files_size_in_mb': 100,
        'video_files_size_in_mb': 200,
        'fps': int(_fps(every)),
        'splits': {'train': f'0:{len(rows)}'},
        'data_path': _DATA,
        'video_path': None,
        'features': _features(datasets[0].cameras, every),
    }
    for name, value in (('stats', stats), ('info', info)):
        text = json.dumps(value, indent=2, ensure_ascii=False) + '\n'
        (out / 'meta' / f'{name}.json').write_text(text, 'utf-8')


def _features(cameras: Sequence[str], every: int) -> dict[str, Any]:
    def one(dtype: str, shape: list[int], names: Any = None) -> dict[str, Any]:
        return {'dtype': dtype, 'shape': shape, 'names': names}

    size = [IMAGE_SIZE, IMAGE_SIZE, 3]
    found = {f'observation.images.{camera}': one('image', size, ['height', 'width', 'channels'])
             for camera in cameras}  # fmt: skip
    found['observation.state'] = one('float32', [4], list(STATE))
    found['action'] = one('float32', [4], list(ACTION))
    found['actions'] = one(
        'float32', [4 * every], [f'{n}_{i}' for i in range(every) for n in ACTION]
    )
    found['executed'] = one('float32', [4], list(ACTION))
    found['next.success'] = one('bool', [1])
    found['timestamp'] = one('float32', [1])
    for name in ('frame_index', 'episode_index', 'index', 'task_index'):
        found[name] = one('int64', [1])
    return found


def _write_tasks(path: Path, tasks: list[str]) -> None:
    """A table whose index is the text: lerobot reads it with pandas."""
    arrow, parquet = load_arrow()
    table = arrow.table({'task_index': np.arange(len(tasks)), 'task': tasks})
    columns = [
        {
            'name': name,
            'field_name': name,
            'pandas_type': kind,
            'numpy_type': numpy,
            'metadata': None,
        }
        for name, kind, numpy in (('task_index', 'int64', 'int64'), ('task', 'unicode', 'object'))
    ]
    note = {'index_columns': ['task'], 'column_indexes': [], 'columns': columns,
            'pandas_version': '2.0.0', 'creator': {'library': 'pyarrow', 'version': '0'},
    }  # fmt: skip
    parquet.write_table(table.replace_schema_metadata({'pandas': json.dumps(note)}), path)
