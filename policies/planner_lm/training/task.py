"""Training of a planner on made-up situations, as a task for the trainer."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flashrt_policies.hybrid_lm.config import parse_config
from flashrt_policies.hybrid_lm.text import FileTokenizer
from flashrt_policies.planner_lm.training.batches import (
    NONE,
    SHORT,
    Batch,
    Batches,
    Questions,
    stream,
)
from flashrt_policies.planner_lm.training.examples import Examples
from flashrt_policies.planner_lm.training.marks import CLASSES
from flashrt_policies.planner_lm.training.measure import measure, summarise
from flashrt_policies.planner_lm.training.network import Network
from flashrt_policies.planner_lm.training.recipe import PlannerRecipe
from flashrt_policies.training.optimizer import Muon


class PlannerTask:
    """One network on one split of situations.

    Args:
        recipe: every number.
        trained: situations to train on.
        held_out: situations to measure on.
        tokenizer: what both are read with.
        device: where to train.
        most: held-out situations per measurement, at most; 0 = as many as the recipe says.
    """

    def __init__(
        self,
        recipe: PlannerRecipe,
        trained: Examples,
        held_out: Examples,
        tokenizer: FileTokenizer,
        device: torch.device,
        most: int = 0,
    ) -> None:
        self.recipe, self.device = recipe, device
        self.network = fresh(recipe, len(trained.words.skills)).to(device)
        whole = recipe.train.compile
        self._read = torch.compile(self.network, dynamic=False) if whole else self.network
        self.optimizer = Muon(self.network, recipe.train)
        self._trained = Batches(trained, recipe.train.batch, tokenizer)
        self._held_out = Batches(held_out, min(recipe.train.batch, 128), tokenizer)
        self.measured = min(recipe.train.measure, most or recipe.train.measure)

    def batches(self, first: int) -> Iterator[Batch]:
        """Yield the batch of step `first`, of the next one and so on, without end."""
        return stream(self._trained, first, self.recipe.train.workers)

    def loss(self, batch: Batch) -> Tensor:
        """Return the loss of a batch: of the answers, and of what is taught besides."""
        network, train = self.network, self.recipe.train
        asked = (batch.short, batch.long)
        hidden, marks, meant, (short, long) = self._read(batch.tokens, batch.lengths, asked)
        width, count = batch.tokens.shape[1], len(SHORT)
        decided = torch.cat((self._decided(batch.long, long, 1),
                             self._decided(batch.short, short, count)))  # fmt: skip
        total = decided.mean()
        total = total + train.spell * _named(network.head(short[:, count]), batch.plan)
        taught = _named(marks, batch.marks) + _named(meant, batch.meant)
        total = total + train.marks * taught
        if train.read > 0:
            place = torch.arange(1, width, device=self.device)
            real = place < batch.lengths[:, None]
            following = torch.where(real, batch.tokens[:, 1:], NONE)
            total = total + train.read * _named(network.head(hidden[:, :-1]), following)
        return total

    def _decided(self, asked: Questions, hidden: Tensor, count: int) -> Tensor:
        """Return the loss of each answer of the first `count` columns."""
        logits = self.network.answers(hidden[:, :count], asked.lengths[:, :count]).float()
        logits = logits.masked_fill(~asked.options[:, :count], float('-inf'))
        answer = asked.answer[:, :count].flatten()
        return F.cross_entropy(logits.flatten(0, 1), answer, reduction='none')

    def measure(self, average: nn.Module) -> dict[str, Any]:
        """Measure averaged weights on held-out situations."""
        assert isinstance(average, Network)
        count = -(-self.measured // self._held_out.size)
        batches = islice(stream(self._held_out, 0, self.recipe.train.workers), count)
        return dict(summarise(measure(average, batches, self.device)))

    def told(self, measured: dict[str, Any]) -> str:
        """Return measurements in words."""
        parts = (f'{name} {100 * row["right"]:.2f} %' for name, row in measured.items())
        return f'right on held-out situations: {", ".join(parts)}'


def fresh(recipe: PlannerRecipe, skills: int = 0) -> Network:
    """Return a new network that tells so many skills apart; the seed decides its weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        return Network(parse_config(recipe.architecture()), len(CLASSES), skills)


def _named(logits: Tensor, classes: Tensor) -> Tensor:
    """Return the mean loss of naming classes, where there are any."""
    classes = classes.flatten()
    each = F.cross_entropy(
        logits.float().flatten(0, -2), classes, ignore_index=NONE, reduction='sum'
    )
    return each / (classes != NONE).sum().clamp(min=1)
