"""The recipe of a planner: every number of its training, in one checked YAML file."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml

from flashrt_policies.checkpoint import DTYPES
from flashrt_policies.flow_vla.config import RecipeError

T = TypeVar('T')


@dataclass(frozen=True)
class Sizes:
    """The network; the vocabulary is the 256 bytes.

    Attributes:
        hidden: width of the residual stream.
        intermediate: width of the gated MLP.
        pairs: layers, in pairs of Gated DeltaNet and full attention.
        heads: query heads of full attention.
        kv_heads: its key and value heads.
        head_dim: width of one of them; half of it is rotated.
        lin_heads: heads of Gated DeltaNet.
        lin_dim: width of their keys and values.
    """

    hidden: int = 192
    intermediate: int = 448
    pairs: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    lin_heads: int = 4
    lin_dim: int = 32


@dataclass(frozen=True)
class Loop:
    """The loop.

    Attributes:
        steps: optimiser steps.
        batch: situations per step, each with up to eight questions.
        rate: highest learning rate.
        warmup: steps of linear warm-up; the rate then stays, and falls to nothing at the end.
        cooldown: last part of the run in which the rate falls, 0 to 1.
        decay: weight decay on matrices.
        beta1: decay of Adam's first moment (vectors and the embedding; matrices go by Muon).
        beta2: decay of Adam's second moment.
        clip: largest gradient norm.
        ema: decay of the averaged weights that are exported.
        read: weight of the loss of predicting a state's own bytes.
        side: weight of questions that are not decisions.
        autocast: compute type of matrix work on a GPU: bfloat16 or float32.
        measure_every: steps between measurements on held-out situations.
        measure: held-out situations per measurement.
        save_every: steps between saves of the training state.
        workers: processes that make up situations; 0 = none but the trainer's own.
    """

    steps: int = 2000
    batch: int = 256
    rate: float = 2e-3
    warmup: int = 100
    cooldown: float = 0.5
    decay: float = 0.05
    beta1: float = 0.9
    beta2: float = 0.97
    clip: float = 1.0
    ema: float = 0.995
    read: float = 0.1
    side: float = 0.5
    autocast: str = 'bfloat16'
    measure_every: int = 500
    measure: int = 1024
    save_every: int = 1000
    workers: int = 0


@dataclass(frozen=True)
class PlannerRecipe:
    """A training run.

    Attributes:
        seed: every random choice follows from it.
        dtype: element type of the exported matrices.
        words: the words file, beside the recipe.
        model: the network.
        train: the loop.
    """

    seed: int = 0
    dtype: str = 'float16'
    words: str = 'planner_words.yaml'
    model: Sizes = field(default_factory=Sizes)
    train: Loop = field(default_factory=Loop)

    def architecture(self) -> dict[str, Any]:
        """Return the checkpoint's ``config.json``, as the language model's loader reads it."""
        m = self.model
        return {
            'architectures': ['Qwen3_5ForCausalLM'],
            'model_type': 'qwen3_5_text',
            'dtype': self.dtype,
            'vocab_size': 256,
            'hidden_size': m.hidden,
            'intermediate_size': m.intermediate,
            'num_hidden_layers': 2 * m.pairs,
            'layer_types': ['linear_attention', 'full_attention'] * m.pairs,
            'num_attention_heads': m.heads,
            'num_key_value_heads': m.kv_heads,
            'head_dim': m.head_dim,
            'linear_num_key_heads': m.lin_heads,
            'linear_num_value_heads': m.lin_heads,
            'linear_key_head_dim': m.lin_dim,
            'linear_value_head_dim': m.lin_dim,
            'linear_conv_kernel_dim': 4,
            'rope_parameters': {
                'rope_type': 'default',
                'rope_theta': 10000.0,
                'partial_rotary_factor': 0.5,
            },
            'rms_norm_eps': 1e-6,
            'hidden_act': 'silu',
            'tie_word_embeddings': True,
            'max_position_embeddings': 8192,
        }


def load(path: Path) -> PlannerRecipe:
    """Read a recipe.

    Raises:
        RecipeError: one line that names the file and the key and says what would be right.
    """
    if not path.is_file():
        raise RecipeError(
            f'recipe {path} is missing; want a file such as config/train_planner.yaml'
        )
    try:
        return parse(yaml.safe_load(path.read_text('utf-8')))
    except yaml.YAMLError as error:
        raise RecipeError(f'recipe {path} is not YAML: {" ".join(str(error).split())}') from None
    except RecipeError as error:
        raise RecipeError(f'recipe {path}: {error}') from None


def parse(raw: Any) -> PlannerRecipe:
    """Check a mapping and return the recipe it describes.

    Raises:
        RecipeError: a key is unknown, or a value has the wrong type or range.
    """
    values = dict(_mapping('the file', raw))
    parts: dict[str, Any] = {
        'model': _fill(Sizes, 'model', _mapping('model', values.pop('model', {}))),
        'train': _fill(Loop, 'train', _mapping('train', values.pop('train', {}))),
    }
    recipe = dataclasses.replace(_fill(PlannerRecipe, '', values), **parts)
    train, model = recipe.train, recipe.model
    for good, text in (
        (recipe.dtype in DTYPES, f'dtype is {recipe.dtype!r}; want one of {", ".join(DTYPES)}'),
        (Path(recipe.words).name == recipe.words, f'words is {recipe.words!r}; want a file name'),
        (model.heads % model.kv_heads == 0, 'model.heads is no multiple of model.kv_heads'),
        (min(dataclasses.astuple(model)) > 0, 'model holds a number below 1; want positive ones'),
        (train.steps > 0 and train.batch > 0, 'train.steps and train.batch must be positive'),
        (0 <= train.ema < 1, f'train.ema is {train.ema}; want a number from 0 to below 1'),
        (0 < train.cooldown <= 1, f'train.cooldown is {train.cooldown}; want above 0, at most 1'),
        (
            train.autocast in ('bfloat16', 'float32'),
            f'train.autocast is {train.autocast!r}; want bfloat16 or float32',
        ),
    ):
        if not good:
            raise RecipeError(text)
    return recipe


def plain(recipe: PlannerRecipe) -> Any:
    """Return a recipe as what JSON makes of it."""
    return json.loads(json.dumps(dataclasses.asdict(recipe)))


def _mapping(key: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise RecipeError(f'{key} holds {value!r}; want a mapping')
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
