"""Checkpoint folders: ``config.json`` and sharded safetensors, written and read strictly.

A folder holds ``config.json`` (``architecture``, ``format``, ``dtype``, ``model``, ``spec``,
``shards``) and the files named in ``shards``, each under 16 MiB. Reading takes one tensor at a
time; whatever does not fit exactly is a `CheckpointError` of one line that names the file and the
tensor and says what would be right.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashrt_ros.errors import FlashrtError

if TYPE_CHECKING:
    from torch import Tensor, dtype

FORMAT = 1
SHARD_BYTES = 15 * 2**20  # below 16 MiB with room for the header
DTYPES = ('float16', 'bfloat16', 'float32')
_KEYS = ('architecture', 'format', 'dtype', 'model', 'spec', 'shards')


class CheckpointError(FlashrtError):
    """A checkpoint is missing, damaged, or made for something else."""


def read_config(folder: Path) -> dict[str, Any]:
    """Return the checked top level of ``config.json``; loads no torch.

    Raises:
        CheckpointError: folder or file missing, no JSON, a key missing or unknown.
    """
    path = folder / 'config.json'
    if not path.is_file():
        raise CheckpointError(f'{path} is missing; want a checkpoint folder with config.json')
    try:
        config = json.loads(path.read_text('utf-8'))
    except ValueError as error:
        raise CheckpointError(f'{path} is not JSON ({error}); want an exported config') from None
    if not isinstance(config, dict):
        raise CheckpointError(f'{path} holds a {type(config).__name__}; want a JSON object')
    for key in _KEYS:
        if key not in config:
            raise CheckpointError(f'{path} lacks {key!r}; want the keys {", ".join(_KEYS)}')
    if config['format'] != FORMAT:
        raise CheckpointError(f'{path}: format is {config["format"]!r}; want {FORMAT}')
    if config['dtype'] not in DTYPES:
        raise CheckpointError(f'{path}: dtype is {config["dtype"]!r}; want one of {DTYPES}')
    shards = config['shards']
    if not isinstance(shards, list) or not shards:
        raise CheckpointError(f'{path}: shards is {shards!r}; want a list of file names')
    for name in shards:
        plain = isinstance(name, str) and Path(name).name == name
        if not plain or not name.endswith('.safetensors'):
            raise CheckpointError(f'{path}: shard {name!r}; want a plain *.safetensors file name')
    return config


def read_tensors(folder: Path, shards: list[str]) -> Iterator[tuple[str, str, Any]]:
    """Yield (file name, tensor name, tensor on the CPU), one tensor in memory at a time.

    Raises:
        CheckpointError: a file is missing or is no safetensors file.
    """
    from safetensors import SafetensorError, safe_open

    for name in shards:
        path = folder / name
        if not path.is_file():
            raise CheckpointError(f'{path} is missing; want every shard that config.json names')
        try:
            with safe_open(path, framework='pt', device='cpu') as file:
                for key in sorted(file.keys()):
                    yield name, key, file.get_tensor(key)
        except (SafetensorError, OSError, ValueError) as error:
            reason = ' '.join(str(error).split())
            raise CheckpointError(
                f'{path} cannot be read ({reason}); want a whole safetensors file'
            ) from None


def load_tensors(
    folder: Path,
    shards: list[str],
    want: Mapping[str, Tensor],
    types: Mapping[str, dtype],
) -> str:
    """Copy every stored tensor into its place in `want`, strictly.

    Args:
        folder: the checkpoint folder.
        shards: file names inside it.
        want: tensor name -> live tensor, written in place (converted to its type).
        types: tensor name -> element type the file must hold.

    Returns:
        The digest of the stored names, types, shapes and bytes; independent of the sharding.

    Raises:
        CheckpointError: a tensor is missing, twice there, unknown, of another shape or type, or
            holds NaN or infinity. `want` may have been written in part.
    """
    import torch

    digests: dict[str, str] = {}
    with torch.no_grad():
        for file, name, tensor in read_tensors(folder, shards):
            where = f'{folder / file}: tensor {name!r}'
            if name in digests:
                raise CheckpointError(f'{where} is stored twice; want each tensor once')
            if name not in want:
                raise CheckpointError(
                    f'{where} is unknown to this architecture; want only its own'
                )
            if tensor.shape != want[name].shape:
                raise CheckpointError(
                    f'{where} has shape {list(tensor.shape)}; want {list(want[name].shape)}'
                )
            if tensor.dtype != types[name]:
                raise CheckpointError(f'{where} is {tensor.dtype}; want {types[name]}')
            if not bool(torch.isfinite(tensor).all()):
                raise CheckpointError(f'{where} holds NaN or infinity; want finite numbers')
            digests[name] = tensor_digest(name, tensor)
            want[name].copy_(tensor)
    for name in want:
        if name not in digests:
            raise CheckpointError(
                f'{folder}: tensor {name!r} is missing; want it in one of {", ".join(shards)}'
            )
    return weights_digest(digests)


def tensor_digest(name: str, tensor: Tensor) -> str:
    """Return the SHA-256 of a tensor's name, type, shape and bytes."""
    import torch

    head = f'{name}|{tensor.dtype}|{list(tensor.shape)}|'
    data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(head.encode() + data).hexdigest()


def weights_digest(digests: Mapping[str, str]) -> str:
    """Return one digest over per-tensor digests, in the order of the names."""
    lines = ''.join(f'{name} {digests[name]}\n' for name in sorted(digests))
    return hashlib.sha256(lines.encode()).hexdigest()


def save(
    folder: Path,
    tensors: Mapping[str, Tensor],
    *,
    architecture: str,
    dtype: str,
    model: Mapping[str, Any],
    spec: Mapping[str, Any],
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write a checkpoint folder; `tensors` must already have the types they are stored in.

    Args:
        folder: made if it is not there; older shards in it are removed.
        tensors: name -> tensor.
        architecture: the family name the registry knows.
        dtype: type of the weights, one of `DTYPES`.
        model: sizes of the network.
        spec: fields of `PolicySpec`.
        shard_bytes: greatest payload of one file.

    Raises:
        CheckpointError: one tensor is larger than a shard, or not finite.
    """
    import torch
    from safetensors.torch import save_file

    groups: list[dict[str, Tensor]] = [{}]
    used = 0
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        if not bool(torch.isfinite(tensor).all()):
            raise CheckpointError(f'tensor {name!r} holds NaN or infinity; want a trained network')
        size = tensor.numel() * tensor.element_size()
        if size > shard_bytes:
            raise CheckpointError(
                f'tensor {name!r} has {size} bytes; want at most {shard_bytes} for one file'
            )
        if used + size > shard_bytes:
            groups.append({})
            used = 0
        groups[-1][name] = tensor
        used += size
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob('model-*.safetensors'):
        old.unlink()
    shards = [f'model-{i + 1:05d}-of-{len(groups):05d}.safetensors' for i in range(len(groups))]
    for name, group in zip(shards, groups, strict=True):
        save_file(group, folder / name)
        (folder / name).chmod(0o644)  # shipped weights are for everybody
    config = {
        'architecture': architecture,
        'format': FORMAT,
        'dtype': dtype,
        'model': dict(model),
        'spec': dict(spec),
        'shards': shards,
    }
    (folder / 'config.json').write_text(json.dumps(config, indent=2) + '\n', 'utf-8')
