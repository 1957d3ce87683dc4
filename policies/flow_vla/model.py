"""FlowVLA: the one network, used by training and by the captured graphs alike.

Conditional flow matching (Lipman et al., arXiv 2210.02747) as π0 uses it for action chunks: at
flow time s a chunk is x = (1 - s) * noise + s * actions, and the network predicts the velocity
actions - noise. Inference integrates from noise at s = 0 to actions at s = 1 by Euler steps.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from flashrt_policies.base import PolicySpec
from flashrt_policies.flow_vla.config import FlowSizes
from flashrt_policies.flow_vla.expert import Expert
from flashrt_policies.flow_vla.prefix import Prefix
from flashrt_policies.flow_vla.text import TextEncoder
from flashrt_policies.flow_vla.vision import Neck, Trunk, unit_images
from flashrt_policies.recipes import RecipeError

STATISTICS = ('proprio_mean', 'proprio_std', 'action_mean', 'action_std')


class FlowVLA(nn.Module):
    """Images, proprioception and a subgoal row to an action chunk.

    The statistics are NaN until they are set or loaded: a network without them cannot act, and a
    checkpoint without them is refused.

    Args:
        spec: what the policy sees and does.
        sizes: sizes of the network.

    Raises:
        RecipeError: the image does not divide into the last stage's map.
    """

    proprio_mean: Tensor
    proprio_std: Tensor
    action_mean: Tensor
    action_std: Tensor
    low: Tensor
    high: Tensor

    def __init__(self, spec: PolicySpec, sizes: FlowSizes) -> None:
        super().__init__()
        self.spec, self.sizes = spec, sizes
        height, width = spec.image_hw
        if height % sizes.reduction() or width % sizes.reduction():
            raise RecipeError(
                f'images of {height}x{width} do not divide by {sizes.reduction()}; '
                'want another size or number of stages'
            )
        views = len(spec.cameras)
        patches = (height // sizes.reduction()) * (width // sizes.reduction())
        self.trunk = Trunk(sizes, views)
        self.text = TextEncoder(sizes)
        self.neck = Neck(sizes, views)
        self.prefix_net = Prefix(sizes, views, patches, spec.proprio_dim)
        self.expert = Expert(sizes, spec.horizon, spec.action_dim)
        for name, length in zip(
            STATISTICS, [spec.proprio_dim] * 2 + [spec.action_dim] * 2, strict=True
        ):
            self.register_buffer(name, torch.full((length,), float('nan')))
        self.register_buffer('low', torch.tensor(spec.action_low), persistent=False)
        self.register_buffer('high', torch.tensor(spec.action_high), persistent=False)

    @property
    def feature_shape(self) -> tuple[int, int, int, int]:
        """Shape [V, h, w, C] of one observation's features."""
        cell = self.sizes.reduction() // 2
        height, width = self.spec.image_hw
        views = len(self.spec.cameras)
        return (views, height // cell, width // cell, self.sizes.stages[-2])

    @property
    def kv_shape(self) -> tuple[int, int, int, int, int, int]:
        """Shape [L, 2, 1, H, N, D/H] of one observation's keys and values."""
        sizes, (views, patches, _) = self.sizes, self.prefix_net.place.shape
        head = sizes.width // sizes.heads
        return (sizes.expert_layers, 2, 1, sizes.heads, views * patches + 2, head)

    def vision(self, images: Tensor) -> Tensor:
        """Return features [B, V, h, w, C] of uint8 images [B, V, H, W, 3]."""
        return self.trunk(unit_images(images).to(self.trunk.stem.weight.dtype))

    def prefix(
        self, features: Tensor, proprio: Tensor, rows: Tensor, known: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Run the prefix on features [B, V, h, w, C], proprioception [B, P], rows [B, L].

        Returns:
            keys and values [L, 2, B, H, N, D/H] and a summary [B, D]; see `Prefix`.
        """
        text = self.text(rows)
        state = ((proprio - self.proprio_mean) / self.proprio_std).to(features.dtype)
        return self.prefix_net(self.neck(features, text), text, state, known)

    def moments(self) -> Tensor:
        """Return the moments of all Euler steps [S, 1, C]: constant, whatever is seen or told."""
        steps, like = self.sizes.steps, self.expert.place
        times = torch.arange(steps, device=like.device, dtype=like.dtype) / steps
        return self.expert.moments(times)[:, None]

    def denoise(
        self, noise: Tensor, kv: Tensor, summary: Tensor, moments: Tensor | None = None
    ) -> Tensor:
        """Integrate the flow from noise to actions within the limits.

        Args:
            noise: [B, T, A].
            kv: keys and values of the prefix, [L, 2, B, H, N, D/H].
            summary: of the prefix, [B, D].
            moments: what `moments` returned, for who calls this more than once.

        Returns:
            [B, T, A].
        """
        steps = self.sizes.steps
        moments = self.moments() if moments is None else moments
        mods = self.expert.modulations(moments, summary.repeat(steps, 1, 1))  # [S, B, 6 L + 2, D]
        x = noise
        for step in range(steps):
            x = torch.add(x, self.expert(x, kv, mods[step]), alpha=1.0 / steps)
        return (x * self.action_std + self.action_mean).clamp(self.low, self.high)

    def act(self, images: Tensor, proprio: Tensor, rows: Tensor, noise: Tensor) -> Tensor:
        """Return chunks [B, T, A] of whole observations; the three graphs, one after another."""
        kv, summary = self.prefix(self.vision(images), proprio, rows)
        return self.denoise(noise, kv, summary)
