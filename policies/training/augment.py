"""Image and proprioception augmentation, on the training device, from one generator."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from flashrt_policies.flow_vla.advantage import UNSAID
from flashrt_policies.flow_vla.vision import unit_images


@dataclass(frozen=True)
class Augmentation:
    """How much training observations are disturbed.

    Attributes:
        shift: largest random shift of each image, pixels.
        brightness: largest change of brightness, in units of [-1, 1].
        contrast: largest relative change of contrast.
        colour: largest relative change of one colour channel's gain.
        noise: spread of the noise on each pixel, in units of [-1, 1].
        blur: share of images that are softened (another renderer draws other edges).
        proprio_noise: spread of the noise on normalised proprioception.
        proprio_dropout: share of observations whose proprioception is hidden.
        indicator_dropout: share of chunks of which is not said how good they are.
    """

    shift: int = 4
    brightness: float = 0.2
    contrast: float = 0.2
    colour: float = 0.1
    noise: float = 0.03
    blur: float = 0.25
    proprio_noise: float = 0.05
    proprio_dropout: float = 0.1
    indicator_dropout: float = 0.3

    def images(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Disturb uint8 images [B, V, H, W, 3]; return float32 in about [-1, 1], same shape."""
        batch, views, height, width, _ = images.shape
        device, count = images.device, batch * views
        x = self._shifted(images.flatten(0, 1), generator)  # [N, H, W, 3]
        x = unit_images(x)
        draw = torch.rand(6, count, generator=generator, device=device) * 2 - 1
        soft = x.clone()  # [1, 2, 1] / 4 in both directions, inner pixels
        soft[:, 1:-1] = (x[:, :-2] + 2 * x[:, 1:-1] + x[:, 2:]) / 4
        wide = soft.clone()
        wide[:, :, 1:-1] = (soft[:, :, :-2] + 2 * soft[:, :, 1:-1] + soft[:, :, 2:]) / 4
        x = torch.where((draw[5] * 0.5 + 0.5 < self.blur)[:, None, None, None], wide, x)
        mean = x.mean(dim=(1, 2, 3), keepdim=True)
        gain = 1 + self.contrast * draw[0][:, None, None, None]
        tint = 1 + self.colour * draw[1:4].T[:, None, None, :]
        x = (mean + (x - mean) * gain) * tint + self.brightness * draw[4][:, None, None, None]
        x = x + self.noise * torch.randn(x.shape, generator=generator, device=device)
        return x.clamp(-1, 1).unflatten(0, (batch, views))

    def _shifted(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Shift each of [N, H, W, 3] by whole pixels; border pixels repeat."""
        if self.shift == 0:
            return images
        count, height, width, _ = images.shape
        device = images.device
        move = torch.randint(
            -self.shift, self.shift + 1, (2, count, 1), generator=generator, device=device
        )
        rows = (torch.arange(height, device=device) + move[0]).clamp(0, height - 1)  # [N, H]
        columns = (torch.arange(width, device=device) + move[1]).clamp(0, width - 1)
        index = torch.arange(count, device=device)[:, None, None]
        return images[index, rows[:, :, None], columns[:, None, :]]

    def proprio(
        self, proprio: Tensor, spread: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return proprioception [B, P] with noise, and which observations show it, bool [B]."""
        device = proprio.device
        noise = torch.randn(proprio.shape, generator=generator, device=device)
        known = torch.rand(len(proprio), generator=generator, device=device)
        return proprio + self.proprio_noise * spread * noise, known >= self.proprio_dropout

    def indicator(self, indicator: Tensor, generator: torch.Generator) -> Tensor:
        """Return indicators [B], some of them hidden, so that a chunk is learned without, too."""
        draw = torch.rand(len(indicator), generator=generator, device=indicator.device)
        return torch.where(draw < self.indicator_dropout, UNSAID, indicator)
