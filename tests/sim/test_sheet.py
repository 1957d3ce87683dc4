"""The contact sheet: every task is on it, successes green, failures red."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from flashrt_sim.errors import SimulationError
from flashrt_sim.rollout import sheet


def test_a_sheet_shows_successes_and_failures(tmp_path):
    """Two tasks beside each other; green and red frames where there are such ends."""
    frame = np.full((64, 64, 3), 200, np.uint8)
    for number, success in enumerate((True, True, False)):
        sheet.save_end(tmp_path / 'ends', 'flashrt/MT50-push-v0', number, success, frame)
    sheet.save_end(tmp_path / 'ends', 'flashrt/MT50-reach-v0', 0, True, frame)
    assert sheet.draw(tmp_path / 'ends', tmp_path / 'sheet.png') == 2
    picture = np.asarray(Image.open(tmp_path / 'sheet.png'))
    half = picture.shape[1] // 2

    def shown(side, colour):
        return bool((side == np.array(colour, np.uint8)).all(-1).any())

    assert shown(picture[:, :half], sheet._GREEN) and shown(picture[:, :half], sheet._RED)
    assert shown(picture[:, half:], sheet._GREEN) and not shown(picture[:, half:], sheet._RED)


def test_nothing_to_show(tmp_path):
    """One line, no file."""
    with pytest.raises(SimulationError, match='no pictures'):
        sheet.draw(tmp_path, tmp_path / 'sheet.png')
    assert not list(tmp_path.iterdir())
