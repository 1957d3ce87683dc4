"""The LeRobot layout: what lerobot's reader of version 3.0 looks for, and nothing lost."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest

pytest.importorskip('metaworld')
pytest.importorskip('pyarrow')

from PIL import Image
from pyarrow import parquet

from flashrt_sim.data import lerobot
from flashrt_sim.data.dataset import Episode, EpisodeDataset, write_meta
from flashrt_sim.data.demonstrations import TASK, describe
from flashrt_sim.envs.registration import environment_name
from flashrt_sim.errors import SimulationError


def made_up(folder, task, lengths, seed=0):
    """A data set of random episodes, as `flashrt data generate` would leave it."""
    rng = np.random.default_rng(seed)
    write_meta(folder, describe(environment_name(task), 0, TASK))
    for number, ticks in enumerate(lengths):
        seen = np.arange(0, ticks, TASK.every, dtype=np.int32)
        flags = np.zeros(ticks, bool)
        Episode(
            pixels={
                camera: rng.integers(0, 256, (len(seen), 96, 96, 3), dtype=np.uint8)
                for camera in ('front', 'wrist')
            },
            agent_pos=rng.normal(size=(ticks, 4)).astype(np.float32),
            action=rng.uniform(-1, 1, (ticks, 4)).astype(np.float32),
            executed=rng.uniform(-1, 1, (ticks, 4)).astype(np.float32),
            subgoal=np.zeros(ticks, np.int8),
            achieved=np.arange(ticks) >= ticks - 3,
            perturbed=flags,
            segment_end=np.arange(ticks) == ticks - 1,
            seen=seen,
        ).save(folder / f'episode-{number:06d}.npz')
    return EpisodeDataset(folder)


@pytest.fixture(scope='module')
def written(tmp_path_factory):
    """Two data sets of two tasks and what became of them."""
    folder = tmp_path_factory.mktemp('data')
    datasets = [made_up(folder / 'a', 'push', [9, 12]), made_up(folder / 'b', 'reach', [8])]
    out = folder / 'lerobot'
    assert list(lerobot.write(datasets, out)) == [(1, 2), (2, 2)]
    return datasets, out


def test_meta_data_agree_with_the_files(written):
    """Counts, places of episodes, and the schema that info.json declares."""
    datasets, out = written
    info = json.loads((out / 'meta' / 'info.json').read_text())
    rows = parquet.read_table(out / 'meta/episodes/chunk-000/file-000.parquet').to_pylist()
    assert info['codebase_version'] == 'v3.0' and info['fps'] == 10
    assert info['total_episodes'] == len(rows) == 3 and info['splits'] == {'train': '0:3'}
    assert info['total_frames'] == rows[-1]['dataset_to_index'] == 5 + 6 + 4
    for row in rows:
        path = out / info['data_path'].format(
            chunk_index=row['data/chunk_index'], file_index=row['data/file_index']
        )
        table = parquet.read_table(path)
        assert set(table.schema.names) == set(info['features'])
        mine = [r for r in table.to_pylist() if r['episode_index'] == row['episode_index']]
        first, last = row['dataset_from_index'], row['dataset_to_index']
        assert [r['index'] for r in mine] == list(range(first, last))
        assert [r['frame_index'] for r in mine] == list(range(row['length']))
        assert mine[1]['timestamp'] == pytest.approx(1 / info['fps'])
    tasks = parquet.read_table(out / 'meta' / 'tasks.parquet').to_pylist()
    assert [task['task_index'] for task in tasks] == list(range(info['total_tasks']))
    told = {task['task'] for task in tasks}
    assert told == {w for dataset in datasets for w in dataset.wordings(0)}
    assert not told & {w for dataset in datasets for w in dataset.held_out(0)}
    assert all(set(row['tasks']) <= told and row['tasks'] for row in rows)


def test_nothing_is_lost(written):
    """Pictures bit for bit, the state and every tick's action."""
    datasets, out = written
    table = parquet.read_table(out / 'data/chunk-000/file-000.parquet').to_pylist()
    episode = datasets[0][0]
    for number, row in enumerate(table[: len(episode.seen)]):
        tick = episode.seen[number]
        for camera, frames in episode.pixels.items():
            stored = Image.open(io.BytesIO(row[f'observation.images.{camera}']['bytes']))
            assert np.array_equal(np.asarray(stored), frames[number])
        assert np.array_equal(row['observation.state'], episode.agent_pos[tick])
        assert np.array_equal(row['executed'], episode.executed[tick])
        assert np.array_equal(row['actions'][:4], row['action'])
        last = min(tick + 1, len(episode) - 1)
        assert np.array_equal(row['actions'][4:], episode.action[last])
        assert row['next.success'] == episode.achieved[tick]


def test_statistics_are_of_all_rows(written):
    """Mean and spread as computed from the rows at once."""
    datasets, out = written
    stats = json.loads((out / 'meta' / 'stats.json').read_text())
    rows = np.concatenate([e.action[e.seen] for dataset in datasets for e in dataset])
    assert np.allclose(stats['action']['mean'], rows.mean(0), atol=1e-6)
    assert np.allclose(stats['action']['std'], rows.std(0), atol=1e-6)
    assert stats['action']['count'] == [15]
    picture = np.asarray(stats['observation.images.front']['mean'])
    assert picture.shape == (3, 1, 1) and (np.abs(picture - 0.5) < 0.02).all()


def test_a_stopped_run_goes_on_and_new_data_are_seen(written, tmp_path):
    """A finished file is left alone; one that was made of fewer episodes is written again."""
    datasets, out = written
    path = out / 'data/chunk-000/file-000.parquet'
    before = path.stat().st_mtime_ns
    list(lerobot.write(datasets, out))
    assert path.stat().st_mtime_ns == before
    first = [made_up(tmp_path / 'a', 'push', [9])]
    list(lerobot.write(first, tmp_path / 'l'))
    more = [made_up(tmp_path / 'a', 'push', [9, 12])]
    list(lerobot.write(more, tmp_path / 'l'))
    grown = parquet.read_table(tmp_path / 'l/data/chunk-000/file-000.parquet')
    assert grown.num_rows == 5 + 6


def test_rates_must_agree(written):
    """Data sets whose pictures are further apart than others' are refused in one line."""
    datasets, out = written
    other = datasets[1]
    other.meta['recipe']['every'] = 3
    try:
        with pytest.raises(SimulationError, match='one rate'):
            list(lerobot.write(datasets, out / 'x'))
    finally:
        other.meta['recipe']['every'] = TASK.every
