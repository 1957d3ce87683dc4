"""SmolVLA (Shukor et al., arXiv 2506.01844): a small expert, layers of it crossing.

Crossing layers attend to the prefix alone, by keys and values that they make of the prefix's: the
same for every Euler step, so they are made once, at the end of the prefix.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from flashrt_policies.vla import sizes as names
from flashrt_policies.vla.expert import Expert, take_norm
from flashrt_policies.vla.mixing import Mixing
from flashrt_policies.vla.network import Network
from flashrt_policies.vla.tensors import Source
from flashrt_policies.vla.text import ShortPrefix

IDLE = (f'{names.SMOL}vlm.lm_head.',)


class SmolVla(Network):
    """SmolVLA: the state is the prefix's last token; the actions are causal."""

    trailing = 1
    centred = False
    smol = True

    def _build(self, source: Source, times: Tensor) -> None:
        sizes = self.sizes
        width = sizes.expert.width
        self.words = source.take(names.embedding(source, True), sizes.vocabulary, sizes.text.width)
        self.prefix = ShortPrefix(source, names.SMOL_TEXT, sizes.text)
        every = self.every
        crossing = frozenset(i for i in range(sizes.expert.layers) if every < 1 or i % every)
        self.expert = Expert(
            source,
            names.SMOL_EXPERT,
            sizes.expert,
            False,
            crossing=crossing,
            float8=self.float8,
        )
        self.norm = take_norm(source, f'{names.SMOL_EXPERT}norm', width, None, times, 0.0)
        self.state = source.take('model.state_proj.weight', sizes.text.width, sizes.state)
        self.state_bias = source.take('model.state_proj.bias', sizes.text.width)
        self.mixing = Mixing(source, times, self.sizes.action)

    def embed(self, features: Tensor, words: Tensor, state: Tensor) -> Tensor:
        """Return image and prompt tokens times the root of their width, then the state's."""
        root = self.words.shape[1] ** 0.5
        last = F.linear(state.to(self.dtype)[None], self.state, self.state_bias)
        return torch.cat((features * root, F.embedding(words, self.words) * root, last))

    def enter(self, x: Tensor, step: int, first: tuple[Tensor, ...]) -> Tensor:
        """Return the actions' tokens with the time mixed in."""
        return self.mixing(x, step)

    def suffix_ranks(self, device: torch.device) -> Tensor:
        """An action sees those before it."""
        return (torch.arange(self.suffix_tokens, device=device) + 2).int()
