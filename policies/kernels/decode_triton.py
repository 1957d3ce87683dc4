"""Triton kernels of a decode step: one token, everything between two products in one launch."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from flashrt_policies.kernels.attention_triton import LOG2_E
from flashrt_policies.kernels.delta_chunk_triton import soft_plus
from flashrt_policies.kernels.gated_delta import L2_EPS
from flashrt_policies.kernels.launch import begin, early
from flashrt_policies.kernels.place_triton import normed_rotated

# Programs per key head that share a decode step's keys; fixed, so one graph serves every length.
SPLITS = 64
# Warps that share one head's state in a decode step.
STEP_WARPS = 8


@triton.jit
def taps_of(
    proj_ptr, window_ptr, conv_ptr, channel, mask, channels, TAPS: tl.constexpr, T: tl.constexpr
):  # fmt: skip
    """Some channels [D] of the last tokens, this one included, and their weights: [T, D] each."""
    tap, channel = tl.arange(0, T)[:, None], channel[None, :]
    source = tl.where(tap < TAPS - 1, window_ptr + tap * channels, proj_ptr)
    inside = mask[None, :] & (tap < TAPS)
    x = tl.load(source + channel, mask=inside, other=0.0)
    return x, tl.load(conv_ptr + tap * channels + channel, mask=inside, other=0.0)


@triton.jit
def convolved(x, weight, moved_ptr, channel, mask, channels, TAPS: tl.constexpr, T: tl.constexpr):
    """Convolution and SiLU [D] of what `taps_of` loaded; the window moves by one."""
    tap = tl.arange(0, T)[:, None]
    inside = mask[None, :] & (tap > 0) & (tap < TAPS)
    tl.store(moved_ptr + (tap - 1) * channels + channel[None, :], x, mask=inside)
    y = tl.sum(x.to(tl.float32) * weight.to(tl.float32), 0)
    return y * tl.sigmoid(y)


@triton.jit
def delta_step_kernel(
    proj_ptr, window_ptr, moved_ptr, conv_ptr, decay_ptr, bias_ptr, state_ptr, after_ptr,
    norm_ptr, out_ptr, key_heads, heads, key_dim, dim, l2_eps, scale, eps,
    TAPS: tl.constexpr, T: tl.constexpr, GROUP: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """One key head and the value heads that share it: delta rule, read-out, gated norm.

    Everything is asked for before anything is computed: the step is bound by such waits.
    """
    begin(PDL)
    key_head = tl.program_id(0)
    channels = 2 * key_heads * key_dim + heads * dim
    at_k, at_v = tl.arange(0, K), tl.arange(0, V)
    in_k, in_v = at_k < key_dim, at_v < dim
    first = key_head * GROUP
    tile = at_k[:, None] * dim + at_v[None, :]
    inside = in_k[:, None] & in_v[None, :]
    norm = tl.load(norm_ptr + at_v, mask=in_v, other=0.0)
    asks, keys = key_head * key_dim + at_k, (key_heads + key_head) * key_dim + at_k
    q_in, q_by = taps_of(proj_ptr, window_ptr, conv_ptr, asks, in_k, channels, TAPS, T)
    k_in, k_by = taps_of(proj_ptr, window_ptr, conv_ptr, keys, in_k, channels, TAPS, T)
    for step in tl.static_range(GROUP):
        head = first + step
        spot = head * key_dim * dim + tile
        state = tl.load(state_ptr + spot, mask=inside, other=0.0)
        values = 2 * key_heads * key_dim + head * dim + at_v
        v_in, v_by = taps_of(proj_ptr, window_ptr, conv_ptr, values, in_v, channels, TAPS, T)
        b = tl.load(proj_ptr + channels + heads * dim + head).to(tl.float32)
        a = tl.load(proj_ptr + channels + heads * dim + heads + head).to(tl.float32)
        z = tl.load(proj_ptr + channels + head * dim + at_v, mask=in_v, other=0.0).to(tl.float32)
        decay, bias = tl.load(decay_ptr + head), tl.load(bias_ptr + head)
        # A tile smaller than the program's threads is held by several warps, each with loads of
        # its own: all have read the window before one of them moves it.
        tl.debug_barrier()
        if step == 0:
            q = convolved(q_in, q_by, moved_ptr, asks, in_k, channels, TAPS, T)
            k = convolved(k_in, k_by, moved_ptr, keys, in_k, channels, TAPS, T)
            q = q * (tl.rsqrt(tl.sum(q * q, 0) + l2_eps) * scale)
            k = k * tl.rsqrt(tl.sum(k * k, 0) + l2_eps)
            both = tl.sum(q * k, 0)
        v = convolved(v_in, v_by, moved_ptr, values, in_v, channels, TAPS, T)
        state = state * tl.exp(decay * soft_plus(a + bias))
        told = tl.sum(state * k[:, None], 0)
        asked = tl.sum(state * q[:, None], 0)
        fresh = (v - told) * tl.sigmoid(b)
        tl.store(after_ptr + spot, state + k[:, None] * fresh[None, :], mask=inside)
        o = asked + both * fresh  # what the updated state answers
        y = o * tl.rsqrt(tl.sum(o * o, 0) / dim + eps) * norm * (z * tl.sigmoid(z))
        tl.store(out_ptr + head * dim + at_v, y.to(out_ptr.dtype.element_ty), mask=in_v)


@triton.jit
def attend_one_kernel(
    q_ptr, k_ptr, v_ptr, keys_ptr, values_ptr, q_scale_ptr, k_scale_ptr, freq_ptr, position_ptr,
    valid_ptr, part_ptr, mass_ptr, q_head, kv_heads, capacity, dim, half, eps, scale,
    NORM: tl.constexpr, FRESH: tl.constexpr, G: tl.constexpr, GROUP: tl.constexpr,
    SPLITS: tl.constexpr, N: tl.constexpr, D: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The G queries of one key head against one split of the keys.

    The split's size grows with the length, their number does not. With FRESH the first split also
    takes the token's own key, straight from the projection, and writes it to its slot; without,
    the token is the last of `valid` ones whose keys are in place.
    """
    begin(PDL)
    kv, split = tl.program_id(0), tl.program_id(1)
    position = tl.load(position_ptr)
    if not FRESH:
        position = tl.maximum(position + tl.load(valid_ptr) - 1, 0)
    at, g = tl.arange(0, D), tl.arange(0, GROUP)
    mask = at < dim
    kind = keys_ptr.dtype.element_ty
    q = tl.zeros((GROUP, D), tl.float32)
    for i in tl.static_range(G):
        head = kv * G + i
        one = normed_rotated(
            q_ptr + head * q_head, q_scale_ptr, freq_ptr, position, dim, half, eps, NORM, D
        )
        q = tl.where((g == i)[:, None], one[None, :], q)
    keys_ptr += kv.to(tl.int64) * capacity * dim
    values_ptr += kv.to(tl.int64) * capacity * dim
    m = tl.full((GROUP,), -float('inf'), tl.float32)
    total = tl.zeros((GROUP,), tl.float32)
    acc = tl.zeros((GROUP, D), tl.float32)
    if FRESH:  # noqa: SIM102  (known when compiling)
        if split == 0:
            k = normed_rotated(
                k_ptr + kv * dim, k_scale_ptr, freq_ptr, position, dim, half, eps, NORM, D
            ).to(kind)
            v = tl.load(v_ptr + kv * dim + at, mask=mask, other=0.0)
            tl.store(keys_ptr + position * dim + at, k, mask=mask)
            tl.store(values_ptr + position * dim + at, v, mask=mask)
            m = tl.sum(q.to(kind).to(tl.float32) * k.to(tl.float32)[None, :], 1) * scale
            total += 1.0
            acc += v.to(tl.float32)[None, :]
    count = position if FRESH else position + 1
    size = tl.cdiv(tl.cdiv(count, SPLITS), N) * N
    low = split * size
    high = tl.minimum(low + size, count)
    q_low = q.to(kind)
    for start in tl.range(low, high, N):
        n = start + tl.arange(0, N)
        inside = (n < high)[:, None] & mask[None, :]
        k = tl.load(keys_ptr + n[:, None] * dim + at[None, :], mask=inside, other=0.0)
        v = tl.load(values_ptr + n[:, None] * dim + at[None, :], mask=inside, other=0.0)
        score = tl.dot(q_low, tl.trans(k), input_precision='tf32x3') * scale
        score = tl.where((n < high)[None, :], score, -float('inf'))
        peak = tl.maximum(m, tl.max(score, 1))
        p = tl.exp2(score - peak[:, None])
        fade = tl.exp2(m - peak)
        total = total * fade + tl.sum(p, 1)
        acc = tl.dot(p.to(kind), v, acc * fade[:, None], input_precision='tf32x3')
        m = peak
    place = (kv * SPLITS + split) * GROUP + g
    tl.store(part_ptr + place[:, None] * D + at[None, :], acc)
    tl.store(mass_ptr + place * 2, m)
    tl.store(mass_ptr + place * 2 + 1, total)


