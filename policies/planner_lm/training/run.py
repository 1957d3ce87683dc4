"""One training run from recipe and words to an exported checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from flashrt_policies.planner_lm.training import words as vocabulary
from flashrt_policies.planner_lm.training.examples import Examples
from flashrt_policies.planner_lm.training.loop import PlannerTrainer
from flashrt_policies.planner_lm.training.network import Network
from flashrt_policies.planner_lm.training.recipe import PlannerRecipe, plain
from flashrt_policies.training.report import write_history
from flashrt_policies.training.run import device_name, exact


def train(
    recipe: PlannerRecipe,
    words: Path,
    out: Path,
    device: str = 'cpu',
    resume: bool = False,
    until: int | None = None,
    tell: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Train, export, and write the history and its picture.

    Args:
        recipe: every number of the run.
        words: the words file.
        out: gets ``checkpoint/``, ``history.json``, ``training.png``, ``state.safetensors``.
        device: torch device to train on.
        resume: continue from ``state.safetensors``.
        until: stop after this step (no export before the recipe's end).
        tell: called with each line for people.

    Returns:
        The history that was written.
    """
    exact(torch.device(device))
    known = vocabulary.load(words)
    trained, held_out = Examples(known, recipe.seed), Examples(known, recipe.seed, held_out=True)
    trainer = PlannerTrainer(recipe, trained, held_out, out, torch.device(device), tell)
    if resume:
        trainer.resume()
    trainer.run(until)
    history = {
        'recipe': plain(recipe),
        'words': known.digest,
        'parameters': sum(parameter.numel() for parameter in trainer.network.parameters()),
        'device': device_name(device),
        'torch': torch.__version__,
        'skills': len(known.skills),
        'ways': sum(len(skill.ways) for skill in known.skills.values()),
        'ways_held_out': sum(len(skill.held_out) for skill in known.skills.values()),
        'steps': trainer.done,
        'situations': trainer.done * recipe.train.batch,
        'seconds': round(trainer.seconds, 1),
        'losses': trainer.losses,
        'measures': trainer.measures,
    }
    write_history(out / 'history.json', history)
    draw(out / 'training.png', trainer.losses, trainer.measures)
    if trainer.done == recipe.train.steps:
        export(out / 'checkpoint', trainer.average, recipe)
    return history


def export(folder: Path, network: Network, recipe: PlannerRecipe) -> None:
    """Write a checkpoint for `hybrid_lm`: matrices in the recipe's type, the rest float32."""
    kind = getattr(torch, recipe.dtype)
    tensors: dict[str, Tensor] = {}
    for name, tensor in network.state_dict().items():
        wide = tensor.detach().cpu().float()
        tensors[name] = (wide.to(kind) if wide.ndim > 1 else wide).contiguous()
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / 'model.safetensors')
    (folder / 'model.safetensors').chmod(0o644)
    config = json.dumps(recipe.architecture(), indent=2)
    (folder / 'config.json').write_text(config + '\n', 'utf-8')


def draw(path: Path, losses: list[dict[str, float]], measures: list[dict[str, Any]]) -> None:
    """Draw the loss, and the share of wrong answers on held-out situations, into a PNG."""
    try:
        import matplotlib
    except ImportError:  # a machine for training alone need not have it; the history has it all
        return
    matplotlib.use('Agg')
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), layout='constrained')
    left.semilogy([entry['step'] for entry in losses], [entry['loss'] for entry in losses])
    left.set(xlabel='optimiser step', ylabel='loss', title='training')
    names = {'next': 'what comes next', 'cannot': 'what the scene lacks', 'done': 'is it done',
             'safe': 'is it safe', 'stop': 'must it stop'}  # fmt: skip
    for name, label in names.items():
        points = [(m['step'], max(1 - m[name]['right'], 1e-4)) for m in measures if name in m]
        if points:
            right.semilogy(*zip(*points, strict=True), marker='o', label=label)
    right.set(xlabel='optimiser step', ylabel='share of wrong answers')
    right.set(title='situations and wordings never trained')
    if right.lines:
        right.legend()
    for axis in (left, right):
        axis.grid(alpha=0.3)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
