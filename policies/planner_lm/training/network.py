"""The hybrid language model in differentiable torch: batches of states and their questions.

The same architecture that `hybrid_lm` runs, with the parameter names of its checkpoints; a test
holds the two to the same logits. A batch is a trunk
(states) and branches (questions) that each go on from their trunk's end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flashrt_policies.hybrid_lm.config import LMConfig
from flashrt_policies.kernels.attention import inverse_frequencies
from flashrt_policies.planner_lm.training.mixers import FullMixer, LinearMixer, Mlp, Norm, Place


class Block(nn.Module):
    """One layer: mixer and MLP, each behind a norm and added to the stream."""

    def __init__(self, c: LMConfig, kind: str) -> None:
        super().__init__()
        self.input_layernorm = Norm(c.hidden, c.eps)
        self.post_attention_layernorm = Norm(c.hidden, c.eps)
        self.mixer = 'linear_attn' if kind == 'linear' else 'self_attn'
        self.add_module(self.mixer, LinearMixer(c) if kind == 'linear' else FullMixer(c))
        self.mlp = Mlp(c)

    def forward(self, x: Tensor, at: Place) -> Tensor:
        """[B, L, hidden] -> [B, L, hidden]."""
        x = x + getattr(self, self.mixer)(self.input_layernorm(x), at)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Stack(nn.Module):
    """Embedding, layers and the last norm, under the names of a checkpoint."""

    def __init__(self, c: LMConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(c.vocab, c.hidden)
        self.layers = nn.ModuleList(Block(c, kind) for kind in c.layers)
        self.norm = Norm(c.hidden, c.eps)

    def forward(self, tokens: Tensor, at: Place) -> tuple[Tensor, list[Tensor]]:
        """[B, L] -> normed hidden states [B, L, hidden], and the stream before every layer."""
        x = self.embed_tokens(tokens)
        before = []
        for layer in self.layers:
            before.append(x)
            x = layer(x, at)
        return self.norm(x), before


class Asked(Protocol):
    """A group of questions, as `batches.Questions`: int64 [B, R, S], and lengths [B, R]."""

    tokens: Tensor
    lengths: Tensor


class Network(nn.Module):
    """The whole model; the head is the embedding.

    Args:
        config: its dimensions: of the Qwen3.5 kind, tied.
        marks: classes of a head on the stream two thirds of the way up, which is not part of a
            checkpoint: it teaches the layers below what the ones above will need.
        skills: likewise of a head one third of the way up.
    """

    frequencies: Tensor

    def __init__(self, config: LMConfig, marks: int = 0, skills: int = 0) -> None:
        super().__init__()
        self.config = config
        c = config
        freq = inverse_frequencies(c.rotary_dim, c.rope_theta, c.rope_scaling)
        self.register_buffer('frequencies', freq, persistent=False)
        self.model = Stack(config)
        self.mark_norm, self.skill_norm = Norm(c.hidden, c.eps), Norm(c.hidden, c.eps)
        self.mark_embed = nn.Embedding(marks, c.hidden)
        self.skill_embed = nn.Embedding(skills, c.hidden)
        for name, parameter in self.named_parameters():
            if parameter.ndim >= 2 and 'conv1d' not in name:
                nn.init.normal_(parameter, std=0.6 / math.sqrt(parameter.shape[-1]))
            if name.endswith(('o_proj.weight', 'out_proj.weight', 'down_proj.weight')):
                parameter.data /= math.sqrt(2 * len(config.layers))

    def exported(self) -> dict[str, Tensor]:
        """Return the parameters that make up a checkpoint."""
        return {k: v for k, v in self.state_dict().items() if k.startswith('model.')}

    def forward(
        self, tokens: Tensor, lengths: Tensor, asked: Sequence[Asked] = ()
    ) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
        """Read states, and questions behind them.

        Args:
            tokens: int64 [B, T], padded at the end.
            lengths: int64 [B].
            asked: groups of questions.

        Returns:
            The normed hidden states [B, T, hidden], the logits of the marks
            [B, T, marks] and of the skills [B, T, skills], and of each group the normed hidden
            states [B, R, S, hidden].
        """
        at = self._place(tokens, lengths, asked)
        rows = torch.cat((tokens, *(group.tokens.flatten(1) for group in asked)), 1)
        every, before = self.model(rows, at)
        low, high = (before[part * len(before) // 3][:, : at.width] for part in (1, 2))
        marks = F.linear(self.mark_norm(high), self.mark_embed.weight)
        skills = F.linear(self.skill_norm(low), self.skill_embed.weight)
        hidden, *others = every.split([at.width, *(r * s for r, s in at.groups)], 1)
        groups = [y.unflatten(1, size) for y, size in zip(others, at.groups, strict=True)]
        return hidden, marks, skills, groups

    def _place(self, tokens: Tensor, lengths: Tensor, asked: Sequence[Asked]) -> Place:
        count, width = tokens.shape
        place = torch.arange(width, device=tokens.device)
        real, position = [place < lengths[:, None]], [place.expand(count, -1)]
        owner, order = [], []  # of the branches' rows
        for i, group in enumerate(asked):
            _, many, size = group.tokens.shape
            row = torch.arange(size, device=tokens.device)
            real.append((row < group.lengths[..., None]).flatten(1))
            order.append(row.repeat(many))
            position.append(lengths[:, None] + order[-1])
            which = torch.arange(many, device=tokens.device).repeat_interleave(size)
            owner.append(which + 1000 * i)  # no two branches of one state alike
        mask = None
        if asked:
            own, at = torch.cat(owner), torch.cat(order)
            inside = (own[:, None] == own) & (at[:, None] >= at)
            seen = (real[0][:, None].expand(-1, len(own), -1), inside.expand(count, -1, -1))
            mask = torch.cat(seen, -1)[:, None]
        angle = torch.cat(position, 1)[..., None].float() * self.frequencies
        groups = tuple((g.tokens.shape[1], g.tokens.shape[2]) for g in asked)
        return Place(torch.cat(real, 1), angle.cos(), angle.sin(), mask, width, groups)

    def head(self, hidden: Tensor) -> Tensor:
        """Return logits [..., vocab] of normed hidden states."""
        return F.linear(hidden, self.model.embed_tokens.weight)

    def answers(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """Return logits [B, R, vocab] behind the last token of each question.

        Args:
            hidden: of one group.
            lengths: int64 [B, R].
        """
        place = torch.arange(hidden.shape[2], device=hidden.device)
        last = place == lengths[..., None] - 1  # [B, R, S]
        return self.head((hidden * last[..., None]).sum(2))
