"""Action expert: a transformer over action tokens that predicts the flow's velocity.

Each layer attends jointly to the prefix and to the other action tokens (π0, arXiv 2410.24164);
the flow time enters by adaptive layer normalisation with zero-initialised gates (DiT,
arXiv 2212.09748). The modulations depend on nothing that changes between Euler steps, so those of
all steps are computed in one matrix product before the first.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flashrt_policies.flow_vla.config import FlowSizes

REACH = 16.0  # rows of the indicator are new among old weights: as many times larger steps


def time_features(times: Tensor, width: int) -> Tensor:
    """Return sines and cosines [S, width] of flow times [S] in [0, 1]."""
    half = width // 2
    rates = torch.exp(
        torch.linspace(0.0, math.log(1000.0), half, device=times.device, dtype=torch.float32)
    )
    angles = times.float()[:, None] * rates  # [S, half]
    return torch.cat((angles.sin(), angles.cos()), dim=-1).to(times.dtype)


def modulate(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Normalise tokens [B, T, D], then scale and shift them by [B, 1, D]."""
    if len(scale) == 1:  # of one observation they are the norm's own weight and bias
        return F.layer_norm(x, x.shape[-1:], scale.flatten(), shift.flatten())
    return torch.addcmul(shift, F.layer_norm(x, x.shape[-1:]), scale)


class ExpertLayer(nn.Module):
    """Joint attention and feed-forward, modulated by the flow time."""

    def __init__(self, width: int, heads: int, mlp: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, mlp * width)
        self.down = nn.Linear(mlp * width, width)

    def forward(self, x: Tensor, kv: Tensor, mods: Tensor) -> Tensor:
        """Return action tokens [B, T, D].

        Args:
            x: [B, T, D].
            kv: keys and values of the prefix, [2, B, H, N, D/H].
            mods: [6, B, 1, D]: scale, shift, gate of attention, then of feed-forward.
        """
        scale1, shift1, gate1, scale2, shift2, gate2 = mods.unbind(0)
        y = self.qkv(modulate(x, scale1, shift1))
        y = y.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # [3, B, H, T, D/H]
        k, v = torch.cat((kv, y[1:]), dim=3)  # one copy for both, [B, H, N + T, D/H] each
        y = F.scaled_dot_product_attention(y[0], k, v)
        x = torch.addcmul(x, gate1, self.out(y.transpose(1, 2).flatten(2)))
        y = F.silu(self.up(modulate(x, scale2, shift2)))
        return torch.addcmul(x, gate2, self.down(y))


class Expert(nn.Module):
    """Velocity of the flow for a noisy action chunk."""

    unit: Tensor
    advantage: nn.Parameter | None

    def __init__(self, sizes: FlowSizes, horizon: int, action_dim: int) -> None:
        super().__init__()
        width, condition = sizes.width, sizes.condition_width
        self.condition_width = condition
        self.enter = nn.Linear(action_dim, width)
        self.place = nn.Parameter(torch.randn(horizon, width) * 0.02)
        self.time = nn.Sequential(
            nn.Linear(condition, condition), nn.SiLU(), nn.Linear(condition, condition)
        )
        self.summary = nn.Linear(width, condition)
        self.mods = nn.Linear(condition, (6 * sizes.expert_layers + 2) * width)
        self.layers = nn.ModuleList(
            ExpertLayer(width, sizes.heads, sizes.mlp) for _ in range(sizes.expert_layers)
        )
        self.leave = nn.Linear(width, action_dim)
        # Rows for bad and for good; only where a policy learns from its own episodes.
        self.register_parameter('advantage', None)
        # Scales are predicted as what they differ from one: rows 0 and 3 of each layer, the last
        # but one of all.
        unit = torch.tensor([1.0, 0, 0, 1.0, 0, 0] * sizes.expert_layers + [1.0, 0])
        self.register_buffer('unit', unit[:, None], persistent=False)
        for layer in (self.mods, self.leave):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def moments(self, times: Tensor) -> Tensor:
        """Return what the network makes of flow times [S] in [0, 1], [S, C]; of nothing else."""
        features = time_features(times, self.condition_width)
        return self.time(features.to(self.place.dtype))

    def modulations(
        self, moments: Tensor, summary: Tensor, indicator: Tensor | None = None
    ) -> Tensor:
        """Return modulations [..., B, 6 L + 2, D] of flow times and prefix summaries.

        Args:
            moments: of the flow times, [..., B or 1, C].
            summary: what the prefix is about, [..., B, D].
            indicator: how good the chunk is said to be, int64 [B], see `advantage`; a network
                without rows for it takes none.
        """
        condition = moments + self.summary(summary)
        if indicator is not None:
            assert self.advantage is not None
            rows = F.pad(self.advantage, (0, 0, 1, 0))  # row 0 says nothing
            told = REACH * F.embedding(indicator, rows)
            condition = condition + told.to(condition.dtype)
        mods = self.mods(F.silu(condition))
        return mods.unflatten(-1, (-1, self.enter.out_features)) + self.unit

    def forward(self, x: Tensor, kv: Tensor, mods: Tensor) -> Tensor:
        """Return the velocity [B, T, A].

        Args:
            x: noisy normalised actions, [B, T, A].
            kv: keys and values of the prefix, [L, 2, B, H, N, D/H].
            mods: what `modulations` returned for this flow time, [B, 6 L + 2, D].
        """
        mods = mods.transpose(0, 1)[:, :, None]  # [6 L + 2, B, 1, D]
        h = self.enter(x) + self.place
        for i, layer in enumerate(self.layers):
            h = layer(h, kv[i], mods[6 * i : 6 * i + 6])
        return self.leave(modulate(h, mods[-2], mods[-1]))
