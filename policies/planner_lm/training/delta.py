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
    rows, heads = v.shape[1], v.shape[2]
    chunk = min(CHUNK, 1 << (rows - 1).bit_length())
    count = -(-rows // chunk)
    pad = count * chunk - rows

    def split(x: Tensor) -> Tensor:  # [N, S, HV, ...] -> [N, HV, count, chunk, ...]
        x = F.pad(x, (*(0, 0) * (x.ndim - 2), 0, pad))
        return x.unflatten(1, (count, chunk)).movedim(3, 1)

    rep = heads // q.shape[2]
    q = split(l2_norm(q).repeat_interleave(rep, 2) * q.shape[-1] ** -0.5)
    k = split(l2_norm(k).repeat_interleave(rep, 2))
    v, beta, g = split(v.float()), split(beta)[..., None], split(g).cumsum(-1)
    lower = torch.ones(chunk, chunk, dtype=torch.bool, device=v.device).tril()
    decay = (g[..., :, None] - g[..., None, :]).masked_fill(~lower, float('-inf')).exp()
    system = ((beta * k) @ k.mT * decay).tril(-1)
    inverse: Tensor = Inverse.apply(system)
    u = inverse @ (beta * v)  # [N, HV, count, chunk, V]
    w = inverse @ (beta * k * g.exp()[..., None])
    inner = q @ k.mT * decay
    q = q * g.exp()[..., None]
    k = k * (g[..., -1:] - g).exp()[..., None]
    last = g[..., -1].exp()[..., None, None]
    parts = []
    # Unbound, not indexed: the gradient of an index is a whole tensor of zeros.
    chunks = zip(*(x.unbind(2) for x in (u, w, q, inner, k.mT, last)), strict=True)
    for u_i, w_i, q_i, inner_i, k_i, last_i in chunks:
        new = u_i - w_i @ state
        parts.append(q_i @ state + inner_i @ new)
        state = torch.addcmul(k_i @ new, state, last_i)
    out = torch.stack(parts, 2).flatten(2, 3)[:, :, :rows]  # [N, HV, S, V]
    return out.movedim(1, 2), state


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
