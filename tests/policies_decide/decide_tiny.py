"""A tiny byte-level checkpoint with random weights, as the planner's training exports it."""

from __future__ import annotations

from pathlib import Path

import torch

from flashrt_policies.hybrid_lm.config import parse_config
from flashrt_policies.planner_lm.training.marks import CLASSES
from flashrt_policies.planner_lm.training.network import Network
from flashrt_policies.planner_lm.training.recipe import PlannerRecipe, parse
from flashrt_policies.planner_lm.training.run import export

SIZES = {
    'vocabulary': 256, 'hidden': 32, 'intermediate': 48, 'layers': ['linear', 'full'], 'heads': 2,
    'kv_heads': 1, 'head_dim': 16, 'lin_heads': 2, 'lin_dim': 16,
}  # fmt: skip


def recipe(**train: object) -> PlannerRecipe:
    """Return a recipe for the tiny network."""
    return parse({'dtype': 'float32', 'model': SIZES, 'train': train})


def network(seed: int = 0) -> Network:
    """Return a network whose every parameter matters."""
    torch.manual_seed(seed)
    made = Network(parse_config(recipe().architecture()), len(CLASSES))
    for parameter in made.parameters():
        if parameter.ndim < 2:
            parameter.data += 0.1 * torch.randn_like(parameter)
    return made


def checkpoint(folder: Path, seed: int = 0) -> Path:
    """Write the tiny checkpoint and return its folder."""
    export(folder, network(seed), recipe())
    return folder
