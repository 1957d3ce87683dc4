"""A checkpoint folder of openpi's PyTorch code, with a `robot.json` for what it leaves out.

openpi's converter writes `model.safetensors`, a `config.json` of sizes, and, where it finds them,
`assets/ID/norm_stats.json`; its training writes the same without `config.json`. Which cameras a
robot has, and whether an action is an offset from the state, stands in openpi's Python code alone:
`robot_file` has it. Nothing is guessed, statistics are found or refused, and pickles
(`metadata.pt`, `optimizer.pt`) are never opened. Loads no torch. Read as `transforms.py` and
`policy_config.py` of Physical-Intelligence/openpi do.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from flashrt_policies.checkpoint import CheckpointError
from flashrt_policies.vla.aloha import COUNT
from flashrt_policies.vla.folder import Folder, read_json
from flashrt_policies.vla.robot_file import NAME, Robot, read_robot
from flashrt_policies.vla.statistics import Scale

MODES = {'pi0': 'MEAN_STD', 'pi05': 'QUANTILES'}
NAMES = {'MEAN_STD': ('mean', 'std'), 'QUANTILES': ('q01', 'q99')}
EPS = 1e-6  # added to every spread and range
PROMPT_TOKENS = {'pi0': 48, 'pi05': 200}
TOKENIZER = 'google/paligemma-3b-pt-224'


def open_folder(path: Path, config: Mapping[str, Any]) -> tuple[Folder, dict[str, Scale]]:
    """Check a folder and read its statistics.

    Args:
        path: the folder.
        config: its `config.json`, empty where there is none.

    Raises:
        CheckpointError: something is missing, contradicts itself, or is not done here.
    """
    family, width = _network(path / 'model.safetensors')
    for part in ('paligemma', 'action_expert'):
        variant = str(config.get(f'{part}_variant', ''))
        if 'lora' in variant:
            raise CheckpointError(
                f'{path / "config.json"}: {part}_variant is {variant!r}, whose LoRA weights '
                'openpi does not convert; want them merged'
            )
    robot = read_robot(path)
    cameras = robot.cameras()
    for key, found in (('action_dim', width), ('action_horizon', robot.values.get('horizon'))):
        stored = config.get(key, found)
        if found is not None and stored != found:
            raise CheckpointError(
                f'{path / "config.json"}: {key} is {stored!r}; want {found}, as the '
                f'{"weights have" if key == "action_dim" else f"{NAME} says"}'
            )
    where, stats = _statistics(path, robot)
    mode = MODES[family]
    sizes = {
        kind: _size(where, stats, name, mode, width, robot)
        for kind, name in (('STATE', 'state'), ('ACTION', 'actions'))
    }
    aloha = robot.flag('adapt_to_pi', False)
    if aloha and set(sizes.values()) != {COUNT}:
        raise CheckpointError(
            f'{robot.where}: adapt_to_pi is true, and a state has {sizes["STATE"]} numbers, an '
            f'action {sizes["ACTION"]}; want {COUNT} each, as the two arms of ALOHA have'
        )
    relative = robot.relative(min(sizes.values()))
    scales = {
        kind: _scale(where, stats, name, mode, sizes[kind])
        for kind, name in (('STATE', 'state'), ('ACTION', 'actions'))
    }
    folder = Folder(
        path=path,
        family=family,
        config={},
        cameras=cameras,
        state_dim=sizes['STATE'],
        action_dim=sizes['ACTION'],
        horizon=robot.count('horizon', config.get('action_horizon')),
        steps=robot.count('steps', 10),
        modes=dict.fromkeys(('STATE', 'ACTION'), mode),
        eps=EPS,
        prompt_tokens=robot.count('prompt_tokens', PROMPT_TOKENS[family]),
        tokenizer=TOKENIZER,
        files=(),
        prompt='state' if robot.flag('state_in_prompt', family == 'pi05') else 'clean',
        averaged=True,
        relative=relative,
        aloha=aloha,
    )
    if folder.prompt == 'state' and family == 'pi0':
        raise CheckpointError(f'{robot.where}: state_in_prompt is true; want false for π0')
    return folder, scales


def _network(weights: Path) -> tuple[str, int]:
    """Return the family and the width of an action in the network, by the tensors' names."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(weights, framework='np') as tensors:
            names = {key.removeprefix('model.'): key for key in tensors.keys()}  # noqa: SIM118
            if 'action_in_proj.weight' not in names:
                raise CheckpointError(
                    f'{weights}: tensor action_in_proj.weight is missing; want π0 or π0.5'
                )
            width = tensors.get_slice(names['action_in_proj.weight']).get_shape()[1]
    except (SafetensorError, OSError, ValueError) as error:
        reason = ' '.join(str(error).split())
        raise CheckpointError(
            f'{weights} cannot be read ({reason}); want a whole safetensors file'
        ) from None
    return 'pi05' if 'time_mlp_in.weight' in names else 'pi0', int(width)


