"""From what a robot gives to what the networks take: prompts, tokens, and images.

Every rule is the one the checkpoints were trained with (lerobot's processors and `prepare_images`
of each family): where the padding of an image stands, what surrounds the text of a task.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flashrt_policies.checkpoint import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

BINS = np.linspace(-1, 1, 257)[:-1]  # where a normalised state is cut into 256 numbers


def line_prompt(text: str, state: np.ndarray) -> str:
    """Return the prompt of π0 and SmolVLA: the task and a newline."""
    return text if text.endswith('\n') else f'{text}\n'


def state_prompt(text: str, state: np.ndarray) -> str:
    """Return the prompt of π0.5: the task, and the state [P] in 256 steps from -1 to 1."""
    cleaned = text.strip().replace('_', ' ').replace('\n', ' ')
    numbers = ' '.join(map(str, np.digitize(state, bins=BINS) - 1))
    return f'Task: {cleaned}, State: {numbers};\nAction: '


def clean_prompt(text: str, state: np.ndarray) -> str:
    """Return openpi's prompt without the state: underscores and newlines gone, one at the end."""
    cleaned = text.strip().replace('_', ' ').replace('\n', ' ')
    return f'{cleaned}\n'  # a token of its own in Gemma's vocabulary, as openpi appends it


PROMPTS = {'line': line_prompt, 'state': state_prompt, 'clean': clean_prompt}


class Words:
    """A checkpoint's tokenizer, cut to the longest prompt.

    Args:
        inner: a tokenizer of the `tokenizers` library.
        longest: tokens of the longest prompt.
        vocabulary: rows of the embedding.
    """

    def __init__(self, inner: Any, longest: int, vocabulary: int) -> None:
        inner.no_padding()
        inner.no_truncation()
        self._inner, self.longest, self.vocabulary = inner, longest, vocabulary

    @functools.lru_cache(maxsize=256)  # noqa: B019 one per policy, and a policy lives on
    def __call__(self, prompt: str) -> np.ndarray:
        """Return the tokens of a prompt, int32 [n], n from 1 to `longest`.

        Raises:
            CheckpointError: a token is outside the embedding: the tokenizer is of another model.
        """
        ids = np.asarray(self._inner.encode(prompt).ids[: self.longest], np.int32)
        if not ids.size or int(ids.max()) >= self.vocabulary:
            raise CheckpointError(
                f'the tokenizer gives {ids.max(initial=0)} for {prompt!r}; want 1 to '
                f'{self.longest} tokens below {self.vocabulary}: it is of another model'
            )
        ids.setflags(write=False)
        return ids


def find_tokenizer(folder: Path, name: str) -> Path:
    """Return the `tokenizer.json` of a checkpoint.

    It is looked for in the folder itself, in a folder of this name, and where the libraries that
    trained the checkpoint keep what they fetched (HF_HOME). Nothing is fetched here.

    Raises:
        CheckpointError: it is nowhere.
    """
    home = Path(os.environ.get('HF_HOME', '~/.cache/huggingface')).expanduser()
    kept = home / 'hub' / f'models--{name.replace("/", "--")}' / 'snapshots'
    places = [folder, *([Path(name)] if name else []), *sorted(kept.glob('*'), reverse=True)]
    for place in places:
        if (place / 'tokenizer.json').is_file():
            return place / 'tokenizer.json'
    raise CheckpointError(
        f'{folder / "tokenizer.json"} is missing, and so is one in {kept}; no checkpoint has one: '
        f'copy the tokenizer.json of {name or "the language model"} into the folder'
    )


def load_words(folder: Path, name: str, longest: int, vocabulary: int) -> Words:
    """Return the tokenizer of a checkpoint.

    Raises:
        CheckpointError: there is none, or it cannot be read.
    """
    import tokenizers

    path = find_tokenizer(folder, name)
    try:
        inner = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        reason = ' '.join(str(error).split())[:100]
        raise CheckpointError(f'{path} cannot be read ({reason}); want a tokenizer') from None
    return Words(inner, longest, vocabulary)


def fit_images(
    images: Sequence[Tensor], height: int, width: int, centred: bool, averaged: bool = False
) -> Tensor:
    """Return images of any size as one batch for the tower, padded with black.

    Args:
        images: uint8 [H, W, 3] each.
        height: of the result.
        width: of the result.
        centred: padding on both sides and values clamped (openpi), or left and above (SmolVLA).
        averaged: sizes are changed as Pillow does it, which openpi's policies use; otherwise by
            sampling.

    Returns:
        float32 [V, 3, height, width] in [-1, 1].
    """
    import torch
    import torch.nn.functional as F

    from flashrt_policies.vla.resample import resample

    fitted = []
    for image in images:
        x = image.permute(2, 0, 1)[None].to(torch.float32) / 255.0  # [1, 3, H, W]
        if tuple(x.shape[2:]) != (height, width):
            ratio = max(x.shape[3] / width, x.shape[2] / height)
            size = (int(x.shape[2] / ratio), int(x.shape[3] / ratio))
            if averaged:
                x = resample(image.permute(2, 0, 1), *size)[None] / 255.0
            else:
                x = F.interpolate(x, size=size, mode='bilinear', align_corners=False)
            down, across = height - size[0], width - size[1]
            if centred:
                sides = (across // 2, across - across // 2, down // 2, down - down // 2)
                x = F.pad(x.clamp(0.0, 1.0), sides)
            else:
                x = F.pad(x, (across, 0, down, 0))
        fitted.append(x)
    return torch.cat(fitted) * 2.0 - 1.0
