"""The planner's tokens: bytes, joined inside the words of what it is trained on.

A byte-level vocabulary (byte-pair encoding, Sennrich et al., arXiv 1508.07909): any text can be
written in it, and a situation takes a third of the rows that its bytes would. Digits, letters that
stand for skills, blanks and marks stay tokens of their own, so that numbers are read digit by
digit and a letter is the same token wherever it stands.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from flashrt_policies.hybrid_lm.text import STYLE, FileTokenizer
from flashrt_policies.planner_lm.training.examples import Examples
from flashrt_policies.recipes import RecipeError

TEXTS = 2000  # situations that it is made from
_APART = ' ?[A-Z]?[a-z]+|.|\n'  # a word with the blank before it; anything else alone


def build(examples: Examples, size: int) -> FileTokenizer:
    """Make the vocabulary of a split; the same examples give the same one.

    Args:
        examples: what will be trained on.
        size: how many tokens there are to be, 256 of them the bytes.

    Raises:
        RecipeError: the words do not make so many.
    """
    inner = tokenizers.Tokenizer(models.BPE())
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    words = pre_tokenizers.Split(tokenizers.Regex(_APART), 'isolated')
    inner.pre_tokenizer = pre_tokenizers.Sequence([words, bytes_])
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=bytes_.alphabet(), show_progress=False
    )
    inner.train_from_iterator(_texts(examples), trainer)
    made = FileTokenizer(inner, style='short')
    if made.size < size:
        raise RecipeError(f'model.vocabulary is {size}; want at most the {made.size} there are')
    return made


def _texts(examples: Examples) -> Iterator[str]:
    for index in range(TEXTS):
        situation = examples[index].situation
        yield situation.text
        for question in situation.questions:
            yield '|'.join((question.text, *question.options))


def digest(tokenizer: FileTokenizer) -> str:
    """Return its sha256."""
    return hashlib.sha256(tokenizer.inner.to_str().encode()).hexdigest()


def save(tokenizer: FileTokenizer, folder: Path) -> None:
    """Write it as a checkpoint has it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / 'tokenizer.json').write_text(tokenizer.inner.to_str(pretty=True) + '\n', 'utf-8')
    config = json.dumps({STYLE: tokenizer.style}, indent=2)
    (folder / 'tokenizer_config.json').write_text(config + '\n', 'utf-8')
