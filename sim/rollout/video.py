"""Videos for people: frames with a caption bar, written as mp4.

States are recorded while an episode runs (a few kB a tick) and drawn afterwards, so that a video
costs the running episode nothing.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import SimulationError

if TYPE_CHECKING:
    from ..envs.scene import SceneEnv

_BAR = 32  # pixels of the caption bar
_COLOURS = {'': (32, 34, 38), 'good': (28, 92, 48), 'bad': (128, 32, 32), 'busy': (120, 84, 16)}


@dataclass(frozen=True)
class Shot:
    """One frame to draw: a state of the scene and what stands below it.

    Attributes:
        state: from `SceneEnv.get_state`.
        left: caption at the left, for example the subgoal.
        right: caption at the right, for example the tick.
        mood: colour of the bar: '', 'good', 'bad' or 'busy'.
    """

    state: NDArray[np.uint8]
    left: str = ''
    right: str = ''
    mood: str = ''


def caption(
    frame: NDArray[np.uint8], left: str, right: str = '', mood: str = ''
) -> NDArray[np.uint8]:
    """Put a bar with two texts below `frame`; [H, W, 3] -> [H + 32, W, 3].

    Raises:
        SimulationError: for an unknown mood.
    """
    from PIL import Image, ImageDraw, ImageFont

    if mood not in _COLOURS:
        raise SimulationError(f'unknown mood {mood!r}; expected one of {sorted(_COLOURS)}')
    height, width = frame.shape[:2]
    bar = Image.new('RGB', (width, _BAR), _COLOURS[mood])
    draw = ImageDraw.Draw(bar)
    font = ImageFont.load_default(15)
    room = width - 24 - draw.textlength(right, font)
    while left and draw.textlength(left, font) > room:
        left = left[:-2].rstrip() + '…' if len(left) > 2 else ''
    draw.text((8, _BAR / 2), left, (235, 235, 235), font, 'lm')
    draw.text((width - 8, _BAR / 2), right, (235, 235, 235), font, 'rm')
    return np.concatenate([frame, np.asarray(bar)])


def draw(scene: SceneEnv, shots: Iterable[Shot], size: int = 480) -> Iterator[NDArray[np.uint8]]:
    """Draw each shot at `size` by `size` pixels, caption below; `scene` ends as it began."""
    kept = scene.get_state()
    try:
        for shot in shots:
            scene.set_state(shot.state)
            yield caption(scene.picture(size, size), shot.left, shot.right, shot.mood)
    finally:
        scene.set_state(kept)


def write_video(path: str | Path, frames: Iterable[NDArray[np.uint8]], fps: int = 20) -> int:
    """Write frames [H, W, 3] of one size as H.264 mp4; returns their number.

    Raises:
        SimulationError: if there is no frame, or they differ in size.
    """
    imageio_ffmpeg: Any = importlib.import_module('imageio_ffmpeg')  # it has no types
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    writer, shape, count = None, None, 0
    try:
        for frame in frames:
            # H.264 takes even sizes only.
            frame = np.ascontiguousarray(frame[: frame.shape[0] & ~1, : frame.shape[1] & ~1])
            if writer is None:
                shape = frame.shape
                writer = imageio_ffmpeg.write_frames(
                    str(path), (shape[1], shape[0]), fps=fps, quality=8, macro_block_size=1,
                    ffmpeg_log_level='error',
                )  # fmt: skip
                writer.send(None)
            if frame.shape != shape:
                raise SimulationError(f'frame {count} has shape {frame.shape}; expected {shape}')
            writer.send(frame.tobytes())
            count += 1
    finally:
        if writer is not None:
            writer.close()
    if count == 0:
        raise SimulationError(f'no frame to write into {path}')
    return count


def render_states(
    environment: str, shots: Sequence[Shot], path: str | Path, *, size: int = 480, fps: int = 20
) -> int:
    """Draw recorded states in a scene of their own and write them as mp4."""
    from ..envs.make import make_scene

    scene = make_scene(environment)
    try:
        return write_video(path, draw(scene, shots, size), fps)
    finally:
        scene.close()


class Recorder:
    """Collects one shot a tick while an episode runs."""

    def __init__(self) -> None:
        self.shots: list[Shot] = []

    def watch(self, live: Any, moment: Any) -> None:
        """Record what came out of `moment`; fits `run_episode`."""
        info, command = moment.info, moment.command
        mood = 'good' if info['is_success'] else 'busy' if command.held else ''
        state = 'done' if info['is_success'] else 'hold' if command.held else 'moving'
        self.shots.append(
            Shot(live.scene.get_state(), info['subgoal'], f'{state}  tick {moment.tick}', mood)
        )

    def write(self, path: Path, scene: SceneEnv, size: int = 480, fps: int = 20) -> int:
        """Draw what was recorded in `scene`, which is left as it was."""
        return write_video(path, draw(scene, self.shots, size), fps)
