"""How good a planner is on situations it never saw: decisions right, and how far to trust it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from flashrt_policies.planner_lm.training.batches import LONG, SHORT, Batch
from flashrt_policies.planner_lm.training.examples import DECISIONS
from flashrt_policies.planner_lm.training.network import Network

BINS = 15


@dataclass
class Tally:
    """Answers of one kind.

    Attributes:
        right: whether each answer was right.
        sure: the probability that was given to it.
    """

    right: list[bool] = field(default_factory=list)
    sure: list[float] = field(default_factory=list)

    def add(self, right: Iterable[bool], sure: Iterable[float]) -> None:
        """Count answers."""
        self.right += right
        self.sure += sure

    @property
    def accuracy(self) -> float:
        """Share of right answers; NaN without any."""
        return float(np.mean(self.right)) if self.right else float('nan')

    @property
    def calibration_error(self) -> float:
        """Expected calibration error over `BINS` equal bins (Guo et al., arXiv 1706.04599)."""
        return calibration_error(self.right, self.sure)


def calibration_error(right: Sequence[bool], sure: Sequence[float]) -> float:
    """Return the mean distance of confidence and accuracy, weighted by the answers in each bin."""
    hit, given = np.asarray(right, float), np.asarray(sure, float)
    if not len(hit):
        return float('nan')
    bins = np.minimum((given * BINS).astype(int), BINS - 1)
    gaps = (abs(hit[bins == b].sum() - given[bins == b].sum()) for b in range(BINS))
    return float(sum(gaps)) / len(hit)


def summarise(tallies: dict[str, Tally]) -> dict[str, dict[str, float]]:
    """Return accuracy, calibration error and count per kind, and of all decisions together."""
    together = Tally()
    for name in DECISIONS:
        together.add(tallies[name].right, tallies[name].sure)
    return {
        name: {
            'right': round(tally.accuracy, 5),
            'calibration_error': round(tally.calibration_error, 5),
            'count': len(tally.right),
        }
        for name, tally in {'decisions': together, **tallies}.items()
        if tally.right
    }


@torch.no_grad()
def ask(
    network: Network, batches: Iterable[Batch], device: torch.device
) -> Iterator[tuple[str, Batch, Tensor, Tensor]]:
    """Put every question to a network; float32, whatever it is trained in.

    Yields:
        The question, its batch, the options' logits [B, vocabulary] and the right token [B].
    """
    for batch in batches:
        moved = batch.to(device)
        groups = (moved.short, moved.long)
        *_, read = network(moved.tokens, moved.lengths, groups)
        for kinds, asked, hidden in zip((SHORT, LONG), groups, read, strict=True):
            logits = network.answers(hidden, asked.lengths).float()
            logits = logits.masked_fill(~asked.options, float('-inf'))
            for column, kind in enumerate(kinds):
                yield kind, batch, logits[:, column].cpu(), asked.answer[:, column].cpu()


def measure(network: Network, batches: Iterable[Batch], device: torch.device) -> dict[str, Tally]:
    """Ask a network.

    Returns:
        A tally per kind; ``cannot``: of `next` where the scene lacks what is asked.
    """
    tallies = {name: Tally() for name in (*DECISIONS, 'cannot')}
    for kind, batch, logits, answer in ask(network, batches, device):
        sure, best = logits.softmax(-1).max(-1)
        right = best == answer
        tallies[kind].add(right.tolist(), sure.tolist())
        if kind == 'next':
            lacking = ~batch.possible
            tallies['cannot'].add(right[lacking].tolist(), sure[lacking].tolist())
    return tallies


@torch.no_grad()
def temperature(network: Network, batches: Iterable[Batch], device: torch.device) -> float:
    """Return by what to divide a network's logits so that its probabilities are to be trusted."""
    found = [(logits.double(), answer) for _, _, logits, answer in ask(network, batches, device)]
    return fitted(torch.cat([one for one, _ in found]), torch.cat([one for _, one in found]))


def fitted(logits: Tensor, answers: Tensor) -> float:
    """Return the temperature, 1/8 to 8, that makes the right answers likeliest.

    Guo et al., arXiv 1706.04599, section 4.2; found by halving the interval of its logarithm.

    Args:
        logits: float64 [N, options], -inf where there is no option.
        answers: int64 [N], the right ones.
    """
    finite = logits.masked_fill(logits.isinf(), 0.0)
    given = finite.gather(1, answers[:, None])[:, 0]
    low, high = -math.log(8), math.log(8)
    for _ in range(40):
        middle = (low + high) / 2
        chances = (logits / math.exp(middle)).softmax(-1)
        # The loss falls with the temperature as long as more is expected than is right.
        hotter = bool((chances * finite).sum(-1).mean() > given.mean())
        low, high = (middle, high) if hotter else (low, middle)
    return math.exp((low + high) / 2)
