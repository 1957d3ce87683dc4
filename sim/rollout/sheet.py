"""A contact sheet: how episodes ended, one row a task, successes and failures side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import SimulationError

_SIZE = 112  # pixels of one picture
_GREEN, _RED, _EMPTY = (46, 140, 76), (176, 48, 48), (40, 42, 46)


def save_end(
    folder: Path, environment: str, number: int, success: bool, frame: NDArray[np.uint8]
) -> None:
    """Keep the last picture of an episode, uint8 [H, W, 3], for `draw`."""
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    verdict = 'success' if success else 'failure'
    name = environment.split('/')[-1]
    Image.fromarray(frame).save(folder / f'{name}--{number:03d}--{verdict}.png')


def draw(folder: Path, path: Path, columns: int = 5, across: int = 2) -> int:
    """Draw all that `save_end` kept into one picture; returns the number of tasks.

    Args:
        folder: where they are.
        path: of the picture.
        columns: pictures of one task; at most two failures, and as many successes as fit.
        across: tasks beside each other.

    Raises:
        SimulationError: if there is nothing to draw.
    """
    from PIL import Image, ImageDraw, ImageFont

    ends: dict[str, list[Path]] = {}
    for file in sorted(folder.glob('*--*--*.png')):
        ends.setdefault(file.name.split('--')[0], []).append(file)
    if not ends:
        raise SimulationError(f'{folder} holds no pictures of ends of episodes')
    rows, wide = -(-len(ends) // across), columns * _SIZE + 190
    sheet = Image.new('RGB', (across * wide, rows * (_SIZE + 4)), _EMPTY)
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(14)
    for index, (name, files) in enumerate(ends.items()):
        left, top = (index // rows) * wide, (index % rows) * (_SIZE + 4)
        won = [file for file in files if file.stem.endswith('success')]
        lost = [file for file in files if file not in won]
        title = name.removeprefix('MT50-').removesuffix('-v0')
        pen.text((left + 8, top + 46), title, (235, 235, 235), font)
        for column, file in enumerate(_choose(won, lost, columns)):
            colour = _GREEN if file in won else _RED
            frame = Image.open(file).convert('RGB').resize((_SIZE - 8, _SIZE - 8))
            tile = Image.new('RGB', (_SIZE - 2, _SIZE - 2), colour)
            tile.paste(frame, (3, 3))
            sheet.paste(tile, (left + 190 + column * _SIZE, top + 2))
    path.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(path)
    return len(ends)


def _choose(won: Sequence[Path], lost: Sequence[Path], columns: int) -> list[Path]:
    """At most two failures, and successes in front of them."""
    failures = list(lost[: max(2, columns - len(won))])
    return [*won[: columns - len(failures)], *failures][:columns]
