"""What all Euler steps of a chunk share: who sees whom, positions, and the chunk before.

A few numbers for each token, by forty operations of torch: on a GPU they are one launch, before
the steps. Real-time chunking: arXiv 2506.07339.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from flashrt_policies.kernels.vla.attention import HIDDEN


class Layout(NamedTuple):
    """Tokens of a prefix: of images, of the longest prompt, and behind it."""

    images: int
    prompt: int
    trailing: int

    @property
    def tokens(self) -> int:
        """All of them: P."""
        return sum(self)


class Frame(NamedTuple):
    """What the steps of one chunk read.

    Attributes:
        places: int32 [T], positions of the expert's tokens, behind the prefix.
        ranks: int32 [P + T], who sees whom; see `attention`.
        held: float32 [H, 1], how strongly each action is held to the chunk before.
        target: float32 [H, A], what is left of it.
    """

    places: Tensor
    ranks: Tensor
    held: Tensor
    target: Tensor


def frame(layout: Layout, suffix: Tensor, length: Tensor, previous: Tensor, pace: Tensor) -> Frame:
    """Return what the steps of a chunk share.

    Args:
        layout: of the prefix.
        suffix: int32 [T], who sees whom among the expert's tokens.
        length: int64 [1], tokens of the prompt that count.
        previous: the chunk before, float32 [H, A], contiguous.
        pace: int64 [2], ticks since its observation (0 = there is none), ticks until the new
            chunk takes effect.
    """
    if not previous.is_cpu:
        from flashrt_policies.kernels.vla import frame_triton

        return frame_triton.frame(layout, suffix, length, previous, pace)
    return frame_plain(layout, suffix, length, previous, pace)


def frame_plain(
    layout: Layout, suffix: Tensor, length: Tensor, previous: Tensor, pace: Tensor
) -> Frame:
    """`frame` in plain torch: the reference."""
    index = torch.arange(suffix.shape[0], device=suffix.device)
    return Frame(
        (index + (layout.images + layout.trailing) + length).int(),
        torch.cat((prefix_ranks(layout, length), suffix)),
        soft_mask(previous.shape[0], pace[:1], pace[1:])[:, None],
        left_over(previous, pace[:1]),
    )


def prefix_ranks(layout: Layout, length: Tensor) -> Tensor:
    """Return who sees whom in the prefix, int32 [P], for a prompt of `length` [1] tokens."""
    index = torch.arange(layout.tokens, device=length.device)
    rank = torch.where(index < layout.images + length, 0, HIDDEN)
    if layout.trailing:
        rank = torch.where(index >= layout.tokens - layout.trailing, 1, rank)
    return rank.int()


def soft_mask(horizon: int, elapsed: Tensor, delay: Tensor) -> Tensor:
    """Return how strongly each action is held to the previous chunk, float32 [H].

    1 for actions that are executed before the new chunk arrives, then falling, 0 where the
    previous chunk has ended (the paper's equation 5).

    Args:
        horizon: H.
        elapsed: int64 [1], ticks since the previous chunk's observation; 0 where there is none.
        delay: int64 [1], ticks until the new chunk takes effect.
    """
    index = torch.arange(horizon, device=elapsed.device)
    end = torch.where(elapsed > 0, horizon - elapsed, torch.zeros_like(elapsed)).clamp(min=0)
    start = torch.minimum(delay, end)
    fall = ((end - index) / (end - start + 1)).clamp(0.0, 1.0)
    soft = fall * torch.expm1(fall) / (math.e - 1)
    held = torch.where(index < start, torch.ones_like(soft), soft)
    return torch.where(index < end, held, torch.zeros_like(held))


def left_over(previous: Tensor, elapsed: Tensor) -> Tensor:
    """Return what is left of a chunk [H, A] after `elapsed` ticks, zeros behind its end."""
    index = torch.arange(previous.shape[0], device=previous.device) + elapsed  # [H]
    rest = previous.index_select(0, index.clamp(max=previous.shape[0] - 1))
    return rest * (index < previous.shape[0])[:, None]