def _statistics(path: Path, robot: Robot) -> tuple[Path, Mapping[str, Any]]:
    """Return the file of the statistics and what it holds under `norm_stats`."""
    assets = path / 'assets'
    files = {
        file.parent.relative_to(assets).as_posix(): file
        for file in sorted(assets.rglob('norm_stats.json'))
    }
    if not files:
        raise CheckpointError(
            f'{assets} holds no norm_stats.json; want the assets folder of the checkpoint that '
            'was converted copied here: openpi copies it only when it stands beside that folder'
        )
    asset = robot.values.get('asset', next(iter(files)) if len(files) == 1 else None)
    if asset not in files:
        raise CheckpointError(
            f'{robot.where}: asset is {asset!r}; want one of {", ".join(files)}: whose statistics '
            'these are'
        )
    where = files[asset]
    stats = read_json(where).get('norm_stats')
    if not isinstance(stats, dict):
        raise CheckpointError(f'{where}: norm_stats is {stats!r}; want state and actions')
    return where, stats


def _vector(where: Path, stats: Mapping[str, Any], kind: str, name: str) -> np.ndarray:
    """Return one statistic, float64 [N]."""
    entry = stats.get(kind)
    raw = entry.get(name) if isinstance(entry, dict) else None
    if not isinstance(raw, list) or not raw:
        raise CheckpointError(
            f'{where}: statistic {kind}.{name} is {raw!r}; want a list of numbers'
        )
    if not all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in raw):
        raise CheckpointError(
            f'{where}: statistic {kind}.{name} holds something else than numbers; want numbers'
        )
    value = np.asarray(raw, np.float64)
    if not np.isfinite(value).all():
        raise CheckpointError(
            f'{where}: statistic {kind}.{name} holds NaN or infinity; want real statistics'
        )
    return value


def _size(
    where: Path, stats: Mapping[str, Any], kind: str, mode: str, width: int, robot: Robot
) -> int:
    """Return how many numbers the robot has: as `robot.json` says, or as the statistics have."""
    key = f'{kind.removesuffix("s")}_dim'
    size = _vector(where, stats, kind, NAMES[mode][0]).size
    if key not in robot.values and size >= width:
        raise CheckpointError(
            f'{robot.where}: {key} is not there, and {where} has {size} numbers for {kind}, '
            'padded as the network takes them; want how many the robot has'
        )
    found = robot.count(key, size)
    if found > width:
        raise CheckpointError(f'{robot.where}: {key} is {found}; want at most {width}')
    return found


def _scale(where: Path, stats: Mapping[str, Any], kind: str, mode: str, size: int) -> Scale:
    """Return a normalisation as openpi does it: a small number is added to every divisor."""
    first, second = (_vector(where, stats, kind, name) for name in NAMES[mode])
    for name, value in zip(NAMES[mode], (first, second), strict=True):
        if value.size < size:
            raise CheckpointError(
                f'{where}: statistic {kind}.{name} has {value.size} numbers; want {size} or more'
            )
    first, second = first[:size], second[:size]
    spread = second if mode == 'MEAN_STD' else second - first
    if (spread < 0).any():
        what = 'negative' if mode == 'MEAN_STD' else 'below q01'
        raise CheckpointError(
            f'{where}: statistic {kind}.{NAMES[mode][1]} is {what} at {int((spread < 0).argmax())}'
            '; want a spread'
        )
    reach = 5 * spread if mode == 'MEAN_STD' else spread
    end = first if mode == 'MEAN_STD' else second
    parts = (first, spread + EPS, spread + EPS, first - reach, end + reach)
    return Scale(mode, *(part.astype(np.float32) for part in parts))
