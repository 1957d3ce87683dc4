"""What a training run leaves for people: history as JSON, loss curve as a picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def write_history(path: Path, history: dict[str, Any]) -> None:
    """Write the history of a run as JSON."""
    path.write_text(json.dumps(history, indent=1) + '\n', 'utf-8')


def draw(path: Path, losses: list[dict[str, float]], validations: list[dict[str, float]]) -> None:
    """Draw loss and validation errors over the steps into a PNG."""
    import matplotlib

    matplotlib.use('Agg')
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), layout='constrained')
    left.semilogy([entry['step'] for entry in losses], [entry['loss'] for entry in losses])
    left.set(xlabel='optimiser step', ylabel='flow-matching loss', title='training')
    names = {'right': 'right words', 'wrong': 'wrong words', 'held_out': 'unseen words'}
    for name, label in names.items():
        points = [(entry['step'], entry[name]) for entry in validations if name in entry]
        if points:
            right.plot(*zip(*points, strict=True), marker='o', label=label)
    right.set(xlabel='optimiser step', ylabel='mean absolute error of executed actions')
    right.set(title='episodes kept out of training', ylim=(0, None))
    if right.lines:
        right.legend()
    for axis in (left, right):
        axis.grid(alpha=0.3)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
