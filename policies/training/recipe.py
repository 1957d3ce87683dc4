"""Recipes: every number of a training run, in one checked YAML file."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml

from flashrt_policies.checkpoint import DTYPES
from flashrt_policies.flow_vla.config import FlowSizes, RecipeError
from flashrt_policies.training.augment import Augmentation

T = TypeVar('T')


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


@dataclass(frozen=True)
class Training:
    """The loop.

    Attributes:
        steps: optimiser steps.
        batch: observations per step.
        rate: highest learning rate.
        warmup: steps of linear warm-up before the cosine decay to a hundredth.
        decay: weight decay on matrices.
        beta1: decay of AdamW's first moment.
        beta2: decay of AdamW's second moment.
        clip: largest gradient norm.
        ema: decay of the averaged weights that are exported.
        autocast: compute type of matrix work on a GPU: bfloat16 or float32.
        compile: let torch's compiler fuse the network; about a minute at the start, then faster.
        balance: how often a skill is drawn: its number of frames to this power; at 0 all equally.
        validation: share of the episodes kept out for validation.
        validate_every: steps between validations.
        save_every: steps between saves of the training state.
    """

    steps: int = 6000
    batch: int = 512
    rate: float = 1e-3
    warmup: int = 200
    decay: float = 0.02
    beta1: float = 0.9
    beta2: float = 0.95
    clip: float = 1.0
    ema: float = 0.999
    autocast: str = 'bfloat16'
    compile: bool = False
    balance: float = 0.0
    validation: float = 0.04
    validate_every: int = 1000
    save_every: int = 2000


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


def load(path: Path) -> Recipe:
    """Read a recipe.

    Raises:
        RecipeError: one line that names the file and the key and says what would be right.
    """
    if not path.is_file():
        raise RecipeError(f'recipe {path} is missing; want a YAML file such as those in config/')
    try:
        raw = yaml.safe_load(path.read_text('utf-8'))
    except yaml.YAMLError as error:
        raise RecipeError(f'recipe {path} is not YAML: {" ".join(str(error).split())}') from None
    try:
        return parse(raw)
    except RecipeError as error:
        raise RecipeError(f'recipe {path}: {error}') from None


def parse(raw: Any) -> Recipe:
    """Check a mapping and return the recipe it describes.

    Raises:
        RecipeError: a key is unknown, or a value has the wrong type or range.
    """
    if not isinstance(raw, Mapping):
        raise RecipeError('the file holds no mapping; want keys such as policy, model, train')
    parts: dict[str, Any] = {'train': Training, 'loss': Loss, 'augment': Augmentation}
    values: dict[str, Any] = {}
    for key, value in raw.items():
        if key == 'model':
            values[key] = FlowSizes.of(_mapping(key, value))
        elif key in parts:
            values[key] = _fill(parts[key], key, _mapping(key, value))
    rest = {key: value for key, value in raw.items() if key not in values}
    recipe = dataclasses.replace(_fill(Recipe, '', rest), **values)
    _check(recipe)
    return recipe


def _check(recipe: Recipe) -> None:
    loss, train = recipe.loss, recipe.train
    for good, text in (
        (recipe.policy == 'flow_vla', f'policy is {recipe.policy!r}; want flow_vla'),
        (recipe.dtype in DTYPES, f'dtype is {recipe.dtype!r}; want one of {", ".join(DTYPES)}'),
        (recipe.horizon > 0, f'horizon is {recipe.horizon}; want a positive number'),
        (
            0 <= loss.first < loss.last <= recipe.horizon,
            f'loss.first {loss.first} and loss.last {loss.last} do not lie in the chunk; '
            f'want 0 <= first < last <= {recipe.horizon}',
        ),
        (loss.draws > 0, f'loss.draws is {loss.draws}; want a positive number'),
        (train.steps > 0, f'train.steps is {train.steps}; want a positive number'),
        (train.batch > 0, f'train.batch is {train.batch}; want a positive number'),
        (0 <= train.ema < 1, f'train.ema is {train.ema}; want a number from 0 to below 1'),
        (
            0 <= train.validation < 1,
            f'train.validation is {train.validation}; want a share from 0 to below 1',
        ),
        (0 <= train.balance <= 1, f'train.balance is {train.balance}; want 0 to 1'),
        (
            train.autocast in ('bfloat16', 'float32'),
            f'train.autocast is {train.autocast!r}; want bfloat16 or float32',
        ),
    ):
        if not good:
            raise RecipeError(text)


def _mapping(key: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise RecipeError(f'{key} is {value!r}; want a mapping')
    return value


def _fill(kind: type[T], prefix: str, raw: Mapping[str, Any]) -> T:
    """Build a dataclass of numbers and strings from a mapping, strictly."""
    known = {entry.name: entry for entry in dataclasses.fields(kind)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for key, value in raw.items():
        where = f'{prefix}.{key}' if prefix else str(key)
        if key not in known:
            raise RecipeError(f'{where} is unknown; want one of {", ".join(known)}')
        want = type(known[key].default)
        if want is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if type(value) is not want:
            raise RecipeError(f'{where} is {value!r}; want a {want.__name__}')
        values[key] = value
    return kind(**values)
