"""What the cases of the policies' kernels share: errors, exact values, tables, prepared norms."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / 'policies_lm'))
from lm_kernel_cases import Draw

from flashrt_policies.kernels.vla import rope as vla_rope
from flashrt_policies.kernels.vla.linear import Stream
from flashrt_policies.kernels.vla.rope import Rotary

Errors = Iterator[tuple[str, float]]


def error(found: Tensor, want: Tensor) -> float:
    """Return the largest error relative to the largest value; NaN counts as infinite."""
    want = want.double().cpu()
    off = (found.double().cpu() - want).abs().max() / want.abs().max().clamp(min=1e-12)
    return float('inf') if bool(off.isnan()) else float(off)


def wide(x: Tensor) -> Tensor:
    """Return what a tensor holds, in float64 on the CPU."""
    return x.double().cpu()


def table(d: Draw, positions: int, dim: int) -> tuple[Rotary, Rotary]:
    """Return rotary tables on the device, and in float64."""
    made = vla_rope.rotary(positions, dim, 1e4, torch.device(d.device))
    return made, Rotary(wide(made.cos), wide(made.sin))


def norm(x: Tensor, scale: Tensor) -> Tensor:
    """Root-mean-square norm in the type of `x`."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * scale


def prepared(x: Tensor, scale: Tensor) -> Stream:
    """Return a stream whose next norm is prepared, in tiles of three columns."""
    scaled = (x.float() * scale).to(x.dtype)
    tiles = torch.nn.functional.pad(x.float().square(), (0, -x.shape[1] % 3)).unflatten(1, (-1, 3))
    return Stream(x, scaled, tiles.sum(-1).mT.contiguous())
