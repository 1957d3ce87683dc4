"""Examples as padded byte arrays: states, and two groups of questions, short and long ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from random import Random

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from flashrt_policies.hybrid_lm.text import ByteTokenizer
from flashrt_policies.planner_lm.prompt import Asked, Prompter
from flashrt_policies.planner_lm.training.examples import Example, Examples

# Questions of one kind stand in one column; what an example lacks has weight 0.
SHORT = ('done', 'safe', 'stop', 'possible')
LONG = ('next', 'side')
SIDES = ('first', 'last', 'asked', 'left')  # a side question is one of these
GROUP = 4  # batches that are drawn at once and sorted by length among themselves
# Widths of states, short and long questions: few shapes, so that few graphs are captured.
ROOMS = ((264, 24, 64), (336, 24, 80), (424, 24, 96), (640, 24, 112), (640, 24, 256))


@dataclass
class Questions:
    """One group of questions.

    Attributes:
        tokens: [B, R, S], padded at the end.
        lengths: int64 [B, R].
        options: bool [B, R, 256], bytes that are options.
        answer: int64 [B, R], the byte of the right one.
        weight: float32 [B, R], 0 where there is no question.
    """

    tokens: Tensor
    lengths: Tensor
    options: Tensor
    answer: Tensor
    weight: Tensor

    def to(self, device: torch.device) -> Questions:
        """Return a copy on a device, tokens as int64."""
        moved = [getattr(self, f.name).to(device, non_blocking=True) for f in fields(self)]
        return Questions(moved[0].long(), *moved[1:])


@dataclass
class Batch:
    """States and their questions.

    Attributes:
        tokens: [B, T], padded at the end.
        lengths: int64 [B].
        short: the `SHORT` questions.
        long: the `LONG` questions.
        possible: bool [B], the instruction can be carried out.
    """

    tokens: Tensor
    lengths: Tensor
    short: Questions
    long: Questions
    possible: Tensor

    def to(self, device: torch.device) -> Batch:
        """Return a copy on a device, tokens as int64."""
        return Batch(
            self.tokens.to(device, non_blocking=True).long(),
            self.lengths.to(device, non_blocking=True),
            self.short.to(device),
            self.long.to(device),
            self.possible.to(device, non_blocking=True),
        )


class Batches(Dataset[list[Batch]]):
    """Groups of `GROUP` batches by number; a number always gives the same ones.

    Args:
        examples: where they come from.
        size: B, situations per batch.
        side: weight of questions that are not decisions.
    """

    def __init__(self, examples: Examples, size: int, side: float = 1.0) -> None:
        self.examples, self.size, self.side = examples, size, side
        self.prompter = Prompter(ByteTokenizer())

    def __getitem__(self, index: int) -> list[Batch]:
        """Return the group of that number."""
        count = GROUP * self.size
        drawn = [self.examples[i] for i in range(index * count, (index + 1) * count)]
        drawn.sort(key=lambda example: len(example.situation.text))
        order = list(range(GROUP))
        Random(index).shuffle(order)
        parts = (drawn[i * self.size : (i + 1) * self.size] for i in order)
        return [self.batch(part, Random(f'{index}/{n}')) for n, part in enumerate(parts)]

    def batch(self, examples: Sequence[Example], rng: Random) -> Batch:
        """Return examples as one batch; `rng` chooses among questions of a column."""
        states = [self.prompter.state(example.situation.text) for example in examples]
        short, long = (
            [self._asked(example, name, rng) for example in examples for name in names]
            for names in (SHORT, LONG)
        )
        parts = (states, *([asked.tokens for asked, _, _ in rows] for rows in (short, long)))
        need = tuple(max(map(len, part)) for part in parts)
        fitting = (room for room in ROOMS if all(a >= b for a, b in zip(room, need, strict=True)))
        room = next(fitting, need)
        tokens, lengths = _pad(states, room[0])
        return Batch(
            tokens, lengths,
            _questions(short, len(examples), room[1]), _questions(long, len(examples), room[2]),
            torch.tensor([example.possible for example in examples]),
        )  # fmt: skip

    def _asked(self, example: Example, name: str, rng: Random) -> tuple[Asked, int, float]:
        if name == 'side':
            name = rng.choice(SIDES)
        if name not in example.kinds:
            return Asked([0], [0, 1]), 0, 0.0
        at = example.kinds.index(name)
        weight = 1.0 if at < 4 else self.side
        return self.prompter.question(example.questions[at]), example.answers[at], weight


def _questions(rows: Sequence[tuple[Asked, int, float]], size: int, width: int) -> Questions:
    tokens, lengths = _pad([asked.tokens for asked, _, _ in rows], width)
    options = np.zeros((len(rows), 256), bool)
    for mask, (asked, _, _) in zip(options, rows, strict=True):
        mask[asked.options] = True
    answer = torch.tensor([asked.options[right] for asked, right, _ in rows])
    weight = torch.tensor([weight for _, _, weight in rows])
    shape = (size, -1)
    return Questions(
        tokens.unflatten(0, shape), lengths.unflatten(0, shape),
        torch.from_numpy(options).unflatten(0, shape), answer.unflatten(0, shape),
        weight.unflatten(0, shape),
    )  # fmt: skip


def _pad(rows: Sequence[Sequence[int]], width: int) -> tuple[Tensor, Tensor]:
    lengths = [len(row) for row in rows]
    out = np.zeros((len(rows), width), np.uint8)
    for line, row in zip(out, rows, strict=True):
        line[: len(row)] = row
    return torch.from_numpy(out), torch.tensor(lengths)


def stream(batches: Batches, first: int, workers: int) -> Iterator[Batch]:
    """Yield batches from number `first` on, without end; other processes make them up."""
    group, skip = divmod(first, GROUP)
    loader: DataLoader[list[Batch]] = DataLoader(
        batches, batch_size=None, sampler=_Count(group), num_workers=workers,
        prefetch_factor=2 if workers else None, persistent_workers=False,
    )  # fmt: skip
    for found in loader:
        yield from found[skip:]
        skip = 0


class _Count:
    """The numbers from `first` on, without end."""

    def __init__(self, first: int) -> None:
        self.first = first

    def __iter__(self) -> Iterator[int]:
        index = self.first
        while True:
            yield index
            index += 1
