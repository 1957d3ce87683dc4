"""One training run from recipe and demonstrations to an exported checkpoint."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from flashrt_policies.base import PolicySpec
from flashrt_policies.flow_vla.advantage import GOOD, UNSAID, settled
from flashrt_policies.flow_vla.model import FlowVLA
from flashrt_policies.flow_vla.policy import export
from flashrt_policies.recipes import plain
from flashrt_policies.training import report
from flashrt_policies.training.data import Demonstrations, Frames
from flashrt_policies.training.flow import FlowTask, fresh
from flashrt_policies.training.recipe import Recipe
from flashrt_policies.training.trainer import Trainer
from flashrt_policies.training.validate import ambiguity


def spec_of(
    data: Demonstrations, horizon: int, low: tuple[float, ...], high: tuple[float, ...]
) -> PolicySpec:
    """Return the specification of a policy for these demonstrations and action limits."""
    image = next(iter(data.images.values())).shape
    return PolicySpec(
        cameras=tuple(data.images),
        image_hw=(int(image[1]), int(image[2])),
        proprio_dim=int(data.proprio.shape[1]),
        action_dim=int(data.actions.shape[1]),
        horizon=horizon,
        subgoal_length=int(data.wordings[0].shape[1]),
        action_low=low,
        action_high=high,
        skills=tuple(dict.fromkeys(data.skills)),
    )


def train(
    recipe: Recipe,
    data: Demonstrations,
    low: tuple[float, ...],
    high: tuple[float, ...],
    out: Path,
    device: str = 'cpu',
    resume: bool = False,
    until: int | None = None,
    tell: Callable[[str], None] | None = None,
    seconds: float | None = None,
    start: FlowVLA | None = None,
) -> dict[str, Any]:
    """Train, export, and write the history and its picture.

    Args:
        recipe: every number of the run.
        data: demonstrations.
        low: lowest value of each action component.
        high: highest value of each action component.
        out: gets ``checkpoint/`` (and ``unsaid/``, where chunks are said to be good or bad),
            ``history.json``, ``training.png``, ``state.safetensors``.
        device: torch device to train on.
        resume: continue from ``state.safetensors``.
        until: stop after this step (no export before the recipe's end).
        tell: called with each line for people.
        seconds: make the run as long as fits this time, whatever the recipe's steps.
        start: network to go on from, sizes and statistics as it has them; a new one if left out.

    Returns:
        The history that was written.
    """
    exact(torch.device(device))
    data.check()
    spec = start.spec if start else spec_of(data, recipe.horizon, low, high)
    validation = recipe.train.validation
    frames = Frames(
        data,
        spec.cameras,
        recipe.horizon,
        torch.device(device),
        validation,
        recipe.seed,
        recipe.train.balance,
    )
    task = FlowTask(recipe, frames, start or fresh(recipe, spec, frames))
    trainer = Trainer(task, recipe.train, plain(recipe), out, frames.device, tell)
    if resume:
        trainer.resume()
    trainer.run(until, seconds)
    history = {
        'recipe': plain(recipe),
        'parameters': sum(parameter.numel() for parameter in task.network.parameters()),
        'device': device_name(device),
        'torch': torch.__version__,
        'frames': len(data),
        'episodes': int(len(set(data.episode.tolist()))),
        'frames_per_skill': _per_skill(data.skills, frames.counts.tolist()),
        'ambiguous_without_text': round(ambiguity(frames), 4),
        'steps': trainer.done,
        'seconds': round(trainer.seconds, 1),
        'losses': trainer.losses,
        'validations': trainer.validations,
    }
    report.write_history(out / 'history.json', history)
    report.draw(out / 'training.png', trainer.losses, trainer.validations)
    if trainer.done == trainer.steps:
        assert isinstance(trainer.average, FlowVLA)
        if trainer.average.expert.advantage is not None:
            export(out / 'unsaid', settled(trainer.average, UNSAID), recipe.dtype)
        export(out / 'checkpoint', settled(trainer.average, GOOD), recipe.dtype)
    return history


def _per_skill(skills: Sequence[str], counts: Sequence[int]) -> dict[str, int]:
    """Frames of each instruction; some are learned in more than one scene."""
    found: dict[str, int] = {}
    for skill, count in zip(skills, counts, strict=True):
        found[skill] = found.get(skill, 0) + count
    return found


def exact(device: torch.device) -> None:
    """Make this process's GPU work repeatable bit for bit, where torch can."""
    if device.type == 'cuda':
        os.environ.setdefault('CUBLAS_WORKSPACE_CONFIG', ':4096:8')
        torch.backends.cudnn.benchmark = False
        torch.backends.cuda.enable_cudnn_sdp(False)  # its backward adds up in any order
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def device_name(device: str) -> str:
    """Return the device's name as people know it."""
    return torch.cuda.get_device_name(device) if device.startswith('cuda') else device
