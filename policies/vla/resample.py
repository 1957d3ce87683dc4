"""Making an image smaller or larger exactly as Pillow's bilinear filter does.

openpi's policies resize with Pillow before they look, and were trained on what it gives: a smaller
image averages all pixels that fall into one, along the rows first, then along the columns, rounded
to whole levels after each. In whole numbers, as Pillow does it, so every level is the same.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

BITS = 22  # Pillow's weights are whole numbers of 2 ** -22


@functools.cache
def taps(size: int, out: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return which of `size` pixels each of `out` is made of, and their weights in 2 ** -BITS.

    A triangle as wide as a pixel of the coarser side, cut at the borders, of sum one.

    Returns:
        int64 [out, T] and int32 [out, T]; weight 0 where a pixel is made of fewer.
    """
    scale = size / out
    reach = max(scale, 1.0)
    count = 2 * math.ceil(reach) + 1
    index = torch.zeros(out, count, dtype=torch.int64)
    weight = torch.zeros(out, count, dtype=torch.int32)
    for i in range(out):
        centre = (i + 0.5) * scale
        low, high = max(0, int(centre - reach + 0.5)), min(size, int(centre + reach + 0.5))
        part = [max(0.0, 1.0 - abs((x - centre + 0.5) / reach)) for x in range(low, high)]
        total = math.fsum(part)
        index[i, : len(part)] = torch.arange(low, high)
        weight[i, : len(part)] = torch.tensor([int(x / total * 2**BITS + 0.5) for x in part])
    return index.to(device), weight.to(device)


def resample(image: Tensor, height: int, width: int) -> Tensor:
    """Return an image [3, H, W] of levels from 0 to 255 at another size, int32."""
    x = image.to(torch.int32)
    if x.shape[2] != width:
        x = _along(x, width)
    if x.shape[1] != height:
        x = _along(x.mT, height).mT
    return x


def _along(x: Tensor, out: int) -> Tensor:
    """Return [3, R, size] with its last dimension made `out` long."""
    index, weight = taps(x.shape[2], out, x.device)
    parts = x.index_select(2, index.flatten()).unflatten(2, index.shape)  # [3, R, out, T]
    total = (parts * weight).sum(3, dtype=torch.int32)
    return ((total + (1 << BITS - 1)) >> BITS).clamp_(0, 255)
