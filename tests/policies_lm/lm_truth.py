"""What the language model's kernels must compute, step by step in float64."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def error(got: Tensor, want: Tensor) -> float:
    """Return the largest difference relative to the largest value."""
    scale = max(want.abs().max().item(), 1e-6)
    return (got.double().cpu() - want.cpu()).abs().max().item() / scale


def delta_truth(
    proj: Tensor, window: Tensor, state: Tensor, conv: Tensor, decay: Tensor, bias: Tensor,
    valid: int, dims: tuple[int, int, int, int],
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Token by token in float64: output [valid, HV, V], state and window after them."""
    key_heads, heads, key_dim, dim = dims
    proj, window, state, conv = (x.double().cpu() for x in (proj, window, state, conv))
    decay, bias = decay.double().cpu(), bias.double().cpu()
    taps, channels = conv.shape
    series = torch.cat((window, proj[:valid, :channels]))
    state, out, keys = state.clone(), [], key_heads * key_dim
    for t in range(valid):
        mixed = F.silu((series[t : t + taps] * conv).sum(0))
        q, k, v = mixed.split((keys, keys, heads * dim))
        q, k = q.view(key_heads, key_dim), k.view(key_heads, key_dim)
        q = q * torch.rsqrt(q.square().sum(-1, keepdim=True) + 1e-6) * key_dim**-0.5
        k = k * torch.rsqrt(k.square().sum(-1, keepdim=True) + 1e-6)
        rep = heads // key_heads
        q, k, v = q.repeat_interleave(rep, 0), k.repeat_interleave(rep, 0), v.view(heads, dim)
        b, a = proj[t, channels + heads * dim :].split((heads, heads))
        state *= (decay * F.softplus(a + bias)).exp()[:, None, None]
        told = torch.einsum('hk,hkv->hv', k, state)
        state += k[:, :, None] * ((v - told) * b.sigmoid()[:, None])[:, None]
        out.append(torch.einsum('hk,hkv->hv', q, state))
    return torch.stack(out), state, series[valid:]


def gated_truth(
    o: Tensor, proj: Tensor, channels: int, norm: Tensor, dims: tuple[int, int, int, int]
) -> Tensor:
    """Norm and gate the output of `delta_truth` [M, HV, V] in float64: [M, HV * V]."""
    _, heads, _, dim = dims
    z = proj[: o.shape[0], channels:][:, : heads * dim].double().cpu().view(-1, heads, dim)
    y = o * torch.rsqrt(o.square().mean(-1, keepdim=True) + 1e-6) * norm.double().cpu()
    return (y * F.silu(z)).flatten(1)


def attention_truth(
    q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, position: int, freq: Tensor,
    q_scale: Tensor | None, k_scale: Tensor | None, gate: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return output [M, H, D] and rotated keys [M, KV, D] in float64."""
    q, k, v = q.double().cpu(), k.double().cpu(), v.double().cpu()
    for scale in (q_scale, k_scale):
        if scale is not None:
            x = q if scale is q_scale else k
            x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * scale.double().cpu()
            q, k = (x, k) if scale is q_scale else (q, x)
    rows, heads, dim = q.shape
    # Angles as float32 has them: at large positions their rounding is the model's own.
    steps = torch.arange(position, position + rows).float()
    angle = (steps[:, None] * freq.cpu()).double()
    half = freq.shape[0]
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]

    def turn(x: Tensor) -> Tensor:
        first, second = x[..., :half], x[..., half : 2 * half]
        return torch.cat(
            (first * cos - second * sin, second * cos + first * sin, x[..., 2 * half :]), -1
        )

    q, k = turn(q), turn(k)
    rep = heads // keys.shape[0]
    whole = torch.cat((keys.double().cpu()[:, :position], k.transpose(0, 1)), 1)
    mixed = torch.cat((values.double().cpu()[:, :position], v.transpose(0, 1)), 1)
    scores = torch.einsum('mhd,hnd->hmn', q, whole.repeat_interleave(rep, 0)) * dim**-0.5
    later = torch.arange(whole.shape[1]) > torch.arange(position, position + rows)[:, None]
    weights = scores.masked_fill(later, float('-inf')).softmax(-1)
    out = torch.einsum('hmn,hnd->mhd', weights, mixed.repeat_interleave(rep, 0))
    if gate is not None:
        out = out * gate.double().cpu().sigmoid()
    return out, k
