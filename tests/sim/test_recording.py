"""Recorded rollouts: what the policy saw and did, told in the words it was really told."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip('metaworld')
pytest.importorskip('torch')
pytest.importorskip('pyarrow')

from pyarrow import parquet

from flashrt_ros import cli
from flashrt_sim.data.dataset import EpisodeDataset, open_all
from flashrt_sim.data.recording import EVERY, EpisodeRecorder, slug
from flashrt_sim.episode import LiveEpisode
from flashrt_sim.errors import SimulationError
from flashrt_sim.rollout.evaluation import Goal, Task
from flashrt_sim.rollout.play import begin, play, run_episode

DRAWER, OPEN, CLOSE = 'flashrt/Drawer-v0', 'open the drawer', 'close the drawer'
# An interrupt asks for the second goal whatever became of the first: both are in the record.
TASK = Task(DRAWER, (Goal(OPEN, 'draw it out'), Goal(CLOSE, CLOSE)), limit=9, interrupt=(5, 8))


@pytest.fixture(scope='module')
def live(tiny_policy):
    """An episode with the tiny policy."""
    episode = LiveEpisode.open(DRAWER, tiny_policy)
    yield episode
    episode.close()


def test_every_tick_is_recorded_as_it_was(live, tmp_path):
    """Pictures and state before each action, the action itself, the goal, what was achieved."""
    expected = []

    def see(live, moment=None):
        if moment is not None:
            expected[-1] |= {'action': moment.command.action, 'info': moment.info}
        seen, achieved = live.scene.render_observation(), live.scene.achieved()
        expected.append({'seen': seen, 'achieved': achieved})

    begin(live, TASK, 5)
    see(live)
    plain = play(live, TASK, 0, 5, see)
    begin(live, TASK, 5)
    recorder = EpisodeRecorder(TASK)
    recorder.begin(live)
    assert play(live, TASK, 0, 5, recorder.watch) == plain, 'a record changes nothing'
    path = recorder.save(tmp_path, 4, {'policy': 'tiny'})
    assert path == tmp_path / slug(TASK) / 'episode-000004.npz'
    episode = EpisodeDataset(path.parent)[0]
    assert len(episode) == plain.ticks == len(expected) - 1
    for tick, row in enumerate(expected[:-1]):
        assert np.array_equal(episode.agent_pos[tick], row['seen']['agent_pos'])
        assert np.array_equal(episode.action[tick], row['action'])
        goal = TASK.goals[episode.subgoal[tick]]
        assert goal.subgoal == row['info']['subgoal']
        assert episode.achieved[tick] == row['achieved'][goal.subgoal]
    for camera, frames in episode.pixels.items():
        for tick, frame in zip(episode.seen, frames, strict=True):
            assert np.array_equal(frame, expected[tick]['seen']['pixels'][camera])
    ends = np.flatnonzero(episode.segment_end)
    assert list(ends) == [plain.ticks - plain.stages[0].ticks - 1, plain.ticks - 1]
    assert (np.diff(episode.seen) == EVERY).all() and not episode.perturbed.any()


def test_another_policy_does_not_join_a_record(live, tmp_path):
    """A folder holds one policy's episodes; the error names what differs."""
    recorder = EpisodeRecorder(TASK)
    begin(live, TASK, 5)
    recorder.begin(live)
    play(live, TASK, 0, 5, recorder.watch)
    recorder.save(tmp_path, 0, {'policy': 'one'})
    with pytest.raises(SimulationError, match='another recipe'):
        recorder.save(tmp_path, 1, {'policy': 'other'})


@pytest.mark.slow
def test_the_command_writes_data_sets_and_the_lerobot_layout(live, tiny_policy, tmp_path):
    """One data set a task; in the layout its rows stand under the words that were told."""
    code = cli.main([
        'rollout', '--subgoal', 'draw the drawer out', '--subgoal', CLOSE, '--episodes', '2',
        '--limit', '10', '--policy', str(tiny_policy), '--workers', '1',
        '--record', str(tmp_path),
    ])  # fmt: skip
    assert code == 0
    assert [len(dataset) for dataset in open_all(tmp_path)] == [2, 2]
    out = tmp_path / 'lerobot'
    info = json.loads((out / 'meta/info.json').read_text())
    assert info['total_episodes'] == 4 and info['total_tasks'] == 2 and info['fps'] == 10
    tasks = parquet.read_table(out / 'meta/tasks.parquet').to_pylist()
    told = {row['task_index']: row['task'] for row in tasks}
    assert set(told.values()) == {'draw the drawer out', CLOSE}
    close = Task(DRAWER, (Goal(CLOSE, CLOSE),), limit=10)
    result = run_episode(live, close, 0, 2_000_000_000)
    (dataset,) = (d for d in open_all(tmp_path) if d.folder.name == slug(close))
    assert len(dataset[0]) == result.ticks
