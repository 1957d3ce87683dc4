"""The recipe of a flow policy: every number of its training."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flashrt_policies import recipes
from flashrt_policies.checkpoint import DTYPES
from flashrt_policies.flow_vla.config import FlowSizes
from flashrt_policies.recipes import demand
from flashrt_policies.training.augment import Augmentation
from flashrt_policies.training.loop import Loop


@dataclass(frozen=True)
class Loss:
    """Which parts of a chunk matter.

    Attributes:
        first: first action that is executed (the delay), ticks.
        last: first action that is not executed any more (delay plus actions executed).
        outside: weight of the other actions; those from `first` to `last` weigh 1.
        draws: noise and flow-time draws per observation (the image encoder runs once for all).
    """

    first: int = 4
    last: int = 12
    outside: float = 0.3
    draws: int = 4

    def __post_init__(self) -> None:
        demand(
            (
                0 <= self.first < self.last,
                f'loss.first is {self.first} and loss.last {self.last}; want 0 <= first < last',
            ),
            (self.draws > 0, f'loss.draws is {self.draws}; want a positive number'),
        )


@dataclass(frozen=True)
class Training(Loop):
    """The loop of a flow policy.

    Attributes:
        compile: let torch's compiler fuse the network; about a minute at the start, then faster.
        balance: how often a skill is drawn: its number of frames to this power; at 0 all equally.
        validation: share of the episodes kept out for validation.
    """

    compile: bool = False
    balance: float = 0.0
    validation: float = 0.04

    def __post_init__(self) -> None:
        super().__post_init__()
        demand(
            (
                0 <= self.validation < 1,
                f'train.validation is {self.validation}; want a share from 0 to below 1',
            ),
            (0 <= self.balance <= 1, f'train.balance is {self.balance}; want 0 to 1'),
        )


@dataclass(frozen=True)
class Recipe:
    """A training run.

    Attributes:
        policy: architecture that is trained.
        seed: every random choice follows from it.
        horizon: actions in a chunk.
        synonyms: also train on the wordings with words changed for others of the same meaning.
        dtype: element type of the exported weights.
        model: sizes of the network.
        train: the loop.
        loss: which parts of a chunk matter.
        augment: how observations are disturbed.
    """

    policy: str = 'flow_vla'
    seed: int = 0
    horizon: int = 16
    synonyms: bool = False
    dtype: str = 'float16'
    model: FlowSizes = field(default_factory=FlowSizes)
    train: Training = field(default_factory=Training)
    loss: Loss = field(default_factory=Loss)
    augment: Augmentation = field(default_factory=Augmentation)

    def __post_init__(self) -> None:
        loss, kinds = self.loss, ', '.join(DTYPES)
        demand(
            (self.policy == 'flow_vla', f'policy is {self.policy!r}; want flow_vla'),
            (self.dtype in DTYPES, f'dtype is {self.dtype!r}; want one of {kinds}'),
            (self.horizon > 0, f'horizon is {self.horizon}; want a positive number'),
            (
                loss.last <= self.horizon,
                f'loss.first {loss.first} and loss.last {loss.last} do not lie in the chunk; '
                f'want 0 <= first < last <= {self.horizon}',
            ),
        )


def load(path: Path) -> Recipe:
    """Read a recipe.

    Raises:
        RecipeError: one line that names the file and the key and says what would be right.
    """
    return recipes.load(path, Recipe)


def parse(raw: Any) -> Recipe:
    """Check a mapping and return the recipe it describes.

    Raises:
        RecipeError: a key is unknown, or a value has the wrong type or range.
    """
    return recipes.fill(Recipe, raw)
