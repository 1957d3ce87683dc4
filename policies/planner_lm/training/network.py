"""The hybrid language model in differentiable torch: batches of states and their questions.

The same architecture that `hybrid_lm` runs, with the parameter names of its checkpoints; a test
holds the two to the same logits. A batch is a trunk
(states) and branches (questions) that each go on from their trunk's end.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flashrt_policies.hybrid_lm.config import LMConfig
from flashrt_policies.planner_lm.training.mixers import (
    FullMixer,
    LinearMixer,
    Memory,
    Mlp,
    Norm,
    Place,
)


class Block(nn.Module):
    """One layer: mixer and MLP, each behind a norm and added to the stream."""

    def __init__(self, c: LMConfig, kind: str) -> None:
        super().__init__()
        self.input_layernorm = Norm(c.hidden, c.eps)
        self.post_attention_layernorm = Norm(c.hidden, c.eps)
        self.mixer = 'linear_attn' if kind == 'linear' else 'self_attn'
        self.add_module(self.mixer, LinearMixer(c) if kind == 'linear' else FullMixer(c))
        self.mlp = Mlp(c)

    def forward(self, x: Tensor, at: Place, memory: Memory) -> Tensor:
        """[N, S, hidden] -> [N, S, hidden]."""
        x = x + getattr(self, self.mixer)(self.input_layernorm(x), at, memory)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Stack(nn.Module):
    """Embedding, layers and the last norm, under the names of a checkpoint."""

    def __init__(self, c: LMConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(c.vocab, c.hidden)
        self.layers = nn.ModuleList(Block(c, kind) for kind in c.layers)
        self.norm = Norm(c.hidden, c.eps)

    def forward(
        self, tokens: Tensor, at: Place, memories: list[Memory], middle: int
    ) -> tuple[Tensor, Tensor]:
        """[N, S] -> normed hidden states [N, S, hidden], and the stream behind `middle` layers."""
        x = self.embed_tokens(tokens)
        inner = x
        for index, (layer, memory) in enumerate(zip(self.layers, memories, strict=True)):
            inner = x if index == middle else inner
            x = layer(x, at, memory)
        return self.norm(x), inner


class Network(nn.Module):
    """The whole model; the head is the embedding.

    Args:
        config: its dimensions: of the Qwen3.5 kind, tied.
        marks: classes of a head on the stream two thirds of the way up, which is not part of a
            checkpoint: it teaches the layers below what the ones above will need.
    """

    def __init__(self, config: LMConfig, marks: int = 0) -> None:
        super().__init__()
        self.config = config
        self.model = Stack(config)
        self.middle = 2 * len(config.layers) // 3
        self.mark_norm = Norm(config.hidden, config.eps)
        self.mark_embed = nn.Embedding(marks, config.hidden)
        for name, parameter in self.named_parameters():
            if parameter.ndim >= 2 and 'conv1d' not in name:
                nn.init.normal_(parameter, std=0.6 / math.sqrt(parameter.shape[-1]))
            if name.endswith(('o_proj.weight', 'out_proj.weight', 'down_proj.weight')):
                parameter.data /= math.sqrt(2 * len(config.layers))

    def exported(self) -> dict[str, Tensor]:
        """Return the parameters that make up a checkpoint."""
        return {k: v for k, v in self.state_dict().items() if k.startswith('model.')}

    def trunk(self, tokens: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, list[Memory]]:
        """Read states.

        Args:
            tokens: int64 [B, T], padded at the end.
            lengths: int64 [B].

        Returns:
            The normed hidden states [B, T, hidden], the marks' logits [B, T, marks], and what
            branches need of each layer.
        """
        place = torch.arange(tokens.shape[1], device=tokens.device)
        real = place < lengths[:, None]
        at = Place(real, place.expand_as(tokens), None, 0)
        memories = [Memory() for _ in self.config.layers]
        hidden, inner = self.model(tokens, at, memories, self.middle)
        marks = F.linear(self.mark_norm(inner), self.mark_embed.weight)
        return hidden, marks, memories

    def branches(
        self, tokens: Tensor, lengths: Tensor, trunk: Tensor, width: int, memories: list[Memory]
    ) -> Tensor:
        """Read questions behind their states.

        Args:
            tokens: int64 [B, R, S], padded at the end.
            lengths: int64 [B, R].
            trunk: int64 [B], lengths of the states.
            width: T, to which the states were padded.
            memories: from `trunk`.

        Returns:
            The normed hidden states [B, R, S, hidden].
        """
        trunks, count, size = tokens.shape
        place = torch.arange(size, device=tokens.device)
        real = (place < lengths[..., None]).flatten(0, 1)
        position = (trunk[:, None] + place).repeat_interleave(count, 0)
        ahead = torch.arange(width, device=tokens.device) < trunk[:, None]  # [B, T]
        owner = torch.arange(count, device=tokens.device).repeat_interleave(size)
        order = place.repeat(count)
        own = (owner[:, None] == owner) & (order[:, None] >= order)  # [R * S, R * S]
        mask = torch.cat(
            (
                ahead[:, None, None].expand(-1, 1, count * size, -1),
                own[None, None].expand(trunks, 1, -1, -1),
            ),
            -1,
        )
        at = Place(real, position, mask, count)
        hidden, _ = self.model(tokens.flatten(0, 1), at, memories, self.middle)
        return hidden.unflatten(0, (trunks, count))

    def head(self, hidden: Tensor) -> Tensor:
        """Return logits [..., vocab] of normed hidden states."""
        return F.linear(hidden, self.model.embed_tokens.weight)

    def answers(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """Return logits [B, R, vocab] behind the last token of each question.

        Args:
            hidden: from `branches`.
            lengths: int64 [B, R].
        """
        place = torch.arange(hidden.shape[2], device=hidden.device)
        last = place == lengths[..., None] - 1  # [B, R, S]
        return self.head((hidden * last[..., None]).sum(2))