@triton.jit
def merge_one_kernel(
    part_ptr, mass_ptr, gate_ptr, out_ptr, gate_head, dim,
    GATE: tl.constexpr, G: tl.constexpr, GROUP: tl.constexpr, SPLITS: tl.constexpr,
    D: tl.constexpr, N: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Merge the splits of one head, N columns of it, and apply its gate."""
    begin(PDL)
    head = tl.program_id(0)
    split, at = tl.arange(0, SPLITS), tl.program_id(1) * N + tl.arange(0, N)
    mask = at < dim
    place = (head // G * SPLITS + split) * GROUP + head % G
    m = tl.load(mass_ptr + place * 2)
    weight = tl.exp2(m - tl.max(m, 0))
    total = tl.sum(tl.load(mass_ptr + place * 2 + 1) * weight, 0)
    part = tl.load(part_ptr + place[:, None] * D + at[None, :])
    y = tl.sum(part * weight[:, None], 0) / total
    if GATE:
        gate = tl.load(gate_ptr + head * gate_head + at, mask=mask, other=0.0).to(tl.float32)
        y = y * tl.sigmoid(gate)
    tl.store(out_ptr + head * dim + at, y.to(out_ptr.dtype.element_ty), mask=mask)


def delta_step(
    proj: Tensor,
    window: Tensor,
    state: Tensor,
    conv: Tensor,
    decay: Tensor,
    bias: Tensor,
    norm: Tensor,
    eps: float,
    dims: tuple[int, int, int, int],
    after: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Run a linear layer's mixer between its two products on one token.

    Args:
        proj: [1, C + HV * V + 2 HV]: q, k, v, z, b, a.
        window: [W - 1, C], moved by one.
        state: float32 [HV, K, V], updated.
        conv: [W, C].
        decay: float32 [HV].
        bias: float32 [HV].
        norm: float32 [V], of the gated norm.
        eps: of the gated norm.
        dims: (H, HV, K, V).
        after: where the moved window and the updated state are written; None for in place.

    Returns:
        [1, HV * V].
    """
    key_heads, heads, key_dim, dim = dims
    moved, updated = after or (window, state)
    out = torch.empty((1, heads * dim), dtype=proj.dtype, device=proj.device)
    delta_step_kernel[(key_heads,)](
        proj, window, moved, conv, decay, bias, state, updated, norm, out,
        key_heads, heads, key_dim, dim, L2_EPS, key_dim**-0.5, eps,
        TAPS=conv.shape[0], T=triton.next_power_of_2(conv.shape[0]), GROUP=heads // key_heads,
        K=triton.next_power_of_2(key_dim), V=triton.next_power_of_2(dim), num_warps=STEP_WARPS,
        **early(proj, True),
    )  # fmt: skip
    return out


def attend_one(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Tensor,
    values: Tensor,
    position: Tensor,
    freq: Tensor,
    q_scale: Tensor | None,
    k_scale: Tensor | None,
    eps: float,
    gate: Tensor | None,
    valid: Tensor | None = None,
) -> Tensor:
    """Run full attention between its two products on one token.

    Args:
        q: [1, H, D], not yet normed or rotated, may be strided; as `k`, `v` and `gate`.
        k: [1, KV, D].
        v: [1, KV, D].
        keys: [KV, T, D]; slot `position` is written.
        values: [KV, T, D], likewise.
        position: int64 [1].
        freq: float32 [R].
        q_scale: float32 [D], or None for no norm.
        k_scale: float32 [D], or None.
        eps: of the norms.
        gate: [1, H, D], or None.
        valid: int64 [1]: the token is the last of so many behind `position`, whose keys and
            values are in their slots (k and v are not read); None: it is the only one.

    Returns:
        [1, H * D].
    """
    heads, dim = q.shape[1:]
    kv, capacity = keys.shape[:2]
    g = heads // kv
    group, width = max(16, triton.next_power_of_2(g)), max(16, triton.next_power_of_2(dim))
    part = torch.empty((kv * SPLITS * group, width), dtype=torch.float32, device=q.device)
    mass = torch.empty((kv * SPLITS * group, 2), dtype=torch.float32, device=q.device)
    attend_one_kernel[(kv, SPLITS)](
        q, k, v, keys, values, q if q_scale is None else q_scale,
        k if k_scale is None else k_scale, freq, position,
        position if valid is None else valid, part, mass,
        q.stride(1), kv, capacity, dim, freq.shape[0], eps, dim**-0.5 * LOG2_E,
        NORM=q_scale is not None, FRESH=valid is None, G=g, GROUP=group, SPLITS=SPLITS,
        N=32, D=width,
        num_warps=4, num_stages=2, **early(q, True),
    )  # fmt: skip
    out = torch.empty((1, heads * dim), dtype=q.dtype, device=q.device)
    columns = min(width, 64)
    merge_one_kernel[(heads, width // columns)](
        part, mass, q if gate is None else gate, out, 0 if gate is None else gate.stride(1), dim,
        GATE=gate is not None, G=g, GROUP=group, SPLITS=SPLITS, D=width, N=columns, num_warps=4,
        **early(q, True),
    )  # fmt: skip
    return out
