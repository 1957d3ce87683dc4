"""Subgoal encoder over utf-8 bytes: residual convolutions, then mean and maximum over bytes.

It reads character n-grams, so that a rephrased instruction shares most of its evidence with the
one that was trained; letters are folded to lower case inside the network.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flashrt_policies.flow_vla.config import FlowSizes

SYMBOLS = 257  # padding and 256 bytes


def fold(rows: Tensor) -> Tensor:
    """Return rows (bytes plus one) with the letters A to Z as a to z."""
    capital = (rows > ord('A')) & (rows <= ord('Z') + 1)
    return torch.where(capital, rows + (ord('a') - ord('A')), rows)


class TextEncoder(nn.Module):
    """Bytes to one vector."""

    lower: Tensor  # int64 [257], each symbol with its letter folded
    least: Tensor
    nothing: Tensor

    def __init__(self, sizes: FlowSizes) -> None:
        super().__init__()
        width, kernel = sizes.text_width, sizes.text_kernel
        self.register_buffer('lower', fold(torch.arange(SYMBOLS)), persistent=False)
        self.register_buffer('least', torch.tensor(-1e4), persistent=False)
        self.register_buffer('nothing', torch.tensor(0.0), persistent=False)
        self.embed = nn.Embedding(SYMBOLS, width)
        nn.init.normal_(self.embed.weight, std=0.3)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(sizes.text_layers))
        self.convs = nn.ModuleList(
            nn.Conv1d(width, width, kernel, padding=kernel // 2) for _ in range(sizes.text_layers)
        )
        self.out = nn.Sequential(
            nn.LayerNorm(2 * width),
            nn.Linear(2 * width, width),
            nn.SiLU(),
            nn.Linear(width, width),
        )

    def forward(self, rows: Tensor) -> Tensor:
        """Encode subgoal rows.

        Args:
            rows: int32 or int64 [B, L], byte plus one, zero is padding; an empty row is allowed.

        Returns:
            [B, E].
        """
        rows = self.lower.take(rows.clamp(0, SYMBOLS - 1).long())
        mask = (rows > 0)[..., None]  # [B, L, 1]
        x = self.embed(rows)  # [B, L, E]
        real = mask.to(x.dtype)
        x = x * real
        for norm, conv in zip(self.norms, self.convs, strict=True):
            y = F.silu(norm(x)) * real
            x = x + conv(y.transpose(1, 2)).transpose(1, 2) * real
        count = real.sum(1).clamp(min=1.0)
        mean = x.sum(1) / count
        top = torch.where(mask, x, self.least).amax(1)
        top = torch.where(mask.any(1), top, self.nothing)
        return self.out(torch.cat((mean, top), dim=-1))
