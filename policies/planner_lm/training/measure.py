"""How good a planner is on situations it never saw: decisions right, and how far to trust it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from flashrt_policies.planner_lm.training.batches import LONG, SHORT, Batch, Questions
from flashrt_policies.planner_lm.training.network import Network

DECISIONS = ('done', 'next', 'safe', 'stop')
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
def measure(network: Network, batches: Iterable[Batch], device: torch.device) -> dict[str, Tally]:
    """Ask a network; float32, whatever it is trained in.

    Returns:
        A tally per kind; ``cannot``: of `next` where the scene lacks what is asked.
    """
    names = (*SHORT, *LONG, 'cannot')
    tallies = {name: Tally() for name in names}
    for batch in batches:
        moved = batch.to(device)
        _, memories = network.trunk(moved.tokens, moved.lengths)
        for kinds, asked in ((SHORT, moved.short), (LONG, moved.long)):
            right, sure = _ask(network, moved, asked, memories)
            here = (asked.weight > 0).cpu()
            for column, kind in enumerate(kinds):
                rows = here[:, column]
                tallies[kind].add(right[rows, column].tolist(), sure[rows, column].tolist())
                if kind == 'next':
                    rows = ~batch.possible
                    tallies['cannot'].add(
                        right[rows, column].tolist(), sure[rows, column].tolist()
                    )
    return tallies


def _ask(
    network: Network, batch: Batch, asked: Questions, memories: list
) -> tuple[torch.Tensor, torch.Tensor]:
    logits = network.branches(
        asked.tokens, asked.lengths, batch.lengths, batch.tokens.shape[1], memories
    )
    chances = logits.masked_fill(~asked.options, float('-inf')).softmax(-1)
    sure, best = chances.max(-1)
    return (best == asked.answer).cpu(), sure.cpu()
