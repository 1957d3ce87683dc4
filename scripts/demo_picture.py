"""Make the README's picture from a run of the demo: frames of its video above its timeline.

Use: ``flashrt demo && python scripts/demo_picture.py runs/latest docs/pictures/demo.png``.
"""

import json
import sys
from pathlib import Path

import imageio.v3 as imageio
import matplotlib.image
import matplotlib.pyplot as plt

EVERY = 2  # ticks from one frame of the video to the next


def moments(summary: dict, frames: int) -> list[int]:
    """Return the numbers of five frames that tell the story."""
    interrupt = summary['interrupt']['tick']
    second = summary['second_episode']['ticks']
    start = frames - second // EVERY  # about where the second episode begins
    picks = (0.35 * interrupt, 0.62 * interrupt, interrupt + 6)
    return [int(tick / EVERY) for tick in picks] + [start - 10, start + int(0.3 * second / EVERY)]


def main(run: Path, target: Path) -> None:
    """Draw and write the picture."""
    summary = json.loads((run / 'summary.json').read_text())
    video = imageio.imread(run / 'video.mp4', plugin='FFMPEG')  # [N, H, W, 3]
    picks = moments(summary, len(video))
    figure = plt.figure(figsize=(15, 11.2), dpi=110, facecolor='white')
    for column, at in enumerate(picks):
        width = 0.92 / len(picks)
        axes = figure.add_axes((0.04 + column * width, 0.71, width * 0.97, 0.27))
        axes.imshow(video[at])
        axes.axis('off')
    axes = figure.add_axes((0.0, 0.0, 1.0, 0.7))
    axes.imshow(matplotlib.image.imread(run / 'timeline.png'))
    axes.axis('off')
    figure.savefig(target)


if __name__ == '__main__':
    main(Path(sys.argv[1]), Path(sys.argv[2]))
