"""The pictures of a report: the timeline, the latencies, a film strip, and the film itself."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from flashrt_ros.nodes.demo.timeline import HELD, INK, MISSED, PAPER, Timeline
from flashrt_ros.nodes.report.read import Recording

STRIP = 10  # pictures of a camera in the film strip
SIDE = 160  # their height in pixels
FILM_HZ = 10.0  # a film shows as many pictures a second, at the speed of life


class ReportTimeline(Timeline):
    """The demo's timeline, with the holds of the gate where the demo compares two episodes."""

    def _replay(self) -> None:
        axis = self._lane(4, 'gate')
        held = [at - self.zero for at, m in self.told.record.sent if m.held]
        passed = [at - self.zero for at, m in self.told.record.sent if not m.held]
        axis.vlines(passed, 0.55, 0.85, color='#3d8361', lw=0.7)
        axis.vlines(held, 0.15, 0.45, color=HELD, lw=0.9)
        axis.text(self.end, 0.28, 'held', ha='right', va='center', fontsize=7, color='#52606d')

    def _heading(self) -> None:
        self.figure.subplots_adjust(top=0.95)


def timeline(told: Any, summary: dict[str, Any]) -> bytes:
    """Return the timeline as PNG."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / 'timeline.png'
        ReportTimeline(told, summary).save(path)
        return path.read_bytes()


def latencies(recording: Recording) -> bytes:
    """Return histograms of inference time and of the time between ticks, as PNG."""
    from matplotlib import pyplot

    record = recording.record
    inference = [m.inference_ms for _, m in record.chunks]
    stamps = np.array(
        [m.header.stamp.sec + m.header.stamp.nanosec * 1e-9 for _, m in record.states]
    )
    gaps = np.diff(stamps) * 1e3
    figure, axes = pyplot.subplots(1, 2, figsize=(14, 2.6), facecolor=PAPER)
    for axis, values, name, colour in (
        (axes[0], inference, 'inference, observation in to chunk out (ms)', INK),
        (axes[1], gaps[gaps < 10 * np.median(gaps)], 'time between two ticks (ms)', '#2f6f9f'),
    ):
        if len(values):
            axis.hist(values, bins=40, color=colour)
            for percent, style in ((50, '-'), (99, ':')):
                axis.axvline(np.percentile(values, percent), color=MISSED, ls=style, lw=1.2)
        axis.set_title(f'{name}; lines: median, p99', fontsize=9, loc='left')
        axis.spines[['top', 'right']].set_visible(False)
        axis.set_yscale('log')
    figure.tight_layout()
    data = io.BytesIO()
    figure.savefig(data, dpi=110, facecolor=PAPER)
    pyplot.close(figure)
    return data.getvalue()


def strip(frames: list[tuple[float, np.ndarray]]) -> bytes:
    """Return pictures of one camera, evenly spaced in time, side by side, as PNG."""
    from PIL import Image

    chosen = [
        frames[i][1] for i in np.linspace(0, len(frames) - 1, min(STRIP, len(frames))).astype(int)
    ]
    tiles = [
        Image.fromarray(p).resize(
            (round(SIDE * p.shape[1] / p.shape[0]), SIDE), Image.Resampling.NEAREST
        )
        for p in chosen
    ]
    whole = Image.new('RGB', (sum(t.width + 2 for t in tiles) - 2, SIDE), PAPER)
    left = 0
    for tile in tiles:
        whole.paste(tile, (left, 0))
        left += tile.width + 2
    data = io.BytesIO()
    whole.save(data, 'PNG', optimize=True)
    return data.getvalue()


def film(recording: Recording) -> bytes:
    """Return what all cameras saw, side by side, as WebM (VP9); empty where nothing was seen.

    Every picture stands until its camera sent the next one.
    """
    import imageio.v2 as imageio

    cameras = {name: frames for name, frames in recording.images.items() if frames}
    if not cameras:
        return b''
    begin = min(frames[0][0] for frames in cameras.values())
    end = max(frames[-1][0] for frames in cameras.values())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / 'film.webm'
        options = ['-crf', '34', '-b:v', '0', '-deadline', 'realtime', '-cpu-used', '8']
        writer: Any = imageio.get_writer(
            path, fps=FILM_HZ, codec='libvpx-vp9', output_params=options, macro_block_size=2,
            ffmpeg_log_level='error',
        )  # fmt: skip
        with writer:
            for at in np.arange(begin, end + 1.0 / FILM_HZ, 1.0 / FILM_HZ):
                writer.append_data(_side_by_side([_seen(f, at) for f in cameras.values()]))
        return path.read_bytes()


def _seen(frames: list[tuple[float, np.ndarray]], at: float) -> np.ndarray:
    before = [pixels for when, pixels in frames if when <= at]
    return before[-1] if before else frames[0][1]


def _side_by_side(pictures: list[np.ndarray]) -> np.ndarray:
    """Return pictures of any sizes in one row, uint8 [2 SIDE, W, 3] with even sides."""
    from PIL import Image

    height = 2 * SIDE
    tiles = []
    for picture in pictures:
        width = round(height * picture.shape[1] / picture.shape[0] / 2) * 2
        tiles.append(
            np.asarray(Image.fromarray(picture).resize((width, height), Image.Resampling.NEAREST))
        )
    return np.concatenate(tiles, axis=1)
