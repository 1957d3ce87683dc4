"""Random trees, and what each branch's prompt says by itself."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / 'policies_lm'))
import lm_oracle

from flashrt_policies.hybrid_lm.fork.engine import ForkEngine
from flashrt_policies.hybrid_lm.fork.request import Branch, Request
from flashrt_policies.hybrid_lm.model import HybridLM
from flashrt_ros.capsule.registry import Registry

VOCAB = 61


class Trees:
    """A small model, an engine over it, and random requests.

    Args:
        seed: of the requests; printed.
        capacity: longest state.
        options: of the engine.
    """

    def __init__(self, seed: int, capacity: int = 600, **options: Any) -> None:
        print('seed', seed)
        self.rng = random.Random(seed)
        self.lm: HybridLM = lm_oracle.tiny(capacity=capacity + 300, vocab=VOCAB)
        self.registry = Registry(self.lm.ctx, 1 << 28)
        options = {'streams': (256, 1024, 2048), 'slots': 3, **options}
        self.engine = ForkEngine.of(self.lm, self.registry, capacity=capacity, **options)

    def words(self, count: int) -> list[int]:
        """Return random tokens."""
        return [self.rng.randrange(VOCAB) for _ in range(count)]

    def branch(self, longest: int = 200) -> Branch:
        """Return a random branch."""
        return Branch(self.words(self.rng.randint(1, longest)), self.words(self.rng.randint(1, 6)))

    def request(self, state: int, branches: int, longest: int = 200) -> Request:
        """Return a random request on a new state."""
        return Request(self.words(state), [self.branch(longest) for _ in range(branches)])

    def alone(self, state: Any, branch: Branch) -> np.ndarray:
        """Return the options' logits of one prompt run by itself."""
        self.lm.forget()
        self.lm.append([*state, *branch.tokens])
        return self.lm.logits.tensor[list(branch.options)].numpy().copy()

    def worst(self, requests: list[Request], sample: int | None = None) -> float:
        """Run a round; return the largest error over all branches, or over `sample` of each."""
        found = self.engine.round(requests)
        worst = 0.0
        for request, answers in zip(requests, found, strict=True):
            pairs = list(zip(request.branches, answers, strict=True))
            for branch, answer in self.rng.sample(pairs, min(sample or len(pairs), len(pairs))):
                want = self.alone(request.state, branch)
                worst = max(worst, float(np.abs(want - answer.logits).max()))
        return worst
