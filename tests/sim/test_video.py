"""Videos: every frame is written, with its caption, and the scene is left as it was."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip('metaworld')
pytest.importorskip('imageio_ffmpeg')

import imageio_ffmpeg

from flashrt_sim.errors import SimulationError
from flashrt_sim.rollout.video import Shot, caption, draw, write_video


def test_caption_is_a_bar_below():
    """The picture is untouched; text and mood change the bar, a long text is cut."""
    frame = np.full((40, 200, 3), 7, np.uint8)
    plain = caption(frame, 'open the drawer', 'tick 3')
    assert plain.shape == (72, 200, 3) and (plain[:40] == frame).all()
    assert (plain[40:] != caption(frame, 'close the drawer', 'tick 3')[40:]).any()
    assert (plain[40:] != caption(frame, 'open the drawer', 'tick 3', 'good')[40:]).any()
    assert caption(frame, 'word ' * 100, 'tick 3').shape == plain.shape
    with pytest.raises(SimulationError, match='mood'):
        caption(frame, '', mood='sad')


def test_states_become_a_video(drawer, tmp_path):
    """As many frames as states, of the right size, showing different things."""
    drawer.reset_physics(seed=2, options={'start': 'closed'})
    shots = []
    for tick in range(3):
        drawer.step_physics(np.array([1, 0, 1, 0], np.float32))
        shots.append(Shot(drawer.get_state(), 'open the drawer', f'tick {tick}'))
    before = drawer.get_state()
    path = tmp_path / 'deep' / 'video.mp4'
    assert write_video(path, draw(drawer, shots, size=64)) == 3
    assert (drawer.get_state() == before).all()
    reader = imageio_ffmpeg.read_frames(str(path))
    meta = next(reader)
    frames = list(reader)
    assert meta['size'] == (64, 96) and len(frames) == 3
    assert frames[0] != frames[2]


def test_no_frames_or_frames_of_two_sizes(tmp_path):
    """One line each."""
    with pytest.raises(SimulationError, match='no frame'):
        write_video(tmp_path / 'a.mp4', [])
    frames = [np.zeros((32, 32, 3), np.uint8), np.zeros((32, 48, 3), np.uint8)]
    with pytest.raises(SimulationError, match='frame 1 has shape'):
        write_video(tmp_path / 'a.mp4', frames)
