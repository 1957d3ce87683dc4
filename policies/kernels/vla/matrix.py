"""A weight matrix as it is stored: plain, or one byte a number with a scale per output channel."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

LARGEST = 448.0  # of float8_e4m3fn


class Matrix(NamedTuple):
    """Weights of a linear map.

    Attributes:
        data: [N, K], a floating type or float8_e4m3fn.
        scale: float32 [N] for float8, what each row is multiplied by; otherwise None.
    """

    data: Tensor
    scale: Tensor | None = None

    def dense(self, dtype: torch.dtype) -> Tensor:
        """Return the matrix [N, K] in a plain type."""
        if self.scale is None:
            return self.data.to(dtype)
        return (self.data.float() * self.scale[:, None]).to(dtype)


def quantised(weight: Tensor) -> Matrix:
    """Return a matrix [N, K] in float8, each row scaled so that its largest number just fits."""
    wide = weight.float()
    scale = (wide.abs().amax(1) / LARGEST).clamp(min=1e-12)
    return Matrix((wide / scale[:, None]).to(torch.float8_e4m3fn), scale)
