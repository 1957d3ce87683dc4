"""Triton kernel of `vla.frame`: every program makes a block of each of the four."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from flashrt_policies.kernels.vla.attention import HIDDEN
from flashrt_policies.kernels.vla.frame import Frame, Layout

BLOCK = 512


@triton.jit
def frame_kernel(
    suffix_ptr, length_ptr, previous_ptr, pace_ptr, place_ptr, rank_ptr, held_ptr, target_ptr,
    images, prefix, trailing, tokens, horizon, width, HIDDEN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Ranks of all tokens, positions of the expert's, weight of each action, and its target."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    length, elapsed, delay = tl.load(length_ptr), tl.load(pace_ptr), tl.load(pace_ptr + 1)

    rank = tl.where(at < images + length, 0, HIDDEN)
    rank = tl.where(at >= prefix - trailing, 1, rank)
    behind = (at >= prefix) & (at < prefix + tokens)
    rank = tl.where(behind, tl.load(suffix_ptr + at - prefix, mask=behind, other=0), rank)
    tl.store(rank_ptr + at, rank, mask=at < prefix + tokens)
    place = (at + images + trailing + length).to(tl.int32)
    tl.store(place_ptr + at, place, mask=at < tokens)

    end = tl.where(elapsed > 0, tl.maximum(horizon - elapsed, 0), 0)
    start = tl.minimum(delay, end)
    fall = (end - at).to(tl.float32) / (end - start + 1).to(tl.float32)
    fall = tl.minimum(tl.maximum(fall, 0.0), 1.0)
    held = tl.where(at < start, 1.0, fall * (tl.exp(fall) - 1.0) * 0.5819767068693265)
    tl.store(held_ptr + at, tl.where(at < end, held, 0.0), mask=at < horizon)

    row = at // width + elapsed
    there = (row >= 0) & (row < horizon) & (at < horizon * width)
    rest = tl.load(previous_ptr + row * width + at % width, mask=there, other=0.0)
    tl.store(target_ptr + at, rest, mask=at < horizon * width)


def frame(layout: Layout, suffix: Tensor, length: Tensor, previous: Tensor, pace: Tensor) -> Frame:
    """Launch `vla.frame.frame` on CUDA."""
    horizon, width = previous.shape
    tokens, prefix = suffix.shape[0], layout.tokens
    places = torch.empty_like(suffix)
    ranks = torch.empty(prefix + tokens, dtype=torch.int32, device=suffix.device)
    held = torch.empty((horizon, 1), dtype=torch.float32, device=suffix.device)
    target = torch.empty_like(previous)
    blocks = triton.cdiv(max(prefix + tokens, horizon * width), BLOCK)
    frame_kernel[(blocks,)](
        suffix, length, previous, pace, places, ranks, held, target,
        layout.images, prefix, layout.trailing, tokens, horizon, width,
        HIDDEN=HIDDEN, BLOCK=BLOCK, num_warps=4,
    )  # fmt: skip
    return Frame(places, ranks, held, target)
