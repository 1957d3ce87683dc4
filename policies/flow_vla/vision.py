"""Image encoder: a small residual network, its last stage modulated by the text.

Group normalisation throughout (no batch statistics), so one image gives the same features alone
and in a batch. The stages before the last see no text: they are the 'vision' graph, and a new
subgoal needs only the last stage again. FiLM: Perez et al., arXiv 1709.07871; its use on
MetaWorld: BAKU, arXiv 2406.07539.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flashrt_policies.flow_vla.config import FlowSizes


def unit_images(images: Tensor) -> Tensor:
    """Return uint8 images as float32 in [-1, 1], shape unchanged."""
    return images * (2.0 / 255.0) - 1.0  # the product with a number is float32


class Block(nn.Module):
    """Pre-activation residual block of two 3x3 convolutions, with an optional modulation."""

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(groups, channels)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(groups, channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)

    def forward(
        self, x: Tensor, scale: Tensor | None = None, shift: Tensor | None = None
    ) -> Tensor:
        """Return x plus its residual; x is [N, C, h, w], scale and shift [N, C, 1, 1]."""
        y = self.conv1(F.silu(self.norm1(x)))
        y = self.norm2(y)
        if scale is not None and shift is not None:
            y = torch.addcmul(y + shift, y, scale)
        return x + self.conv2(F.silu(y))


class Trunk(nn.Module):
    """Stem and every stage but the last: images to feature maps, without text."""

    def __init__(self, sizes: FlowSizes, cameras: int) -> None:
        super().__init__()
        first = sizes.stages[0]
        self.stem = nn.Conv2d(3, sizes.stem, 3, stride=2, padding=1)
        self.camera = nn.Parameter(torch.zeros(cameras, sizes.stem))
        self.norm = nn.GroupNorm(sizes.groups, sizes.stem)
        self.down = nn.ModuleList([nn.Conv2d(sizes.stem, first, 3, stride=2, padding=1)])
        for before, after in zip(sizes.stages[:-2], sizes.stages[1:-1], strict=True):
            self.down.append(nn.Conv2d(before, after, 3, stride=2, padding=1))
        self.stages = nn.ModuleList(
            nn.Sequential(*(Block(channels, sizes.groups) for _ in range(count)))
            for channels, count in zip(sizes.stages[:-1], sizes.blocks[:-1], strict=True)
        )

    def forward(self, images: Tensor) -> Tensor:
        """Encode images.

        Args:
            images: floating point in [-1, 1], [B, V, H, W, 3], V cameras in the spec's order.

        Returns:
            [B, V, h, w, C], channels last.
        """
        batch, views = images.shape[:2]
        x = images.flatten(0, 1).permute(0, 3, 1, 2)  # [B*V, 3, H, W], channels-last memory
        camera = self.camera.expand(batch, -1, -1).flatten(0, 1)  # [B*V, C]
        x = F.silu(self.norm(self.stem(x) + camera[:, :, None, None]))
        for down, stage in zip(self.down, self.stages, strict=True):
            x = stage(down(x))
        return x.permute(0, 2, 3, 1).unflatten(0, (batch, views))


class Neck(nn.Module):
    """The last stage, its second normalisations scaled and shifted by text and camera (FiLM)."""

    def __init__(self, sizes: FlowSizes, cameras: int) -> None:
        super().__init__()
        before, channels = sizes.stages[-2:]
        self.down = nn.Conv2d(before, channels, 3, stride=2, padding=1)
        self.blocks = nn.ModuleList(Block(channels, sizes.groups) for _ in range(sizes.blocks[-1]))
        self.camera = nn.Parameter(torch.randn(cameras, sizes.text_width) * 0.02)
        self.film = nn.Linear(sizes.text_width, 2 * channels * sizes.blocks[-1])
        nn.init.zeros_(self.film.weight)
        nn.init.zeros_(self.film.bias)

    def forward(self, features: Tensor, text: Tensor) -> Tensor:
        """Return tokens [B, V, h * w, C] of features [B, V, h, w, C] under text [B, E]."""
        batch, views = features.shape[:2]
        condition = F.silu(text[:, None] + self.camera)  # [B, V, E]
        film = self.film(condition).flatten(0, 1)[:, :, None, None]  # [B*V, 2CK, 1, 1]
        parts = film.chunk(2 * len(self.blocks), dim=1)
        x = self.down(features.flatten(0, 1).permute(0, 3, 1, 2))
        for i, block in enumerate(self.blocks):
            x = block(x, parts[2 * i], parts[2 * i + 1])
        x = x.permute(0, 2, 3, 1)  # [B*V, h, w, C]
        return x.reshape(batch, views, -1, x.shape[-1])
