"""Examples as padded arrays of tokens: states, and two groups of questions, short and long."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from random import Random

import numpy as np
import torch
from tokenizers import Encoding
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from flashrt_policies.hybrid_lm.text import FileTokenizer
from flashrt_policies.planner_lm.prompt import Asked, Prompter
from flashrt_policies.planner_lm.training.examples import DECISIONS, Example, Examples

# Questions of one kind stand in one column.
SHORT, LONG = DECISIONS[1:], DECISIONS[:1]
PLAN = '\nPlan? ='  # a question that training alone asks: the plan, spelled out
GROUP = 8  # batches that are drawn at once and sorted by length among themselves
# Widths of states, short and long questions: few shapes, so that few graphs are captured.
ROOMS = ((96, 12, 32), (128, 12, 32), (160, 12, 32), (192, 12, 32), (256, 16, 48), (320, 20, 160))
NONE = -1  # nothing is taught at this token


@dataclass
class Questions:
    """One group of questions.

    Attributes:
        tokens: [B, R, S], padded at the end.
        lengths: int64 [B, R].
        options: bool [B, R, vocabulary], tokens that are options.
        answer: int64 [B, R], the token of the right one.
    """

    tokens: Tensor
    lengths: Tensor
    options: Tensor
    answer: Tensor

    def pin_memory(self) -> Questions:
        """Return a copy that a device can fetch while the host goes on."""
        return Questions(*(getattr(self, f.name).pin_memory() for f in fields(self)))

    def to(self, device: torch.device) -> Questions:
        """Return a copy on a device, tokens as int64."""
        moved = [getattr(self, f.name).to(device, non_blocking=True) for f in fields(self)]
        return Questions(moved[0].long(), *moved[1:])


@dataclass
class Batch:
    """States, their questions, and what is taught besides.

    Attributes:
        tokens: [B, T], padded at the end.
        lengths: int64 [B].
        marks: [B, T], a class of `marks.CLASSES`, or `NONE`.
        meant: [B, T], the number of a skill, or `NONE`.
        short: the `SHORT` questions; in one more column the plan, spelled out.
        plan: [B, S], the token that follows each of that column's, or `NONE`.
        long: the `LONG` questions.
        possible: bool [B], the instruction can be carried out.
    """

    tokens: Tensor
    lengths: Tensor
    marks: Tensor
    meant: Tensor
    short: Questions
    plan: Tensor
    long: Questions
    possible: Tensor

    def pin_memory(self) -> Batch:
        """Return a copy that a device can fetch while the host goes on."""
        return Batch(*(getattr(self, f.name).pin_memory() for f in fields(self)))

    def to(self, device: torch.device) -> Batch:
        """Return a copy on a device, everything as int64."""
        return Batch(
            self.tokens.to(device, non_blocking=True).long(),
            self.lengths.to(device, non_blocking=True),
            self.marks.to(device, non_blocking=True).long(),
            self.meant.to(device, non_blocking=True).long(),
            self.short.to(device),
            self.plan.to(device, non_blocking=True).long(),
            self.long.to(device),
            self.possible.to(device, non_blocking=True),
        )


class Batches(Dataset[list[Batch]]):
    """Groups of `GROUP` batches by number; a number always gives the same ones.

    Args:
        examples: where they come from.
        size: B, situations per batch.
        tokenizer: the planner's.
    """

    def __init__(self, examples: Examples, size: int, tokenizer: FileTokenizer) -> None:
        self.examples, self.size, self.tokenizer = examples, size, tokenizer
        self.prompter = Prompter(tokenizer)
        self._plan_asked = tokenizer.encode(PLAN)

    def __getitem__(self, index: int) -> list[Batch]:
        """Return the group of that number."""
        count = GROUP * self.size
        drawn = [self.examples[i] for i in range(index * count, (index + 1) * count)]
        drawn.sort(key=lambda example: len(example.situation.text))
        order = list(range(GROUP))
        Random(index).shuffle(order)
        return [self.batch(drawn[i * self.size : (i + 1) * self.size]) for i in order]

    def batch(self, examples: Sequence[Example]) -> Batch:
        """Return examples as one batch."""
        read = [self.tokenizer.inner.encode(example.situation.text) for example in examples]
        states = [one.ids for one in read]
        asked = [
            [self.prompter.question(question) for question in example.situation.questions]
            for example in examples
        ]
        plans = [self._plan(example, of[0]) for example, of in zip(examples, asked, strict=True)]
        short = [
            one
            for of, example, plan in zip(asked, examples, plans, strict=True)
            for one in (*zip(of[1:], example.answers[1:], strict=True), (plan, 0))
        ]
        long = [(of[0], e.answers[0]) for of, e in zip(asked, examples, strict=True)]
        questions = ([one.tokens for one, _ in rows] for rows in (short, long))
        need = tuple(max(map(len, part)) for part in (states, *questions))
        fitting = (room for room in ROOMS if all(a >= b for a, b in zip(room, need, strict=True)))
        room = next(fitting, need)
        tokens, lengths = _pad(states, room[0])
        marks, meant = (
            _taught(tokens.shape, read, [getattr(example, taught) for example in examples])
            for taught in ('marks', 'meant')
        )
        spelled = np.full((len(examples), room[1]), NONE, np.int16)
        for row, plan in zip(spelled, plans, strict=True):
            before = len(self._plan_asked)
            row[before - 1 : len(plan.tokens)] = [*plan.tokens[before:], *plan.options]
        count = len(examples)
        return Batch(
            tokens, lengths, marks, meant, self._questions(short, count, room[1]),
            torch.from_numpy(spelled), self._questions(long, count, room[2]),
            torch.tensor([example.possible for example in examples]),
        )  # fmt: skip

    def _plan(self, example: Example, following: Asked) -> Asked:
        """Return the plan as a question that holds all of it but the last token, the option."""
        by_name = dict(zip(example.situation.options, following.options, strict=True))
        spelled = [by_name[name] for name in example.plan]
        return Asked([*self._plan_asked, *spelled[:-1]], spelled[-1:])

    def _questions(self, rows: Sequence[tuple[Asked, int]], size: int, width: int) -> Questions:
        tokens, lengths = _pad([asked.tokens for asked, _ in rows], width)
        options = np.zeros((len(rows), self.tokenizer.size), bool)
        for mask, (asked, _) in zip(options, rows, strict=True):
            mask[asked.options] = True
        answer = torch.tensor([asked.options[right] for asked, right in rows])
        shape = (size, -1)
        return Questions(
            tokens.unflatten(0, shape), lengths.unflatten(0, shape),
            torch.from_numpy(options).unflatten(0, shape), answer.unflatten(0, shape),
        )  # fmt: skip


def _taught(
    shape: tuple[int, ...], states: Sequence[Encoding], rows: Sequence[Mapping[int, int]]
) -> Tensor:
    """Return what is taught at each token of each state, or `NONE`.

    Args:
        shape: of the batch's states.
        states: as tokens.
        rows: of each state, character -> class.
    """
    out = np.full(shape, NONE, np.int16)
    for line, state, row in zip(out, states, rows, strict=True):
        for place, class_ in row.items():
            line[state.char_to_token(place)] = class_
    return torch.from_numpy(out)


def _pad(rows: Sequence[Sequence[int]], width: int) -> tuple[Tensor, Tensor]:
    lengths = [len(row) for row in rows]
    out = np.zeros((len(rows), width), np.int16)
    for line, row in zip(out, rows, strict=True):
        line[: len(row)] = row
    return torch.from_numpy(out), torch.tensor(lengths)


def stream(batches: Batches, first: int, workers: int) -> Iterator[Batch]:
    """Yield batches from number `first` on, without end; other processes make them up."""
    group, skip = divmod(first, GROUP)
    workers = min(workers, os.cpu_count() or 1)
    loader: DataLoader[list[Batch]] = DataLoader(
        batches, batch_size=None, sampler=_Count(group), num_workers=workers,
        prefetch_factor=2 if workers else None, persistent_workers=False,
        pin_memory=torch.cuda.is_available(),
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
