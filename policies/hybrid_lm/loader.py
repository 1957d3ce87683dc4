"""Hugging Face checkpoint folders, read strictly: one tensor at a time, straight to the device."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor

from flashrt_policies.checkpoint import (
    CheckpointError,
    read_tensors,
    tensor_digest,
    weights_digest,
)
from flashrt_policies.hybrid_lm.config import LMConfig, read_config
from flashrt_policies.hybrid_lm.weights import Slot, Weights, allocate, slots

# Parts of a checkpoint that the text model does not use; the last one only when it is asked for.
OTHER_PARTS = ('model.visual.', 'visual.')
DRAFTS = 'mtp.'
DTYPES = {
    'float32': torch.float32,
    'bfloat16': torch.bfloat16,
    'float16': torch.float16,
}


def load(
    folder: Path | str,
    device: torch.device | str,
    dtype: torch.dtype | None = None,
    drafts: bool = False,
) -> tuple[LMConfig, Weights]:
    """Load a folder of ``config.json`` and ``*.safetensors``, sharded or not.

    Args:
        folder: the checkpoint.
        device: where the weights go.
        dtype: element type of the matrices (norm scales and decays are always float32);
            None takes the checkpoint's own.
        drafts: load the multi-token prediction head (``mtp.*``) too, which then must be there.

    Raises:
        CheckpointError: a file or tensor is missing, extra, twice there, misshapen, not floating
            point, or holds NaN or infinity; one line names it.
    """
    folder = Path(folder).expanduser()
    config = read_config(folder)
    files = shard_names(folder)
    if drafts and not config.gated:
        raise CheckpointError(f'{folder}: {config.model_type} has no mtp.* head; want Qwen3.5')
    if drafts and config.mtp_layers > 1:
        raise CheckpointError(f'{folder}: mtp_num_hidden_layers {config.mtp_layers}; want 1')
    dtype = dtype or stored_dtype(folder)
    try:
        weights = allocate(config, torch.device(device), dtype, drafts)
    except RuntimeError as error:  # out of memory, on either device
        reason = ' '.join(str(error).split())[:120]
        raise CheckpointError(
            f'{folder}: no room on {device} for the weights ({reason}); want a smaller model or '
            'element type'
        ) from None
    weights.digest = fill(folder, files, config, weights)
    return config, weights


def stored_dtype(folder: Path) -> torch.dtype:
    """Return the element type that ``config.json`` names; bfloat16 when it names none.

    Raises:
        CheckpointError: it names one that is no matrix type here.
    """
    raw = json.loads((folder / 'config.json').read_text('utf-8'))
    text = raw.get('text_config', {})
    keys = ('dtype', 'torch_dtype')
    name = next((part[key] for part in (text, raw) for key in keys if part.get(key)), 'bfloat16')
    if name not in DTYPES:
        raise CheckpointError(f'{folder}: dtype is {name!r}; want one of {", ".join(DTYPES)}')
    return DTYPES[name]


def shard_names(folder: Path) -> list[str]:
    """Return the safetensors files of a folder, from its index when it has one.

    Raises:
        CheckpointError: there is none, or the index is damaged.
    """
    index = folder / 'model.safetensors.index.json'
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text('utf-8'))['weight_map'].values()))
        except (ValueError, KeyError, AttributeError, TypeError):
            raise CheckpointError(f'{index} has no weight_map; want an index file') from None
        for name in names:
            if not isinstance(name, str) or Path(name).name != name:
                raise CheckpointError(f'{index}: shard {name!r}; want a plain file name')
        return names
    names = sorted(path.name for path in folder.glob('*.safetensors'))
    if not names:
        raise CheckpointError(f'{folder} holds no *.safetensors; want the weights beside config')
    return names


def plain_name(name: str, multimodal: bool) -> str:
    """Return a stored tensor's name as the text-only checkpoint has it."""
    if multimodal and name.startswith('model.language_model.'):
        return 'model.' + name.removeprefix('model.language_model.')
    return name


def fill(folder: Path, files: list[str], config: LMConfig, weights: Weights) -> str:
    """Copy every stored tensor into its slot and return the digest of what was stored.

    Raises:
        CheckpointError: as `load`; the weights may have been written in part.
    """
    want = slots(config, weights)
    others = OTHER_PARTS if weights.drafts is not None else (*OTHER_PARTS, DRAFTS)
    digests: dict[str, str] = {}
    head: Tensor | None = None
    for file, stored_name, tensor in read_tensors(folder, files):
        name = plain_name(stored_name, config.multimodal)
        where = f'{folder / file}: tensor {stored_name!r}'
        if name.startswith(others):
            continue
        if name == 'lm_head.weight' and config.tied:
            head = tensor
            continue
        if name in digests:
            raise CheckpointError(f'{where} is stored twice; want each tensor once')
        if name not in want:
            raise CheckpointError(f'{where} is unknown to this architecture; want only its own')
        copy_in(where, want[name], tensor)
        digests[name] = tensor_digest(name, tensor)
    for name in want:
        if name not in digests:
            raise CheckpointError(
                f'{folder}: tensor {name!r} is missing; want it in one of {", ".join(files)}'
            )
    if head is not None and not torch.equal(head.to(weights.embed), weights.embed):
        raise CheckpointError(
            f"{folder}: 'lm_head.weight' differs from the embedding it is tied to; "
            'want it equal or absent, or tie_word_embeddings false'
        )
    return weights_digest(digests)


def copy_in(where: str, slot: Slot, tensor: Tensor) -> None:
    """Check one stored tensor and copy it into its place.

    Raises:
        CheckpointError: wrong shape, not floating point, or not finite.
    """
    if tuple(tensor.shape) != slot.shape:
        raise CheckpointError(f'{where} has shape {list(tensor.shape)}; want {list(slot.shape)}')
    if not tensor.is_floating_point():
        raise CheckpointError(f'{where} is {tensor.dtype}; want floating point')
    moved = tensor.to(slot.place.device)
    low, high = torch.aminmax(moved)  # one pass; either is NaN when any value is
    if not bool(torch.isfinite(low) & torch.isfinite(high)):
        raise CheckpointError(f'{where} holds NaN or infinity; want finite numbers')
    slot.place.copy_(slot.change(moved))
