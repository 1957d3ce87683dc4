"""What is asked of the fork engine, and what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from flashrt_ros.errors import FlashrtError

Tokens: TypeAlias = 'Sequence[int] | NDArray[np.integer]'


class ForkError(FlashrtError):
    """A request that the engine cannot take; nothing was changed."""


@dataclass(frozen=True)
class Branch:
    """One question put to a state.

    Attributes:
        tokens: what follows the state, one or more.
        options: tokens among which the answer lies, one or more; their logits after the last of
            `tokens` are the answer.
    """

    tokens: Tokens
    options: Tokens


@dataclass(frozen=True)
class Request:
    """A state and the questions put to it.

    Attributes:
        state: the trunk that all branches continue, one token or more.
        branches: one or more; none sees another.
        keep: leave a checkpoint shortly before the end of the state, so that a later request
            that starts alike resumes there.
    """

    state: Tokens
    branches: Sequence[Branch]
    keep: bool = True


@dataclass(frozen=True)
class Answer:
    """The answer of one branch.

    Attributes:
        logits: float32 [options], in the order of the branch's options.
    """

    logits: NDArray[np.float32]

    @property
    def probabilities(self) -> NDArray[np.float32]:
        """Softmax over the options, float32 [options]."""
        shifted = np.exp(self.logits.astype(np.float64) - self.logits.max())
        return (shifted / shifted.sum()).astype(np.float32)

    @property
    def choice(self) -> int:
        """Index of the likeliest option; the first one on a tie."""
        return int(self.logits.argmax())


@dataclass(frozen=True)
class Checked:
    """A request as arrays.

    Attributes:
        state: int32 [L].
        questions: int32, the tokens of all branches, one branch after the other.
        options: int32, those of all options, likewise.
        lengths: tokens of each branch.
        choices: options of each branch.
        keep: as in the request.
    """

    state: NDArray[np.int32]
    questions: NDArray[np.int32]
    options: NDArray[np.int32]
    lengths: list[int]
    choices: list[int]
    keep: bool

    @classmethod
    def of(
        cls,
        state: NDArray[np.int32],
        branches: Sequence[NDArray[np.int32]],
        options: Sequence[NDArray[np.int32]],
        keep: bool,
    ) -> Checked:
        """Put the branches' tokens and options together."""
        every = np.concatenate([state, *branches, *options])
        lengths, choices = [len(x) for x in branches], [len(x) for x in options]
        cut = len(state) + sum(lengths)
        parts = (every[: len(state)], every[len(state) : cut], every[cut:])
        return cls(*parts, lengths, choices, keep)


def check(request: Request, vocab: int, longest: int) -> Checked:
    """Return a request as arrays.

    Args:
        request: what somebody asked.
        vocab: tokens in the vocabulary.
        longest: tokens that a state may have.

    Raises:
        ForkError: something is empty, too long or outside the vocabulary.
    """
    if not request.branches:
        raise ForkError('a request has no branches; want one or more')
    state = _tokens(request.state, 'the state')
    if len(state) > longest:
        raise ForkError(f'the state has {len(state)} tokens; want 1 to {longest}')
    branches = [_tokens(branch.tokens, 'a branch') for branch in request.branches]
    options = [_tokens(branch.options, 'the options') for branch in request.branches]
    found = Checked.of(state, branches, options, request.keep)
    every = found.state.base
    assert every is not None
    low, high = int(every.min()), int(every.max())
    if low < 0 or high >= vocab:
        raise ForkError(f'token {low if low < 0 else high}; want 0 to {vocab - 1}')
    return found


def _tokens(tokens: Tokens, what: str) -> NDArray[np.int32]:
    try:
        found = np.asarray(tokens, dtype=np.int32)
    except (TypeError, ValueError, OverflowError):
        raise ForkError(f'{what}: no list of tokens; want integers') from None
    if found.ndim != 1 or not len(found):
        raise ForkError(f'{what}: {found.shape} tokens; want a list of one or more')
    return found
