"""How a layer of the planner's network mixes positions, differentiable: batches of stretches.

The mixers of `hybrid_lm` in torch, with the parameter names of its checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flashrt_policies.hybrid_lm.config import LMConfig
from flashrt_policies.planner_lm.training.delta import delta_rule


@dataclass(frozen=True)
class Place:
    """Where the rows of a batch stand: states [B, T], behind each its groups of branches.

    Everything that works row by row does so for all [B, L] of them at once; a step on a GPU is
    as long as its launches are many.

    Attributes:
        real: bool [B, L], rows that are tokens; they come first in their stretch.
        cos: float32 [B, L, rotary / 2], of each row's angles.
        sin: likewise.
        mask: bool [B, 1, L - T, L], which keys the branches' rows see; None without branches.
        width: T.
        groups: (R, S) of each group: R branches of S rows.
    """

    real: Tensor
    cos: Tensor
    sin: Tensor
    mask: Tensor | None
    width: int
    groups: tuple[tuple[int, int], ...]

    def split(self, x: Tensor) -> list[Tensor]:
        """[B, L, ...] -> the states [B, T, ...], and of each group [B * R, S, ...]."""
        state, *others = x.split([self.width, *(r * s for r, s in self.groups)], 1)
        pairs = zip(others, self.groups, strict=True)
        return [state, *(y.unflatten(1, size).flatten(0, 1) for y, size in pairs)]

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """Undo `split`."""
        state, *others = parts
        pairs = zip(others, self.groups, strict=True)
        return torch.cat(
            [state, *(y.unflatten(0, (-1, r)).flatten(1, 2) for y, (r, _) in pairs)], 1
        )


class Norm(nn.Module):
    """RMSNorm whose weight is stored around zero, or plain with a gate."""

    def __init__(self, size: int, eps: float, centred: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size) if centred else torch.ones(size))
        self.eps, self.centred = eps, centred

    def forward(self, x: Tensor, gate: Tensor | None = None) -> Tensor:
        """Return ``x / rms(x)`` scaled, times ``silu(gate)``; float32 inside.

        Under autocast in its lower type, once for all products that follow.
        """
        scale = 1 + self.weight if self.centred else self.weight
        wide = F.rms_norm(x.float(), scale.shape, scale, self.eps)
        kind = x.device.type
        lower = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
        return (wide if gate is None else wide * F.silu(gate.float())).to(lower)


class Mlp(nn.Module):
    """Gated MLP."""

    def __init__(self, c: LMConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(c.hidden, c.intermediate, bias=False)
        self.up_proj = nn.Linear(c.hidden, c.intermediate, bias=False)
        self.down_proj = nn.Linear(c.intermediate, c.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., hidden] -> [..., hidden]."""
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class CausalConv(torch.autograd.Function):
    """Depthwise causal convolution; its gradient written out, so that it makes no zeros."""

    @staticmethod
    def forward(ctx: Any, series: Tensor, taps: Tensor) -> Tensor:
        """[N, W - 1 + S, C] and [W, C] -> [N, S, C]."""
        ctx.save_for_backward(series, taps)
        width = len(taps)
        length = series.shape[1] - width + 1
        out = series[:, :length] * taps[0]
        for i in range(1, width):
            out.addcmul_(series[:, i : i + length], taps[i])
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of both."""
        series, taps = ctx.saved_tensors
        length = grad.shape[1]
        into = torch.zeros_like(series)
        for i, tap in enumerate(taps):
            into[:, i : i + length].addcmul_(grad, tap)
        each = [(grad * series[:, i : i + length]).sum((0, 1)) for i in range(len(taps))]
        return into, torch.stack(each)


class LinearMixer(nn.Module):
    """Gated DeltaNet (arXiv 2412.06464)."""

    def __init__(self, c: LMConfig) -> None:
        super().__init__()
        self.c = c
        value = c.lin_v_heads * c.lin_v_dim
        self.in_proj_qkv = nn.Linear(c.hidden, c.conv_dim, bias=False)
        self.in_proj_z = nn.Linear(c.hidden, value, bias=False)
        self.in_proj_b = nn.Linear(c.hidden, c.lin_v_heads, bias=False)
        self.in_proj_a = nn.Linear(c.hidden, c.lin_v_heads, bias=False)
        self.out_proj = nn.Linear(value, c.hidden, bias=False)
        self.conv1d = nn.Conv1d(
            c.conv_dim, c.conv_dim, c.conv_width, groups=c.conv_dim, bias=False
        )
        self.norm = Norm(c.lin_v_dim, c.eps, centred=False)
        # Time constants from one token to a thousand, as the reference implementation starts.
        step = torch.exp(torch.empty(c.lin_v_heads).uniform_(math.log(1e-3), math.log(0.1)))
        self.dt_bias = nn.Parameter(step + torch.log(-torch.expm1(-step)))
        self.A_log = nn.Parameter(torch.empty(c.lin_v_heads).uniform_(1, 16).log())

    def forward(self, x: Tensor, at: Place) -> Tensor:
        """[B, L, hidden] -> [B, L, hidden]; branches go on from where their state ended."""
        c, real = self.c, at.real[..., None]
        mixed = self.in_proj_qkv(x) * real  # [B, L, C]
        beta = self.in_proj_b(x).float().sigmoid() * real
        step = F.softplus(self.in_proj_a(x).float() + self.dt_bias)
        g = -self.A_log.float().exp() * step * real
        taps = self.conv1d.weight[:, 0].T.to(mixed.dtype)  # [W, C]
        series = F.pad(mixed[:, : at.width], (0, 0, c.conv_width - 1, 0))
        # Picked by a product with ones: its gradient is one too, and repeats bit for bit.
        last = at.real[:, : at.width].sum(1)[:, None]
        last = last + torch.arange(c.conv_width - 1, device=x.device)
        place = torch.arange(series.shape[1], device=x.device)
        window = (last[..., None] == place).to(series.dtype) @ series  # [B, W - 1, C]
        state = torch.zeros(x.shape[0], c.lin_v_heads, c.lin_k_dim, c.lin_v_dim, device=x.device)
        outs: list[Tensor] = []
        rows = zip(*(at.split(part) for part in (mixed, g, beta)), strict=True)
        for part, (own, g_, beta_) in enumerate(rows):
            count = at.groups[part - 1][0] if part else 1
            if part:
                series = torch.cat((window.repeat_interleave(count, 0), own), 1)
            out, end = self._walk(
                CausalConv.apply(series, taps), g_, beta_,
                state.repeat_interleave(count, 0) if part else state,
            )  # fmt: skip
            state = state if part else end
            outs.append(out)
        z = self.in_proj_z(x).unflatten(-1, (c.lin_v_heads, -1))
        out = self.norm(at.join(outs).to(z.dtype), z).flatten(-2)
        mixed_out: Tensor = self.out_proj(out)
        return mixed_out

    def _walk(self, conv: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Apply the delta rule to [N, S, C]; return [N, S, HV, V] and the last state."""
        c = self.c
        size = c.lin_k_heads * c.lin_k_dim
        q, k, v = F.silu(conv).split((size, size, c.lin_v_heads * c.lin_v_dim), -1)
        with torch.autocast(conv.device.type, enabled=False):  # float32 inside, as at run time
            return delta_rule(
                q.unflatten(-1, (c.lin_k_heads, -1)), k.unflatten(-1, (c.lin_k_heads, -1)),
                v.unflatten(-1, (c.lin_v_heads, -1)), g, beta, state,
            )  # fmt: skip


