"""The gated delta rule (Yang, Kautz and Hatamizadeh, arXiv 2412.06464) in plain torch.

A head keeps a state S [K, V]. Token t decays it, corrects what it predicts for the key, and reads
it with the query::

    S   <- exp(g_t) S
    S   <- S + k_t (beta_t (v_t - k_t^T S))^T
    o_t  = S^T q_t / sqrt(K)

`recurrent` walks token by token. `chunked` takes C tokens at a time: within a chunk the rule is
solved as one unit lower triangular system (section 3.3, the UT transform), and only the state goes
from chunk to chunk. Both compute in float32; keys and queries are normalised here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from flashrt_policies.kernels.conv import causal_conv_silu
from flashrt_policies.kernels.norm import gated_rms_norm

CHUNK = 64
L2_EPS = 1e-6


def l2_norm(x: Tensor) -> Tensor:
    """Return ``x / |x|`` over the last dimension, in float32."""
    wide = x.float()
    return wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + L2_EPS)


def recurrent(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> Tensor:
    """Apply the rule token by token and update `state` in place.

    Args:
        q: queries [M, H, K].
        k: keys [M, H, K]; value head h reads query and key head ``h * H // HV``.
        v: values [M, HV, V].
        g: log decay [M, HV], at most 0.
        beta: step size [M, HV], 0 to 1.
        state: float32 [HV, K, V].

    Returns:
        float32 [M, HV, V].
    """
    rep = v.shape[1] // q.shape[1]
    q = l2_norm(q).repeat_interleave(rep, 1) * q.shape[-1] ** -0.5
    k = l2_norm(k).repeat_interleave(rep, 1)
    v, decay, beta = v.float(), g.float().exp(), beta.float()
    out = torch.empty(v.shape, dtype=torch.float32, device=v.device)
    for t in range(v.shape[0]):
        state *= decay[t, :, None, None]
        read = torch.einsum('hk,hkv->hv', k[t], state)
        state += k[t, :, :, None] * ((v[t] - read) * beta[t, :, None])[:, None]
        out[t] = torch.einsum('hk,hkv->hv', q[t], state)
    return out


def chunked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: Tensor,
    valid: Tensor,
    chunk: int = CHUNK,
) -> Tensor:
    """Apply the rule C tokens at a time and update `state` in place.

    Args:
        q: queries [M, H, K].
        k: keys [M, H, K]; value head h reads query and key head ``h * H // HV``.
        v: values [M, HV, V].
        g: log decay [M, HV], at most 0.
        beta: step size [M, HV], 0 to 1.
        state: float32 [HV, K, V].
        valid: int32 [1], number of real tokens; later rows leave the state alone.
        chunk: tokens C per chunk; M is a multiple of it.

    Returns:
        float32 [M, HV, V]; rows at and past `valid` are meaningless.
    """
    tokens, heads = v.shape[:2]
    rep, n = heads // q.shape[1], tokens // chunk

    def split(x: Tensor) -> Tensor:  # [M, HV, ...] -> [HV, N, C, ...]
        return x.reshape(n, chunk, heads, *x.shape[2:]).movedim(2, 0)

    real = (torch.arange(tokens, device=v.device) < valid)[:, None]
    q = split(l2_norm(q).repeat_interleave(rep, 1) * q.shape[-1] ** -0.5)
    k = split(l2_norm(k).repeat_interleave(rep, 1))
    v = split(v.float())
    beta = split(beta.float() * real).unsqueeze(-1)  # [HV, N, C, 1]
    g = split(g.float() * real).cumsum(-1)  # [HV, N, C]

    lower = torch.ones(chunk, chunk, dtype=torch.bool, device=v.device).tril()
    decay = (g[..., :, None] - g[..., None, :]).masked_fill(~lower, float('-inf')).exp()
    system = (beta * k) @ k.mT * decay  # its unit lower triangle is I + A
    right = torch.cat((beta * v, beta * k * g.exp().unsqueeze(-1)), -1)  # [HV, N, C, V + K]
    solved = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    u, w = solved.split((v.shape[-1], k.shape[-1]), -1)

    inner = q @ k.mT * decay  # [HV, N, C, C]
    q = q * g.exp().unsqueeze(-1)
    k = k * (g[..., -1:] - g).exp().unsqueeze(-1)
    last = g[..., -1].exp()[..., None, None]  # [HV, N, 1, 1]
    out = torch.empty_like(u)
    for i in range(n):
        new = u[:, i] - w[:, i] @ state  # [HV, C, V]
        out[:, i] = q[:, i] @ state + inner[:, i] @ new
        state.mul_(last[:, i]).add_(k[:, i].mT @ new)
    return out.movedim(0, 2).reshape(tokens, heads, -1)


def gates(b: Tensor, a: Tensor, decay: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Return log decay g and step size beta from their projections, float32 [M, HV] each.

    Args:
        b: projection of the step size [M, HV].
        a: projection of the time step [M, HV].
        decay: float32 [HV], ``-exp(A_log)``.
        bias: float32 [HV], added to `a` before the softplus.
    """
    return decay * torch.nn.functional.softplus(a.float() + bias), b.float().sigmoid()


def mix(
    proj: Tensor,
    window: Tensor,
    state: Tensor,
    conv: Tensor,
    decay: Tensor,
    bias: Tensor,
    norm: Tensor,
    eps: float,
    valid: Tensor,
    dims: tuple[int, int, int, int],
) -> Tensor:
    """Convolve, apply the delta rule, norm and gate the projections of a linear layer.

    Args:
        proj: [M, C + HV * V + 2 HV]: q, k, v, z, b, a.
        window: [W - 1, C], the inputs before these; moved past the valid ones.
        state: float32 [HV, K, V]; moved past the valid tokens.
        conv: [W, C].
        decay: float32 [HV], ``-exp(A_log)``.
        bias: float32 [HV].
        norm: float32 [V], of the gated norm.
        eps: of that norm.
        valid: int64 [1], number of real tokens.
        dims: (H, HV, K, V).

    Returns:
        [M, HV * V], type of `proj`; rows at and past `valid` are meaningless.
    """
    if proj.is_cuda:
        from flashrt_policies.kernels import gated_delta_triton

        return gated_delta_triton.mix(
            proj, window, state, conv, decay, bias, norm, eps, valid, dims
        )
    key_heads, heads, key_dim, dim = dims
    channels = conv.shape[1]
    mixed = causal_conv_silu(proj[:, :channels], window, conv, valid)
    q, k, v = mixed.split((key_heads * key_dim, key_heads * key_dim, heads * dim), dim=1)
    q, k = q.unflatten(1, (key_heads, key_dim)), k.unflatten(1, (key_heads, key_dim))
    b, a = proj[:, channels + heads * dim :].split((heads, heads), dim=1)
    g, beta = gates(b, a, decay, bias)
    v = v.unflatten(1, (heads, dim))
    if proj.shape[0] == 1:
        out = recurrent(q, k, v, g, beta, state)
    else:
        out = chunked(q, k, v, g, beta, state, valid)
    z = proj[:, channels : channels + heads * dim].unflatten(1, (heads, dim))
    return gated_rms_norm(out, z, norm, eps).flatten(1)
