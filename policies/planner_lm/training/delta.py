"""The gated delta rule for batches, differentiable: `kernels.gated_delta` for training."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from flashrt_policies.kernels.gated_delta import CHUNK, l2_norm


def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """`kernels.gated_delta.chunked` for a batch, differentiable.

    Args:
        q: queries [N, S, H, K].
        k: keys [N, S, H, K].
        v: values [N, S, HV, V].
        g: float32 [N, S, HV], log decay.
        beta: float32 [N, S, HV], step size; 0 where the state must be left alone.
        state: float32 [N, HV, K, V].

    Returns:
        float32 [N, S, HV, V], and the state behind the last row.
    """
    batch, rows, heads = v.shape[:3]
    chunk = min(CHUNK, 1 << (rows - 1).bit_length())
    count = -(-rows // chunk)
    pad = count * chunk - rows

    def split(x: Tensor) -> Tensor:
        """[N, S, HV, ...] -> [count, N * HV, chunk, ...], so that each chunk is contiguous."""
        x = F.pad(x, (*(0, 0) * (x.ndim - 2), 0, pad)).unflatten(1, (count, chunk))
        return x.movedim(1, 0).movedim(3, 2).flatten(1, 2)

    rep = heads // q.shape[2]
    q = split(l2_norm(q).repeat_interleave(rep, 2) * q.shape[-1] ** -0.5)
    k = split(l2_norm(k).repeat_interleave(rep, 2))
    v, beta, g = split(v.float()), split(beta)[..., None], split(g).cumsum(-1)
    upper = torch.ones(chunk, chunk, dtype=torch.bool, device=v.device).triu(1)
    decay = (g[..., :, None] - g[..., None, :]).masked_fill(upper, float('-inf')).exp()
    known = beta * k
    inverse: Tensor = Inverse.apply((known @ k.mT * decay).tril(-1))
    grown = g.exp()[..., None]
    u = inverse @ (beta * v)  # [count, N * HV, chunk, V]
    w = inverse @ (known * -grown)
    left = (k * (g[..., -1:] - g).exp()[..., None]).mT
    last = grown[:, :, -1:]
    state = state.flatten(0, 1)
    news, states = [], []
    # Unbound, not indexed: the gradient of an index is a whole tensor of zeros.
    for u_i, w_i, left_i, last_i in zip(*(x.unbind() for x in (u, w, left, last)), strict=True):
        states.append(state)
        news.append(torch.baddbmm(u_i, w_i, state))
        state = torch.baddbmm(state * last_i, left_i, news[-1])
    out = (q * grown) @ torch.stack(states) + (q @ k.mT * decay) @ torch.stack(news)
    out = out.unflatten(1, (batch, heads)).permute(1, 0, 3, 2, 4).flatten(1, 2)[:, :rows]
    return out, state.unflatten(0, (batch, heads))


class Inverse(torch.autograd.Function):
    """`invert` with the gradient of an inverse: two products, whatever the forward pass took."""

    @staticmethod
    def forward(ctx: Any, a: Tensor) -> Tensor:
        """Return the inverse of ``I + a``."""
        inverse = invert(a)
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """Return the gradient of `a`, strictly lower triangular."""
        (inverse,) = ctx.saved_tensors
        return -(inverse.mT @ grad @ inverse.mT).tril(-1)


def invert(a: Tensor) -> Tensor:
    """Return the inverse of ``I + a`` for strictly lower triangular `a` [..., n, n], n = 2**m.

    Blocks of up to 16 by the product ``(I - a)(I + a^2)(I + a^4)...``, larger ones from halves.
    """
    n = a.shape[-1]
    if n > 16:
        half = n // 2
        top, bottom = invert(torch.stack((a[..., :half, :half], a[..., half:, half:])))
        corner = -bottom @ a[..., half:, :half] @ top
        upper = torch.cat((top, torch.zeros_like(top)), -1)
        return torch.cat((upper, torch.cat((corner, bottom), -1)), -2)
    eye = torch.eye(n, device=a.device, dtype=a.dtype)
    result, power = eye - a, a
    for _ in range(max(0, n.bit_length() - 2)):
        power = power @ power
        result = result + result @ power
    return result
