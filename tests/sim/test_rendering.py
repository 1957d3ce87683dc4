"""Frames: the same bits again and again, from any thread, and nothing left out that is seen."""

from __future__ import annotations

import threading

import numpy as np
import pytest

pytest.importorskip('metaworld')

from flashrt_sim.envs.rendering import Camera, FrameRenderer
from flashrt_sim.errors import SimulationError

CAMERAS = (
    Camera(lookat=(0.0, 0.66, 0.14), distance=1.05, azimuth=150.0, elevation=-32.0),
    Camera('gripperPOV'),
    Camera('corner2', rotated=True),
)


def differences(simulator, one, other, steps=16):
    """Pixels in which two renderers disagree while the arm moves about."""
    rng, found = np.random.default_rng(0), 0
    for step in range(steps):
        swing = np.sin(step / 3) * np.array([1.0, 0.5, -1.0, 0.0])
        simulator.step(np.clip(rng.normal(0, 1, 4) + swing, -1, 1))
        for camera in CAMERAS:
            frames = one.frame(simulator.data, camera), other.frame(simulator.data, camera)
            found += int((frames[0] != frames[1]).sum())
    return found


def test_leaving_out_what_is_not_seen_changes_no_pixel(drawer, monkeypatch):
    """Culled and whole frames are the same bits; with boxes too small they are not (control)."""
    drawer.reset_physics(seed=0)
    simulator = drawer.simulator
    whole = FrameRenderer(simulator.model, 48, 48, cull=False)
    culled = FrameRenderer(simulator.model, 48, 48)
    try:
        assert differences(simulator, whole, culled) == 0
        groups = simulator.model.geom_group.copy()
        hidden = culled._outside
        monkeypatch.setattr(culled, '_outside', lambda data: hidden(data) | (groups == 1))
        assert differences(simulator, whole, culled, steps=2) > 0
        assert (simulator.model.geom_group == groups).all()
    finally:
        whole.close()
        culled.close()


def test_same_bits_from_another_thread_and_after_closing(drawer):
    """A frame depends on the state alone."""
    drawer.reset_physics(seed=1)
    first = drawer.render_observation()['pixels']
    others = []
    thread = threading.Thread(target=lambda: others.append(drawer.render_observation()['pixels']))
    thread.start()
    thread.join()
    drawer._frames.close()
    others.append(drawer.render_observation()['pixels'])
    for other in others:
        for name, frame in first.items():
            assert (other[name] == frame).all()


def test_frames_follow_the_scene(drawer):
    """An open drawer looks unlike a closed one, from both cameras (control of the above)."""
    drawer.reset_physics(seed=1, options={'start': 'closed'})
    closed = drawer.render_observation()['pixels']
    drawer.reset_physics(seed=1, options={'start': 'open'})
    for name, frame in drawer.render_observation()['pixels'].items():
        changed = (np.abs(frame.astype(int) - closed[name]).max(-1) > 24).mean()
        assert changed > 0.02


def test_pictures_stand_upright(drawer):
    """The floor's horizon is above and the table below: the top rows are the darker ones."""
    drawer.reset_physics(seed=1)
    frame = drawer.render_observation()['pixels']['front'].astype(float)
    black = (frame.sum(-1) == 0).mean(1)  # [96]: share of background in each row
    assert black[:5].mean() > 0.3 and black[-48:].max() == 0


def test_unknown_camera(drawer):
    """A camera that the model does not have is one line."""
    renderer = FrameRenderer(drawer.simulator.model, 8, 8)
    with pytest.raises(SimulationError, match="no camera 'cornr'"):
        renderer.frame(drawer.simulator.data, Camera('cornr'))
    renderer.close()
