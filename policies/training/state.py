"""The training state on disk: one safetensors file, written whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from flashrt_policies.checkpoint import CheckpointError


def write(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write tensors and facts (JSON) to `path`: temporary file, fsync, rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix('.part')
    save_file(
        {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()},
        temporary,
        metadata={'facts': json.dumps(facts)},
    )
    with temporary.open('rb') as file:
        os.fsync(file.fileno())
    temporary.replace(path)


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `write` wrote.

    Raises:
        CheckpointError: missing or damaged.
    """
    if not path.is_file():
        raise CheckpointError(f'{path} is missing; want the state of a run to resume')
    try:
        with safe_open(path, framework='pt') as file:
            facts = json.loads(file.metadata()['facts'])
            return {name: file.get_tensor(name) for name in file.keys()}, facts  # noqa: SIM118
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        reason = ' '.join(str(error).split())
        raise CheckpointError(f'{path} cannot be read ({reason}); want a whole state') from None
