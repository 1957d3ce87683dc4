"""Full attention over a static key and value buffer whose length is in device memory.

Plain torch bodies: the CPU path and the reference of the Triton kernels. Keys and values of a
layer stand in [KV, T, D] views of one buffer; ``position`` of the T slots are filled.
Rotary embedding: Su et al., arXiv 2104.09864; a leading part of each head is rotated by halves.
"""

from __future__ import annotations

import torch
from torch import Tensor

from flashrt_policies.kernels.norm import rms_norm


def inverse_frequencies(
    dim: int, theta: float, scaling: tuple[str, float, float, float, float]
) -> Tensor:
    """Return the rotary frequencies, radians per token, float32 [dim / 2].

    Args:
        dim: rotated width of a head.
        theta: base.
        scaling: ('default' | 'linear' | 'llama3', factor, low, high, original length).
    """
    freq = 1.0 / (theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim))
    kind, factor, low, high, original = scaling
    if kind == 'linear':
        return freq / factor
    if kind == 'llama3':
        # Full turns within the original context: few turns are slowed, many kept, blended between.
        turns = original * freq / (2 * torch.pi)
        blend = ((turns - low) / (high - low)).clamp(0, 1)
        return (1 - blend) * freq / factor + blend * freq
    return freq


def rotate(x: Tensor, angle: Tensor) -> Tensor:
    """Rotate the leading ``2 * R`` elements of each head.

    Args:
        x: float32 [M, H, D].
        angle: radians, float32 [M, R].
    """
    half = angle.shape[-1]
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]  # [M, 1, R]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), -1)


def place(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    values: Tensor,
    position: Tensor,
    valid: Tensor,
    freq: Tensor,
    q_scale: Tensor | None,
    k_scale: Tensor | None,
    eps: float,
) -> Tensor:
    """Normalise and rotate queries and keys; write keys and values behind the filled slots.

    Args:
        q: [M, H, D], may be strided, as `k` and `v`.
        k: [M, KV, D].
        v: [M, KV, D].
        keys: buffer [KV, T, D]; slots position .. position + valid are written.
        values: buffer [KV, T, D], likewise.
        position: int32 [1], slots filled before.
        valid: int32 [1], number of real tokens among the M.
        freq: float32 [R], from `inverse_frequencies`.
        q_scale: float32 [D] of the queries' norm, or None for no norm.
        k_scale: float32 [D] of the keys' norm, or None.
        eps: of those norms.

    Returns:
        The queries, [M, H, D].
    """
    if q.is_cuda:
        from flashrt_policies.kernels import place_triton

        return place_triton.place(
            q, k, v, keys, values, position, valid, freq, q_scale, k_scale, eps
        )
    if q_scale is not None and k_scale is not None:
        q, k = rms_norm(q, q_scale, eps), rms_norm(k, k_scale, eps)
    steps = (position + torch.arange(q.shape[0], device=q.device)).float()
    angle = steps[:, None] * freq  # [M, R]
    torch.ops.flashrt_lm.write(rotate(k.float(), angle).to(keys.dtype), keys, position, valid)
    torch.ops.flashrt_lm.write(v, values, position, valid)
    return rotate(q.float(), angle).to(q.dtype)


def attend(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    position: Tensor,
    valid: Tensor,
    gate: Tensor | None,
) -> Tensor:
    """Attend causally to every slot up to the token's own; apply the output gate.

    Args:
        q: [M, H, D]; row i stands at ``position + i``.
        keys: [KV, T, D], ``position + valid`` slots filled.
        values: [KV, T, D].
        position: int32 [1], slots filled before these tokens.
        valid: int32 [1], number of real tokens among the M.
        gate: [M, H, D], the output is multiplied by its sigmoid; or None. May be strided.

    Returns:
        [M, H, D]; rows at and past `valid` are meaningless.
    """
    if q.is_cuda:
        from flashrt_policies.kernels import attention_triton

        return attention_triton.attend(q, keys, values, position, valid, gate)
    return torch.ops.flashrt_lm.attend(q, keys, values, position, valid, gate)


def _write_cpu(rows: Tensor, buffer: Tensor, position: Tensor, valid: Tensor) -> None:
    start, count = int(position), int(valid)
    buffer[:, start : start + count] = rows[:count].transpose(0, 1)


def _attend_cpu(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    position: Tensor,
    valid: Tensor,
    gate: Tensor | None,
) -> Tensor:
    rows, heads, dim = q.shape
    start = int(position)
    end, kv = start + int(valid), keys.shape[0]
    grouped = q.float().view(rows, kv, heads // kv, dim).permute(1, 2, 0, 3)  # [KV, G, M, D]
    scores = grouped @ keys[:, None, :end].float().mT * dim**-0.5  # [KV, G, M, T]
    later = torch.arange(end) > torch.arange(start, start + rows)[:, None]  # [M, T]
    scores = scores.masked_fill_(later, float('-inf'))
    mixed = scores.softmax(-1) @ values[:, None, :end].float()  # [KV, G, M, D]
    mixed = mixed.permute(2, 0, 1, 3).reshape(rows, heads, dim)
    if gate is not None:
        mixed = mixed * gate.float().sigmoid()
    return mixed.to(q.dtype)


# Operators of their own: like any kernel they read the lengths from memory when they run, so a
# captured callable holds no length, and work on the CPU grows with what is filled, not with T.
_LIBRARY = torch.library.Library('flashrt_lm', 'DEF')
_LIBRARY.define('write(Tensor rows, Tensor(a!) buffer, Tensor position, Tensor valid) -> ()')
_LIBRARY.define(
    'attend(Tensor q, Tensor keys, Tensor values, Tensor position, Tensor valid, Tensor? gate)'
    ' -> Tensor'
)
_LIBRARY.impl('write', _write_cpu, 'CPU')
_LIBRARY.impl('attend', _attend_cpu, 'CPU')
