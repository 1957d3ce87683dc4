"""One training run from recipe and words to an exported checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from flashrt_policies.hybrid_lm.text import FileTokenizer
from flashrt_policies.planner_lm.training import vocabulary
from flashrt_policies.planner_lm.training import words as wordings
from flashrt_policies.planner_lm.training.batches import Batch, Batches, stream
from flashrt_policies.planner_lm.training.examples import Examples
from flashrt_policies.planner_lm.training.measure import measure, summarise, temperature
from flashrt_policies.planner_lm.training.network import Network
from flashrt_policies.planner_lm.training.recipe import PlannerRecipe
from flashrt_policies.planner_lm.training.task import PlannerTask, fresh
from flashrt_policies.recipes import plain
from flashrt_policies.training.report import write_history
from flashrt_policies.training.run import device_name, exact
from flashrt_policies.training.trainer import Trainer

CALIBRATION = 2048  # held-out situations that the temperature is found on
_CALIBRATING, _CHECKING = 101, 1  # seeds of situations; `flashrt decide --check` has the second


def train(
    recipe: PlannerRecipe,
    words: Path,
    out: Path,
    device: str = 'cpu',
    resume: bool = False,
    until: int | None = None,
    tell: Callable[[str], None] | None = None,
    seconds: float | None = None,
    check: int = 0,
) -> dict[str, Any]:
    """Train, calibrate, export, and write the history and its picture.

    Args:
        recipe: every number of the run.
        words: the words file.
        out: gets ``checkpoint/``, ``history.json``, ``training.png``, ``state.safetensors``.
        device: torch device to train on.
        resume: continue from ``state.safetensors``.
        until: stop after this step (no export before the end).
        tell: called with each line for people.
        seconds: make the run as long as fits this time, whatever the recipe's steps.
        check: held-out situations on which the exported weights are measured; 0 = none. No other
            measurement of the run, and no calibration, takes more.

    Returns:
        The history that was written.
    """
    exact(torch.device(device))
    place = torch.device(device)
    known = wordings.load(words)
    trained, held_out = Examples(known, recipe.seed), Examples(known, recipe.seed, held_out=True)
    tokenizer = vocabulary.build(trained, recipe.model.vocabulary)
    task = PlannerTask(recipe, trained, held_out, tokenizer, place, check)
    decided = {**plain(recipe), 'tokens': vocabulary.digest(tokenizer)}
    trainer = Trainer(task, recipe.train, decided, out, place, tell)
    if resume:
        trainer.resume()
    trainer.run(until, seconds)
    history = {
        'recipe': plain(recipe),
        'words': known.digest,
        'parameters': sum(tensor.numel() for tensor in task.network.exported().values()),
        'device': device_name(device),
        'torch': torch.__version__,
        'skills': len(known.skills),
        'ways': sum(len(skill.ways) for skill in known.skills.values()),
        'ways_held_out': sum(len(skill.held_out) for skill in known.skills.values()),
        'steps': trainer.done,
        'situations': trainer.done * recipe.train.batch,
        'seconds': round(trainer.seconds, 1),
        'losses': trainer.losses,
        'validations': trainer.validations,
    }
    if trainer.done == trainer.steps:
        average = trainer.average
        assert isinstance(average, Network)
        count = min(CALIBRATION, task.measured)
        trainer.tell(f'calibrating on {count} held-out situations')
        some = _held_out(known, _CALIBRATING, recipe, tokenizer, count)
        history['temperature'] = calibrate(average, some, place)
        export(out / 'checkpoint', average, recipe)
        vocabulary.save(tokenizer, out / 'checkpoint')
        if check:
            trainer.tell(f'measuring on {check} held-out situations')
            rounded = reopened(out / 'checkpoint', recipe).to(place)
            some = _held_out(known, _CHECKING, recipe, tokenizer, check)
            history['check'] = summarise(measure(rounded, some, place))
    write_history(out / 'history.json', history)
    draw(out / 'training.png', trainer.losses, trainer.validations)
    return history


def calibrate(network: Network, batches: Iterable[Batch], device: torch.device) -> float:
    """Divide a network's logits by the temperature that suits; return it.

    It becomes part of the weights: the last norm's scale, which is what the logits are linear in.
    """
    found = temperature(network, batches, device)
    scale = network.model.norm.weight  # stored around zero
    with torch.no_grad():
        scale.copy_((1 + scale) / found - 1)
    return found


def _held_out(
    words: wordings.Words,
    seed: int,
    recipe: PlannerRecipe,
    tokenizer: FileTokenizer,
    count: int,
) -> Iterator[Batch]:
    size = min(recipe.train.batch, 128)
    batches = Batches(Examples(words, seed, held_out=True), size, tokenizer)
    return islice(stream(batches, 0, recipe.train.workers), -(-count // size))


def export(folder: Path, network: Network, recipe: PlannerRecipe) -> None:
    """Write config and weights for `hybrid_lm`: matrices in the recipe's type, others float32."""
    kind = getattr(torch, recipe.dtype)
    tensors: dict[str, Tensor] = {}
    for name, tensor in network.exported().items():
        wide = tensor.detach().cpu().float()
        tensors[name] = (wide.to(kind) if wide.ndim > 1 else wide).contiguous()
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / 'model.safetensors')
    (folder / 'model.safetensors').chmod(0o644)
    config = json.dumps(recipe.architecture(), indent=2)
    (folder / 'config.json').write_text(config + '\n', 'utf-8')


def reopened(folder: Path, recipe: PlannerRecipe) -> Network:
    """Return the network of an exported checkpoint, rounded as it is there."""
    network = fresh(recipe)
    stored = load_file(folder / 'model.safetensors')
    network.load_state_dict({k: v.float() for k, v in stored.items()}, strict=False)
    return network.eval().requires_grad_(False)


def draw(path: Path, losses: list[dict[str, float]], validations: list[dict[str, Any]]) -> None:
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
        points = [(m['step'], max(1 - m[name]['right'], 1e-4)) for m in validations if name in m]
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