class FullMixer(nn.Module):
    """Full attention with grouped heads, rotary embedding and an output gate."""

    def __init__(self, c: LMConfig) -> None:
        super().__init__()
        self.c = c
        self.q_proj = nn.Linear(c.hidden, c.heads * c.head_dim * 2, bias=False)
        self.k_proj = nn.Linear(c.hidden, c.kv_heads * c.head_dim, bias=False)
        self.v_proj = nn.Linear(c.hidden, c.kv_heads * c.head_dim, bias=False)
        self.o_proj = nn.Linear(c.heads * c.head_dim, c.hidden, bias=False)
        self.q_norm, self.k_norm = Norm(c.head_dim, c.eps), Norm(c.head_dim, c.eps)
        for norm in (self.q_norm, self.k_norm):  # sharp enough from the start to single out one
            nn.init.constant_(norm.weight, 0.7)

    def forward(self, x: Tensor, at: Place) -> Tensor:
        """[B, L, hidden] -> [B, L, hidden]; branches see their state and themselves."""
        c = self.c
        q, gate = self.q_proj(x).unflatten(-1, (c.heads, 2 * c.head_dim)).chunk(2, -1)
        k = self.k_proj(x).unflatten(-1, (c.kv_heads, c.head_dim))
        v = self.v_proj(x).unflatten(-1, (c.kv_heads, c.head_dim))
        rep = c.heads // c.kv_heads
        k, v = rotate(self.k_norm(k), at).repeat_interleave(rep, 2), v.repeat_interleave(rep, 2)
        q, k, v = (t.transpose(1, 2).to(v.dtype) for t in (rotate(self.q_norm(q), at), k, v))
        here = at.width
        states, branches = q.split([here, q.shape[2] - here], 2)  # [B, H, ..., D]
        o = F.scaled_dot_product_attention(states, k[:, :, :here], v[:, :, :here], is_causal=True)
        if at.mask is not None:
            o = torch.cat((o, F.scaled_dot_product_attention(branches, k, v, at.mask)), 2)
        out: Tensor = self.o_proj((o.transpose(1, 2) * gate.sigmoid()).flatten(-2))
        return out


def rotate(x: Tensor, at: Place) -> Tensor:
    """Rotate the leading part of each head [B, L, H, D]."""
    cos, sin = at.cos[:, :, None], at.sin[:, :, None]
    half = cos.shape[-1]
    a, b, rest = x.float().split((half, half, x.shape[-1] - 2 * half), -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), -1).to(x.dtype)
