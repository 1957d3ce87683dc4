"""Recipes: every number of a training run, in one YAML file that is checked against dataclasses.

A recipe is a frozen dataclass of numbers, strings, tuples and further dataclasses, all with
defaults. Unknown keys and wrong types are refused here, values that make no sense by the
dataclass's own `__post_init__`, with `demand`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml

from flashrt_ros.errors import FlashrtError

T = TypeVar('T')


class RecipeError(FlashrtError):
    """A recipe or a checkpoint's sizes hold an unknown, missing or impossible value."""


def load(path: Path, kind: type[T]) -> T:
    """Read a recipe.

    Raises:
        RecipeError: one line that names the file and the key and says what would be right.
    """
    if not path.is_file():
        raise RecipeError(f'recipe {path} is missing; want a YAML file such as those in config/')
    try:
        return fill(kind, yaml.safe_load(path.read_text('utf-8')))
    except yaml.YAMLError as error:
        raise RecipeError(f'recipe {path} is not YAML: {" ".join(str(error).split())}') from None
    except RecipeError as error:
        raise RecipeError(f'recipe {path}: {error}') from None


def fill(kind: type[T], raw: Any, prefix: str = '') -> T:
    """Make a dataclass of a mapping, strictly.

    Args:
        kind: the dataclass.
        raw: the mapping; what it leaves out keeps its default.
        prefix: its key in the recipe, for messages.

    Raises:
        RecipeError: a key is unknown, or a value has the wrong type or makes no sense.
    """
    if not isinstance(raw, Mapping):
        raise RecipeError(f'{prefix or "the file"} holds {raw!r}; want a mapping')
    known = {entry.name: _default(entry) for entry in dataclasses.fields(kind)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for key, value in raw.items():
        where = f'{prefix}.{key}' if prefix else str(key)
        if key not in known:
            raise RecipeError(f'{where} is unknown; want one of {", ".join(known)}')
        values[key] = _value(where, value, known[key])
    return kind(**values)


def demand(*rules: tuple[bool, str]) -> None:
    """Refuse values that make no sense: each rule is whether all is well, and what to say if not.

    Raises:
        RecipeError: the first rule that is broken.
    """
    for good, text in rules:
        if not good:
            raise RecipeError(text)


def plain(recipe: Any) -> Any:
    """Return a recipe as what JSON makes of it."""
    return json.loads(json.dumps(dataclasses.asdict(recipe)))


def _default(entry: dataclasses.Field) -> Any:
    if entry.default is not dataclasses.MISSING:
        return entry.default
    assert entry.default_factory is not dataclasses.MISSING, entry.name
    return entry.default_factory()


def _value(where: str, value: Any, default: Any) -> Any:
    """Return a value of the default's type."""
    if dataclasses.is_dataclass(default):
        return fill(type(default), value, where)
    if isinstance(default, tuple):
        if not isinstance(value, list | tuple) or not value:
            raise RecipeError(f'{where} is {value!r}; want a list such as {list(default)}')
        return tuple(_value(where, item, default[0]) for item in value)
    want = type(default)
    if want is float and type(value) is int:
        return float(value)
    if type(value) is not want:
        raise RecipeError(f'{where} is {value!r}; want a {want.__name__}')
    return value
