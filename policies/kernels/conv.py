"""Causal depthwise convolution with SiLU, its window of past inputs carried between calls."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def causal_conv_silu(x: Tensor, window: Tensor, weight: Tensor, valid: Tensor) -> Tensor:
    """Convolve a stretch of tokens and move the window past it.

    Args:
        x: inputs [M, C], may be strided; only the first `valid` rows count.
        window: the W - 1 inputs before them [W - 1, C]; replaced by the last W - 1 valid ones.
        weight: [W, C]; the last tap meets the current token.
        valid: int32 [1], number of real tokens, 0 to M.

    Returns:
        ``silu(conv(x))`` [M, C], computed in float32 and rounded to the type of `x`; rows at and
        past `valid` are meaningless.
    """
    taps = weight.shape[0]
    series = torch.cat((window.float(), x.float()))  # [W - 1 + M, C]
    out = F.conv1d(series.T.unsqueeze(0), weight.float().T.unsqueeze(1), groups=x.shape[1])
    last = valid + torch.arange(taps - 1, device=x.device)
    window.copy_(series.index_select(0, last))
    return F.silu(out[0].T).to(x.dtype)
