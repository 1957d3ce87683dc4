"""Prefix transformer: image, proprioception and text tokens to the keys the expert attends to."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flashrt_policies.flow_vla.config import FlowSizes


class Layer(nn.Module):
    """Pre-normalised transformer layer, every token attending to every token."""

    def __init__(self, width: int, heads: int, mlp: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, mlp * width)
        self.down = nn.Linear(mlp * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return tokens [B, N, D] after attention and feed-forward."""
        q, k, v = (
            self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        )  # [B, H, N, D/H]
        y = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.silu(self.up(self.norm2(x))))


class Prefix(nn.Module):
    """Tokens of one observation and subgoal to per-layer keys and values and one summary."""

    def __init__(self, sizes: FlowSizes, views: int, patches: int, proprio_dim: int) -> None:
        super().__init__()
        width = sizes.width
        self.heads, self.layers_out = sizes.heads, sizes.expert_layers
        self.image = nn.Linear(sizes.stages[-1], width)
        self.place = nn.Parameter(torch.randn(views, patches, width) * 0.02)
        self.text = nn.Linear(sizes.text_width, width)
        self.proprio = nn.Sequential(
            nn.Linear(proprio_dim, width), nn.SiLU(), nn.Linear(width, width)
        )
        self.unknown = nn.Parameter(torch.randn(width) * 0.02)
        self.layers = nn.ModuleList(
            Layer(width, sizes.heads, sizes.mlp) for _ in range(sizes.prefix_layers)
        )
        self.norm = nn.LayerNorm(width)
        self.kv = nn.Linear(width, 2 * sizes.expert_layers * width)

    def forward(
        self, images: Tensor, text: Tensor, proprio: Tensor, known: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Run the prefix.

        Args:
            images: [B, V, N, C] tokens of the neck.
            text: [B, E].
            proprio: [B, P], normalised.
            known: bool [B]; where false the proprioception is hidden (training only).

        Returns:
            keys and values [L, 2, B, H, V * N + 2, D/H], and a summary [B, D].
        """
        state = self.proprio(proprio)
        if known is not None:
            state = torch.where(known[:, None], state, self.unknown.to(state.dtype))
        tokens = (self.image(images) + self.place).flatten(1, 2)  # [B, V*N, D]
        words = self.text(text)
        x = torch.cat((words[:, None], state[:, None], tokens), dim=1)
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x)
        kv = self.kv(x).unflatten(-1, (self.layers_out, 2, self.heads, -1))
        return kv.permute(2, 3, 0, 4, 1, 5), x[:, 0]
