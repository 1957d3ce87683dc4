"""π0 (Black et al., arXiv 2410.24164): the state is a token of the expert, beside the actions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from flashrt_policies.kernels.vla.linear import project
from flashrt_policies.kernels.vla.matrix import Matrix
from flashrt_policies.vla import sizes as names
from flashrt_policies.vla.expert import Expert, take_norm
from flashrt_policies.vla.mixing import Mixing
from flashrt_policies.vla.network import Network
from flashrt_policies.vla.tensors import Source
from flashrt_policies.vla.text import LongPrefix

# Tensors of a checkpoint that play no part in acting.
IDLE = (f'{names.PI}paligemma.lm_head.', f'{names.PI}gemma_expert.lm_head.')


class PaliGemma(Network):
    """What π0 and π0.5 share: images and prompt before, a Gemma expert behind."""

    def _take_prefix(self, source: Source) -> None:
        text = self.sizes.text
        self.words = source.take(names.embedding(source, False), self.sizes.vocabulary, text.width)
        # As transformers has it: the root rounded to the type of the embedding.
        self.root = float(torch.tensor(text.width**0.5, dtype=self.words.dtype))
        self.prefix = LongPrefix(source, names.PI_TEXT, text)

    def embed(self, features: Tensor, words: Tensor, state: Tensor) -> Tensor:
        """Return image tokens and prompt tokens, these times the root of their width."""
        return torch.cat((features, F.embedding(words, self.words) * self.root))


class Pi0(PaliGemma):
    """π0: plain norms; the time enters with the actions."""

    leading = 1

    def _build(self, source: Source, times: Tensor) -> None:
        self._take_prefix(source)
        width, wide = self.sizes.expert.width, torch.float32
        self.expert = Expert(source, names.PI_EXPERT, self.sizes.expert, True, float8=self.float8)
        self.norm = take_norm(source, f'{names.PI_EXPERT}norm', width, None, times, 1.0)
        self.state = Matrix(source.take('model.state_proj.weight', width, self.sizes.state))
        self.state_bias = source.take('model.state_proj.bias', width, dtype=wide)
        self.mixing = Mixing(source, times, self.sizes.action)

    def open(self, state: Tensor) -> tuple[Tensor, ...]:
        """Return the state's token."""
        return (project(state[None], self.state, self.state_bias),)

    def enter(self, x: Tensor, step: int, first: tuple[Tensor, ...]) -> Tensor:
        """Return the state's token and the actions' with the time mixed in."""
        return torch.cat((*first, self.mixing(x, step)))

    def suffix_ranks(self, device: torch.device) -> Tensor:
        """The state does not see the actions; the actions see each other."""
        index = torch.arange(self.suffix_tokens, device=device)
        return torch.where(index < 1, 1, 2).int()
