"""Demonstrations: reproducible, resumable, read back as they were, labels true to the expert."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

pytest.importorskip('metaworld')

from flashrt_sim.data import demonstrations
from flashrt_sim.data.dataset import Episode, EpisodeDataset
from flashrt_sim.data.demonstrations import Recipe, generate, record
from flashrt_sim.errors import SimulationError
from flashrt_sim.seeds import demonstration_seed, evaluation_seed

SHORT = Recipe(segments=(2, 2), cut=1.0)  # every segment ends in mid-motion


def equal(one, other):
    """Whether two episodes are the same, array for array."""
    a, b = dataclasses.asdict(one), dataclasses.asdict(other)
    same = all(np.array_equal(a['pixels'][c], b['pixels'][c]) for c in a['pixels'])
    return same and all(np.array_equal(a[k], b[k]) for k in a if k != 'pixels')


@pytest.fixture(scope='module')
def episode(drawer):
    """One recorded episode."""
    return record(drawer, 3, SHORT)


def test_seed_decides_the_episode(drawer, episode):
    """Whatever was done before; another seed gives another episode (control)."""
    again = record(drawer, 3, SHORT)
    assert again is not None and equal(again, episode)
    other = record(drawer, 4, SHORT)
    assert other is not None and not equal(other, episode)


def test_what_is_recorded(drawer, episode):
    """Shapes and types of every field; labels are the clean actions, noise is in what was done."""
    ticks = len(episode)
    assert 16 < ticks <= 120
    for frames in episode.pixels.values():
        assert frames.shape == (ticks, 96, 96, 3) and frames.dtype == np.uint8
    assert episode.agent_pos.shape == (ticks, 4) and episode.agent_pos.dtype == np.float32
    assert episode.action.shape == episode.executed.shape == (ticks, 4)
    assert episode.segment_end.sum() == 2 and episode.segment_end[-1]
    change = np.flatnonzero(np.diff(episode.subgoal)) + 1
    assert (change - 1 == np.flatnonzero(episode.segment_end)[:-1]).all()
    assert (np.abs(episode.action) <= 1).all() and (np.abs(episode.executed) <= 1).all()
    quiet = ~episode.perturbed
    assert (episode.executed[quiet, 3] == episode.action[quiet, 3]).all()
    assert (episode.executed[:, :3] != episode.action[:, :3]).any()


def test_file_gives_back_the_episode(episode, tmp_path):
    """Saved and loaded it is the same; a damaged file is one line."""
    path = tmp_path / 'episode-000000.npz'
    episode.save(path)
    assert equal(Episode.load(path), episode)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(SimulationError, match='generate it again') as caught:
        Episode.load(path)
    assert '\n' not in str(caught.value)


def made_up(ticks, ends, pushed):
    """An episode whose action at tick t is t, gripper 1."""
    flags = np.zeros((2, ticks), bool)
    flags[0, ends], flags[1, pushed] = True, True
    action = np.repeat(np.arange(ticks, dtype=np.float32)[:, None], 4, 1)
    action[:, 3] = 1
    return Episode(
        pixels={},
        agent_pos=action,
        action=action,
        executed=action,
        subgoal=np.zeros(ticks, np.int8),
        achieved=flags[1],
        perturbed=flags[1],
        segment_end=flags[0],
        seen=np.arange(ticks, dtype=np.int32),
    )


def test_chunks_stop_where_labels_stop_being_true():
    """At a push and at the end of a segment; the rest is a hold that keeps the gripper."""
    actions, mask = made_up(10, ends=[5, 9], pushed=[2, 3]).chunks(4)
    assert mask.sum(1).tolist() == [2, 1, 0, 0, 2, 1, 4, 3, 2, 1]
    assert actions[0, :, 0].tolist() == [0, 1, 0, 0] and actions[6, :, 0].tolist() == [6, 7, 8, 9]
    assert (actions[..., 3] == 1).all()
    # Control: without the push the label goes on.
    _, whole = made_up(10, ends=[9], pushed=[]).chunks(4)
    assert whole[0].all() and whole[4].all()


def test_labels_are_the_experts(drawer):
    """Replaying what was executed, the expert says at every tick what was recorded."""
    episode = record(drawer, 5, SHORT)
    assert episode is not None
    rng = np.random.default_rng([5, 1])
    demonstrations.Disturbance(SHORT, rng)
    names = list(drawer.SUBGOALS)
    options = {'subgoal': str(rng.choice(names))}
    if rng.random() >= SHORT.standard_start:
        options['start'] = 'random'
    drawer.reset_physics(seed=5, options=options)
    for tick in range(len(episode)):
        expert = demonstrations.expert_for(names[episode.subgoal[tick]])
        assert (expert(drawer.simulator) == episode.action[tick]).all()
        drawer.step_physics(episode.executed[tick])


def test_generation_is_resumed(tmp_path):
    """What is there stays; other settings into the same folder are refused by name."""
    folder = tmp_path / 'data'
    first = dict(generate('flashrt/Drawer-v0', 1, folder, recipe=SHORT))
    written = (folder / 'episode-000000.npz').stat().st_mtime_ns
    second = dict(generate('flashrt/Drawer-v0', 2, folder, recipe=SHORT))
    assert first[0] > 0 and second[0] == 0 and second[1] > 0
    assert (folder / 'episode-000000.npz').stat().st_mtime_ns == written
    with pytest.raises(SimulationError, match='another recipe'):
        generate('flashrt/Drawer-v0', 2, folder)
    with pytest.raises(SimulationError, match='another seed'):
        generate('flashrt/Drawer-v0', 2, folder, recipe=SHORT, seed=1)
    dataset = EpisodeDataset(folder)
    assert len(dataset) == 2 and dataset.cameras == ('front', 'wrist')
    assert dataset.subgoals == ('open the drawer', 'close the drawer')
    assert dataset.wordings(1)[0] == 'close the drawer'
    assert not set(dataset.wordings(0)) & set(dataset.held_out(0))
    assert [len(episode) for episode in dataset] == [first[0], second[1]]


def test_wrong_input_is_refused_before_work(tmp_path):
    """Unknown environment, no episodes, no data set: one line each, no folder made."""
    with pytest.raises(SimulationError, match="did you mean 'flashrt/Drawer-v0'"):
        generate('flashrt/Drawer', 1, tmp_path / 'a')
    with pytest.raises(SimulationError, match='both start at 1'):
        generate('flashrt/Drawer-v0', 0, tmp_path / 'a')
    with pytest.raises(SimulationError, match='no data set'):
        EpisodeDataset(tmp_path / 'a')
    assert not (tmp_path / 'a').exists()


def test_evaluation_never_meets_a_demonstration():
    """The two ranges of seeds are apart, and out-of-range numbers are errors."""
    last, first = demonstration_seed(9_999, 99_999), evaluation_seed(0, 0)
    assert last + 9 * 100_000_000 < first  # spare seeds of failed attempts included
    for run, number in ((-1, 0), (10_000, 0), (0, 100_000)):
        with pytest.raises(SimulationError, match='out of range'):
            demonstration_seed(run, number)
