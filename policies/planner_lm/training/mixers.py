"""How a layer of the planner's network mixes positions, differentiable: batches of stretches.

The mixers of `hybrid_lm` in torch, with the parameter names of its checkpoints.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flashrt_policies.hybrid_lm.config import LMConfig
from flashrt_policies.kernels.attention import inverse_frequencies
from flashrt_policies.planner_lm.training.delta import delta_rule


@dataclass
class Memory:
    """What the branches need of the trunk in one layer.

    Attributes:
        window: [B, W - 1, C], the last inputs of the convolution (linear layers).
        state: float32 [B, HV, K, V] (linear layers).
        keys: [B, KV, T, D] (full layers).
        values: [B, KV, T, D] (full layers).
    """

    window: Tensor | None = None
    state: Tensor | None = None
    keys: Tensor | None = None
    values: Tensor | None = None


@dataclass(frozen=True)
class Place:
    """Where a batch of stretches stands.

    Attributes:
        real: bool [N, S], rows that are tokens; they come first.
        position: int64 [N, S], of each row in its text.
        mask: bool [B, 1, Q, K], which keys each query sees; None for all up to itself.
        branches: R, stretches per trunk; 0 for the trunks themselves.
    """

    real: Tensor
    position: Tensor
    mask: Tensor | None
    branches: int


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

    def forward(self, x: Tensor, at: Place, memory: Memory) -> Tensor:
        """[N, S, hidden] -> [N, S, hidden]; a trunk writes `memory`, branches read it."""
        c, real = self.c, at.real[..., None]
        mixed = self.in_proj_qkv(x) * real  # [N, S, C]
        if at.branches:
            assert memory.window is not None and memory.state is not None
            window = memory.window.repeat_interleave(at.branches, 0)
            state = memory.state.repeat_interleave(at.branches, 0)
        else:
            window = mixed.new_zeros(mixed.shape[0], c.conv_width - 1, c.conv_dim)
            shape = (mixed.shape[0], c.lin_v_heads, c.lin_k_dim, c.lin_v_dim)
            state = torch.zeros(shape, device=x.device)
        series = torch.cat((window.to(mixed.dtype), mixed), 1)
        taps = self.conv1d.weight[:, 0].T.to(series.dtype)  # [W, C]
        conv: Tensor = CausalConv.apply(series, taps)
        size = c.lin_k_heads * c.lin_k_dim
        q, k, v = F.silu(conv).split((size, size, c.lin_v_heads * c.lin_v_dim), -1)
        beta = self.in_proj_b(x).float().sigmoid() * real
        step = F.softplus(self.in_proj_a(x).float() + self.dt_bias)
        g = -self.A_log.float().exp() * step * real
        with torch.autocast(x.device.type, enabled=False):  # float32 inside, as at run time
            out, state = delta_rule(
                q.unflatten(-1, (c.lin_k_heads, -1)), k.unflatten(-1, (c.lin_k_heads, -1)),
                v.unflatten(-1, (c.lin_v_heads, -1)), g, beta, state,
            )  # fmt: skip
        if not at.branches:
            # Picked by a product with ones: its gradient is one too, and repeats bit for bit.
            last = at.real.sum(1)[:, None] + torch.arange(c.conv_width - 1, device=x.device)
            place = torch.arange(series.shape[1], device=x.device)
            memory.window = (last[..., None] == place).to(series.dtype) @ series
            memory.state = state
        z = self.in_proj_z(x).unflatten(-1, (c.lin_v_heads, -1))
        out = self.norm(out.to(z.dtype), z).flatten(-2)
        mixed_out: Tensor = self.out_proj(out)
        return mixed_out


class FullMixer(nn.Module):
    """Full attention with grouped heads, rotary embedding and an output gate."""

    frequencies: Tensor

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
        freq = inverse_frequencies(c.rotary_dim, c.rope_theta, c.rope_scaling)
        self.register_buffer('frequencies', freq, persistent=False)

    def forward(self, x: Tensor, at: Place, memory: Memory) -> Tensor:
        """[N, S, hidden] -> [N, S, hidden]; a trunk writes `memory`, branches read it."""
        c = self.c
        q, gate = self.q_proj(x).unflatten(-1, (c.heads, 2 * c.head_dim)).chunk(2, -1)
        k = self.k_proj(x).unflatten(-1, (c.kv_heads, c.head_dim))
        v = self.v_proj(x).unflatten(-1, (c.kv_heads, c.head_dim))
        angle = at.position[..., None].float() * self.frequencies  # [N, S, rotary / 2]
        q, k = rotate(self.q_norm(q), angle), rotate(self.k_norm(k), angle)
        trunks = x.shape[0] // max(1, at.branches)
        # Branches of one trunk stand side by side: [N, S, H, D] -> [B, H, R * S, D].
        q, k, v = (
            t.reshape(trunks, -1, *t.shape[2:]).transpose(1, 2).to(v.dtype) for t in (q, k, v)
        )
        if at.branches:
            assert memory.keys is not None and memory.values is not None
            k, v = torch.cat((memory.keys, k), 2), torch.cat((memory.values, v), 2)
        else:
            memory.keys, memory.values = k, v
        rep = c.heads // c.kv_heads
        o = F.scaled_dot_product_attention(
            q, k.repeat_interleave(rep, 1), v.repeat_interleave(rep, 1), attn_mask=at.mask,
            is_causal=at.mask is None,
        )  # fmt: skip
        o = o.transpose(1, 2).reshape(*gate.shape) * gate.sigmoid()
        out: Tensor = self.o_proj(o.flatten(-2))
        return out


def rotate(x: Tensor, angle: Tensor) -> Tensor:
    """Rotate the leading part of each head: [N, S, H, D] by [N, S, R / 2]."""
    half = angle.shape[-1]
    cos, sin = angle.cos()[:, :, None], angle.sin()[:, :, None]
    a, b, rest = x.float().split((half, half, x.shape[-1] - 2 * half), -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), -1).to(x.dtype)
