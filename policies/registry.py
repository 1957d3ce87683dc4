"""Names of policies and the code that loads them; a file never says what is imported."""

from __future__ import annotations

import dataclasses
import importlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashrt_policies.base import Policy, PolicySpec, SubgoalPort
from flashrt_policies.checkpoint import CheckpointError, read_config

if TYPE_CHECKING:
    from flashrt_ros.contract.context import Context

# Architecture named in config.json -> module with `load(folder, config, spec, ctx, subgoal)`.
FAMILIES: dict[str, str] = {'flow_vla': 'flashrt_policies.flow_vla.policy'}

# `type` in the config.json of a folder that lerobot saved -> module with `read_spec(folder,
# config)` and `load(folder, config, ctx, subgoal)`. The same reads openpi's folders, which name no
# type: π0 and π0.5 differ by their tensors.
VLA = 'flashrt_policies.vla.load'
LEROBOT: dict[str, str] = dict.fromkeys(('pi0', 'pi05', 'smolvla'), VLA)

# Names of the checkpoints that ship with the package.
SHIPPED: dict[str, str] = {'mt50': 'weights/mt50', 'drawer': 'weights/mt50'}

# A name may stand for some skills of a policy: those that a planner in that scene chooses from.
SKILLS: dict[str, tuple[str, ...]] = {'drawer': ('open the drawer', 'close the drawer')}


def resolve(path_or_name: str | Path) -> Path:
    """Return the checkpoint folder that a shipped name or a path stands for.

    Raises:
        CheckpointError: it is neither.
    """
    text = str(path_or_name)
    if text in SHIPPED:
        return Path(__file__).parent / SHIPPED[text]
    folder = Path(text).expanduser()
    if not folder.is_dir():
        raise CheckpointError(
            f'policy {text!r} is no checkpoint folder and no shipped name; '
            f'want a folder with config.json, or one of {", ".join(sorted(SHIPPED))}'
        )
    return folder


def spec(path_or_name: str | Path) -> PolicySpec:
    """Return what a checkpoint sees and does, from its config alone (loads no torch).

    Raises:
        CheckpointError: there is no such checkpoint, or its config is wrong.
    """
    folder = resolve(path_or_name)
    foreign = _foreign(folder)
    if foreign is not None:
        found: PolicySpec = foreign[0].read_spec(folder, foreign[1])
        return found
    return _part(path_or_name, parse_spec(folder, read_config(folder)['spec']))


def load(
    path_or_name: str | Path, ctx: Context, subgoal: SubgoalPort, float8: bool = False
) -> Policy:
    """Load a checkpoint, allocate its buffers on `ctx` and capture its graphs.

    Args:
        path_or_name: a checkpoint folder, or the name of shipped weights ('mt50', 'drawer').
        ctx: the device's context, not frozen yet.
        subgoal: the buffers the subgoal arrives in.
        float8: store the products of the expert of π0, π0.5 or SmolVLA in one byte a number.

    Raises:
        CheckpointError: missing, damaged, or of an architecture that is not here; or `float8`
            where it is not offered.
    """
    folder = resolve(path_or_name)
    foreign = _foreign(folder)
    if foreign is not None:
        loaded: Policy = foreign[0].load(folder, foreign[1], ctx, subgoal, float8=float8)
        return loaded
    if float8:
        raise CheckpointError(f'{folder}: float8 is offered for {", ".join(LEROBOT)} alone')
    config = read_config(folder)
    family = config['architecture']
    if family not in FAMILIES:
        raise CheckpointError(
            f'{folder / "config.json"}: architecture {family!r} is not known; '
            f'want one of {", ".join(sorted(FAMILIES))}'
        )
    module = importlib.import_module(FAMILIES[family])
    spec = _part(path_or_name, parse_spec(folder, config['spec']))
    policy: Policy = module.load(folder, config, spec, ctx, subgoal)
    return policy


def _part(name: str | Path, spec: PolicySpec) -> PolicySpec:
    """Leave of `spec` the skills that a shipped name stands for."""
    return dataclasses.replace(spec, skills=SKILLS.get(str(name), spec.skills))


def _foreign(folder: Path) -> tuple[Any, dict[str, Any]] | None:
    """Return module and config of a folder of lerobot's or openpi's; None for our own.

    Raises:
        CheckpointError: it is of a policy that is not here.
    """
    path = folder / 'config.json'
    trained = (folder / 'model.safetensors').is_file() and not any(folder.glob('policy_*.json'))
    if trained and not path.exists():  # openpi's training writes none
        return importlib.import_module(VLA), {}
    try:
        config = json.loads(path.read_text('utf-8'))
    except (OSError, ValueError):
        return None  # `read_config` says what is wrong
    if not isinstance(config, dict) or 'architecture' in config:
        return None
    if 'paligemma_variant' in config:
        return importlib.import_module(VLA), config
    if 'type' not in config:
        return None
    kind = config['type']
    if kind not in LEROBOT:
        raise CheckpointError(
            f'{path}: type {kind!r} is not known; want one of {", ".join(sorted(LEROBOT))}'
        )
    return importlib.import_module(LEROBOT[kind]), config


def parse_spec(folder: Path, raw: Any) -> PolicySpec:
    """Check the `spec` object of a config and return it as a `PolicySpec`.

    Raises:
        CheckpointError: a field is missing, unknown or of the wrong type or length.
    """
    where = f'{folder / "config.json"}: spec'
    fields = {field.name for field in dataclasses.fields(PolicySpec)}
    if not isinstance(raw, dict) or set(raw) != fields:
        raise CheckpointError(f'{where} is wrong; want exactly the fields {sorted(fields)}')
    values: dict[str, Any] = {}
    for name, value in raw.items():
        if name in ('cameras', 'skills'):
            good = isinstance(value, list) and all(isinstance(item, str) for item in value)
        elif name in ('image_hw', 'action_low', 'action_high'):
            want = 2 if name == 'image_hw' else raw['action_dim']
            good = isinstance(value, list) and len(value) == want and all(map(_number, value))
        else:
            good = isinstance(value, int) and not isinstance(value, bool) and value > 0
        if not good:
            raise CheckpointError(f'{where}.{name} is {value!r}; want what `PolicySpec` documents')
        values[name] = tuple(value) if isinstance(value, list) else value
    return PolicySpec(**values)


def _number(value: object) -> bool:
    finite = isinstance(value, (int, float)) and not isinstance(value, bool)
    return finite and abs(value) < float('inf')  # type: ignore[arg-type]
