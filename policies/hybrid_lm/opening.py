"""From a path to a model that answers: weights, graphs and tokenizer of one checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from flashrt_policies.checkpoint import CheckpointError
from flashrt_policies.hybrid_lm import gguf, loader
from flashrt_policies.hybrid_lm.config import LMConfig
from flashrt_policies.hybrid_lm.model import HybridLM
from flashrt_policies.hybrid_lm.mtp import DraftingLM
from flashrt_policies.hybrid_lm.text import Tokenizer, load_tokenizer
from flashrt_policies.hybrid_lm.weights import Weights

if TYPE_CHECKING:
    from flashrt_ros.contract.context import Context


def read_checkpoint(
    path: str | Path, device: torch.device, dtype: str | None = None, drafts: bool = False
) -> tuple[LMConfig, Weights, Tokenizer]:
    """Load a checkpoint's weights onto a device, and its tokenizer.

    Args:
        path: a Hugging Face folder or a .gguf file.
        device: where the weights go.
        dtype: 'float32', 'bfloat16' or 'float16'; None takes the checkpoint's own, and on the
            CPU float32.
        drafts: also the multi-token prediction head.

    Raises:
        CheckpointError: the checkpoint does not fit, or the path is neither.
    """
    path = Path(path).expanduser()
    if dtype is not None and dtype not in loader.DTYPES:
        raise CheckpointError(f'dtype {dtype!r}; want one of {", ".join(loader.DTYPES)}')
    if dtype is None and device.type == 'cpu':
        dtype = 'float32'
    kind = None if dtype is None else loader.DTYPES[dtype]
    if path.suffix == '.gguf':
        if drafts:
            raise CheckpointError(f'{path} has no mtp.* head; want a Hugging Face folder')
        file = gguf.GgufFile(path)
        return (*gguf.load(file, device, kind or torch.bfloat16), gguf.tokenizer(file))
    if not path.is_dir():
        raise CheckpointError(f'{path} is neither a checkpoint folder nor a .gguf file')
    config, weights = loader.load(path, device, kind, drafts)
    return config, weights, load_tokenizer(path, config.vocab)


def open_model(
    path: str | Path,
    ctx: Context,
    capacity: int = 4096,
    dtype: str | None = None,
    drafts: int = 0,
) -> tuple[HybridLM, Tokenizer]:
    """Load a checkpoint, capture its graphs and read its tokenizer.

    Args:
        path: a Hugging Face folder or a .gguf file.
        ctx: the device's context, not frozen yet.
        capacity: longest text, tokens; cut to what the model was made for.
        dtype: 'float32', 'bfloat16' or 'float16'; None takes the checkpoint's own, and on the
            CPU float32.
        drafts: tokens that the checkpoint's multi-token prediction head guesses in a round of
            greedy text; 0 leaves the head out.

    Raises:
        CheckpointError: the checkpoint does not fit, or the path is neither.
    """
    config, weights, tokenizer = read_checkpoint(path, ctx.device, dtype, drafts > 0)
    longest = min(capacity, config.max_position)
    if drafts:
        return DraftingLM(ctx, config, weights, longest, drafts=drafts), tokenizer
    return HybridLM(ctx, config, weights, capacity=longest), tokenizer
