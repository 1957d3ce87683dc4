"""A checkpoint folder as lerobot saves it, checked: config, features and processor steps.

Nothing is taken on trust and nothing is passed over: a processor step, a normalisation or an
option that this package does not do is an error that names it. Loads no torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flashrt_policies.checkpoint import CheckpointError

IMAGES = 'observation.images.'
STATE, ACTION = 'observation.state', 'action'
# What each family has, in the names of its config, and the values that are done here.
STEPS = {'pi0': 'num_inference_steps', 'pi05': 'num_inference_steps', 'smolvla': 'num_steps'}
REFUSED: dict[str, Any] = {
    'adapt_to_pi_aloha': False,
    'use_delta_joint_actions_aloha': False,
    'add_image_special_tokens': False,
    'use_peft': False,
    'n_obs_steps': 1,
}
# Processor steps, and whether they do something to the numbers that is done here.
KNOWN_STEPS = frozenset(
    {
        'rename_observations_processor',
        'to_batch_processor',
        'device_processor',
        'smolvla_new_line_processor',
        'pi0_new_line_processor',
        'pi05_prepare_state_tokenizer_processor_step',
        'tokenizer_processor',
        'normalizer_processor',
        'unnormalizer_processor',
        'relative_actions_processor',
        'absolute_actions_processor',
    }
)
MODES = {
    'IDENTITY': (),
    'MEAN_STD': ('mean', 'std'),
    'MIN_MAX': ('min', 'max'),
    'QUANTILES': ('q01', 'q99'),
    'QUANTILE10': ('q10', 'q90'),
}


@dataclass(frozen=True)
class Folder:
    """What a folder says besides its tensors.

    Attributes:
        path: the folder.
        family: 'pi0', 'pi05' or 'smolvla'.
        config: `config.json`, whole.
        cameras: name the robot has for a camera -> height and width of its image, pixels, in
            the order the network takes them.
        state_dim: numbers in the proprioception.
        action_dim: numbers in one action.
        horizon: actions in a chunk.
        steps: Euler steps of the flow.
        modes: 'STATE' and 'ACTION' -> how they are normalised, a key of `MODES`.
        eps: added to a standard deviation, or put in place of an empty range.
        prompt_tokens: longest prompt, tokens.
        tokenizer: name of the tokenizer the checkpoint was trained with.
        files: safetensors files beside the weights that may hold statistics.
        prompt: what surrounds the text of a task, a key of `preprocess.PROMPTS`.
        averaged: images change size as Pillow does it, by averaging, not by sampling.
        relative: indices of actions that are offsets from the state.
        aloha: joints and grippers are ALOHA's; see `vla.aloha`.
    """

    path: Path
    family: str
    config: Mapping[str, Any]
    cameras: Mapping[str, tuple[int, int]]
    state_dim: int
    action_dim: int
    horizon: int
    steps: int
    modes: Mapping[str, str]
    eps: float
    prompt_tokens: int
    tokenizer: str
    files: tuple[str, ...]
    prompt: str = 'line'
    averaged: bool = False
    relative: tuple[int, ...] = ()
    aloha: bool = False

    @property
    def weights(self) -> Path:
        """The file of the network's tensors."""
        return self.path / 'model.safetensors'


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a file.

    Raises:
        CheckpointError: missing, or no JSON object.
    """
    if not path.is_file():
        raise CheckpointError(f'{path} is missing; want a folder as it was saved')
    try:
        found = json.loads(path.read_text('utf-8'))
    except ValueError as error:
        raise CheckpointError(f'{path} is not JSON ({error}); want a JSON object') from None
    if not isinstance(found, dict):
        raise CheckpointError(f'{path} holds a {type(found).__name__}; want a JSON object')
    return found


def read_folder(path: Path, config: Mapping[str, Any]) -> Folder:
    """Check a folder's config and processors.

    Raises:
        CheckpointError: something is missing, or asks for what is not done here.
    """
    where = path / 'config.json'
    family = config['type']
    for key, value in REFUSED.items():
        if config.get(key, value) != value:
            raise CheckpointError(f'{where}: {key} is {config[key]!r}; want {value!r}')
    steps = {name: read_steps(path / f'policy_{name}.json') for name in PROCESSORS}
    rename = steps['preprocessor'].get('rename_observations_processor', {}).get('rename_map', {})
    words = steps['preprocessor'].get('tokenizer_processor')
    if words is None:
        raise CheckpointError(f'{path / "policy_preprocessor.json"}: no tokenizer_processor step')
    inputs, outputs = config.get('input_features') or {}, config.get('output_features') or {}
    cameras = _cameras(where, inputs, {new: old for old, new in rename.items()})
    number = STEPS[family]
    state, action = _length(where, inputs, STATE), _length(where, outputs, ACTION)
    return Folder(
        path=path,
        family=family,
        config=config,
        cameras=cameras,
        state_dim=state,
        action_dim=action,
        horizon=_count(where, config, 'chunk_size'),
        steps=_count(where, config, number),
        modes=_modes(where, config, steps),
        eps=float(steps['preprocessor']['normalizer_processor'].get('eps', 1e-8)),
        prompt_tokens=_count(where, words, 'max_length'),
        tokenizer=str(words.get('tokenizer_name', '')),
        files=tuple(
            step['state_file'] for one in steps.values() for step in one.values()
            if 'state_file' in step
        ),
        prompt='state' if family == 'pi05' else 'line',
        relative=_relative(where, config, steps, state, action),
    )  # fmt: skip


PROCESSORS = ('preprocessor', 'postprocessor')


def read_steps(path: Path) -> dict[str, dict[str, Any]]:
    """Return the steps of a processor file, by name, each with its config and `state_file`.

    Raises:
        CheckpointError: a step is not known here, or changes the actions in a way not done here.
    """
    steps: dict[str, dict[str, Any]] = {}
    for step in read_json(path).get('steps', []):
        name = step.get('registry_name', step.get('class', '?'))
        config = dict(step.get('config') or {})
        if name not in KNOWN_STEPS:
            raise CheckpointError(
                f'{path}: step {name!r} is not known; want one of {", ".join(sorted(KNOWN_STEPS))}'
            )
        if 'state_file' in step:
            if Path(str(step['state_file'])).name != step['state_file']:
                raise CheckpointError(f'{path}: state_file {step["state_file"]!r}; want a name')
            config['state_file'] = step['state_file']
        steps[name] = config
    want = 'normalizer_processor' if 'preprocessor' in path.name else 'unnormalizer_processor'
    if want not in steps:
        raise CheckpointError(f'{path}: no {want} step; want the statistics applied by one')
    return steps


def _relative(
    where: Path, config: Mapping[str, Any], steps: Mapping[str, Any], state: int, action: int
) -> tuple[int, ...]:
    """Return the actions that are offsets from the state: all but those whose names are excluded.

    A name is excluded by a part of it, in letters of any case, as lerobot has it.
    """
    before = steps['preprocessor'].get('relative_actions_processor', {})
    said = {
        'relative_actions_processor': before.get('enabled', False),
        'absolute_actions_processor': steps['postprocessor']
        .get('absolute_actions_processor', {})
        .get('enabled', False),
        'use_relative_actions': config.get('use_relative_actions', False),
    }
    if len(set(said.values())) > 1:
        raise CheckpointError(
            f'{where}: {", ".join(f"{key} is {value}" for key, value in said.items())}; want all '
            'or none: actions are offsets from the state or they are not'
        )
    if not said['use_relative_actions']:
        return ()
    if state < action:
        raise CheckpointError(
            f'{where}: {action} actions are offsets from a state of {state} numbers; want as many'
        )
    left_out = [str(name).lower() for name in before.get('exclude_joints') or () if name]
    names = [str(name).lower() for name in before.get('action_names') or ()][:action]
    excluded = {i for i, name in enumerate(names) if any(part in name for part in left_out)}
    return tuple(i for i in range(action) if i not in excluded)


def _cameras(
    where: Path, inputs: Mapping[str, Any], renamed: Mapping[str, str]
) -> dict[str, tuple[int, int]]:
    cameras: dict[str, tuple[int, int]] = {}
    for key, feature in inputs.items():
        if not isinstance(feature, dict) or feature.get('type') != 'VISUAL':
            continue
        if 'empty_camera' in key:  # masked out everywhere: it adds nothing
            continue
        shape = feature.get('shape', [])
        if len(shape) != 3 or shape[0] != 3:
            raise CheckpointError(f'{where}: {key} has shape {shape}; want [3, height, width]')
        name = renamed.get(key, key)
        cameras[name.removeprefix(IMAGES)] = (int(shape[1]), int(shape[2]))
    if not cameras:
        raise CheckpointError(f'{where}: input_features has no image; want one or more')
    return cameras


def _length(where: Path, features: Mapping[str, Any], key: str) -> int:
    feature = features.get(key)
    shape = feature.get('shape') if isinstance(feature, dict) else None
    if not isinstance(shape, list) or len(shape) != 1 or not isinstance(shape[0], int):
        raise CheckpointError(f'{where}: feature {key!r} is {feature!r}; want a shape [n]')
    return shape[0]


def _count(where: Path, config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise CheckpointError(f'{where}: {key} is {value!r}; want a positive number')
    return value


def _modes(where: Path, config: Mapping[str, Any], steps: Mapping[str, Any]) -> dict[str, str]:
    """Return the modes that the processors apply; they must be those of the config."""
    modes: dict[str, str] = {}
    maps = [
        steps['preprocessor']['normalizer_processor'].get('norm_map', {}),
        steps['postprocessor']['unnormalizer_processor'].get('norm_map', {}),
        config.get('normalization_mapping') or {},
    ]
    for kind, at in (('STATE', 0), ('ACTION', 1)):
        mode = maps[at].get(kind, maps[2].get(kind))
        if mode not in MODES:
            raise CheckpointError(
                f'{where}: normalisation of {kind} is {mode!r}; want one of {", ".join(MODES)}'
            )
        modes[kind] = mode
    for found in maps:
        if found.get('VISUAL', 'IDENTITY') != 'IDENTITY':
            raise CheckpointError(
                f'{where}: normalisation of VISUAL is {found["VISUAL"]!r}; want IDENTITY'
            )
    return modes
