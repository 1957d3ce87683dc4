"""What a chunk of the gated delta rule is to a state, inside Triton kernels of texts and rounds.

What a chunk of C tokens does to the state S [K, V] is affine, S <- a S + R^T S + k^T u, and what
it reads is too, o = Q S + O. With A = tril(diag(beta) k k^T, -1), T = (I + A)^-1 diag(beta),
decays g [C] summed up within the chunk and D = tril(exp(g_i - g_j)), the UT transform (arXiv
2412.06464, section 3.3) reads

    w = T k,  U = (T o D) v,
    a = exp(g_C),  R = -a w^T k,  u = exp(g_C - g) U,
    Q = exp(g) (q - tril(q k^T) w),  O = (q k^T o D) U.

The system is solved without decay, which then enters as factors of rows: T, w and k serve twice.
`prepare` makes these for one chunk and head, `walk` takes a state over chunks, `read` answers.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton
import triton.language as tl

# How the triangular system of a chunk is multiplied out where results are rounded to two bytes.
INVERSE = 'tf32'
# Warps of a kernel around `prepare`, `walk` and `read`; sums within a row depend on the last.
PREPARE_WARPS, WALK_WARPS, READ_WARPS = 4, 4, 8
WALK_COLUMNS = 64  # columns of the state that one program of the walk holds


def inverse_precision(dtype: torch.dtype) -> str:
    """Return the precision of `unit_inverse` for elements of a type."""
    return 'tf32x3' if dtype == torch.float32 else INVERSE


@triton.jit
def unit_inverse(a, C: tl.constexpr, PRECISION: tl.constexpr):
    """Inverse of I + a, a float32 strictly lower triangular [C, C], C a power of two.

    Blocks on the diagonal are inverted, doubling in size: where T inverts those of one size, and L
    is what a has below them in those of twice the size, T - T L T inverts the latter. No number
    grows on the way, so products may be rounded about as the result will be.
    """
    i = tl.arange(0, C)
    apart = i[:, None] ^ i[None, :]
    inverse = tl.where(apart == 0, 1.0, tl.where(apart == 1, -a, 0.0))
    size = 2
    while size < C:
        below = tl.dot(inverse, a, input_precision=PRECISION)
        below = tl.where(apart // size == 1, below, 0.0)
        inverse -= tl.dot(below, inverse, input_precision=PRECISION)
        size *= 2
    return inverse


@triton.jit
def soft_plus(a):
    """log(1 + exp(a)), also where exp(a) is far below one."""
    e = tl.exp(tl.minimum(a, 20.0))
    small = e * (1.0 - 0.5 * e)
    return tl.where(a > 20.0, a, tl.where(e < 1e-3, small, tl.log(1.0 + e)))


@triton.jit
def swish(x):
    """SiLU, x / (1 + exp(-x)), in a quarter of the instructions that a division takes."""
    root = tl.rsqrt(1.0 + tl.exp2(x * -1.4426950408889634))
    return x * root * root


@triton.jit
def sum_beside(g, beta, more, beta_there):
    """Combine two stretches of a scan: decays are summed, step sizes stay as they are."""
    return g + more, beta_there


@triton.jit
def settled(acc, normed, unit, l2_eps):
    """SiLU of convolved heads [H, D], float32; where `normed` [H, 1], their norm times `unit`."""
    y = swish(acc)
    length = tl.rsqrt(tl.sum(y * y, 1) + l2_eps)[:, None]
    return y * tl.where(normed, length * unit, 1.0)


@triton.jit
def prepare(
    mixed_ptr, proj_ptr, decay_ptr, bias_ptr, row, real, slot, goes_on,
    turn_ptr, keys_ptr, new_ptr, ask_ptr, own_ptr, last_ptr,
    proj_row, channels, key_heads, heads, key_dim, dim, head,
    C: tl.constexpr, K: tl.constexpr, V: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write Q [C, K] and O [C, V] of one chunk and head; if it goes on, k, u [C, V], R [K, K], a.

    The chunk's rows are `row` [C], of which `real` count; `slot` numbers the chunk and head.
    """
    kind = own_ptr.dtype.element_ty
    key_head = head // (heads // key_heads)
    i, at_k, at_v = tl.arange(0, C), tl.arange(0, K), tl.arange(0, V)
    in_k = real[:, None] & (at_k < key_dim)[None, :]
    in_v = real[:, None] & (at_v < dim)[None, :]
    line = mixed_ptr + row[:, None] * channels
    k = tl.load(line + ((key_heads + key_head) * key_dim + at_k)[None, :], mask=in_k, other=0.0)
    q = tl.load(line + (key_head * key_dim + at_k)[None, :], mask=in_k, other=0.0)
    value = 2 * key_heads * key_dim + head * dim + at_v
    v = tl.load(line + value[None, :], mask=in_v, other=0.0)
    by_key = slot * C * K + i[:, None] * K + at_k[None, :]
    by_value = slot * C * V + i[:, None] * V + at_v[None, :]
    tl.store(keys_ptr + by_key, k, mask=goes_on)

    gate = proj_ptr + row.to(tl.int64) * proj_row + channels + heads * dim + head
    b = tl.load(gate, mask=real, other=0.0).to(tl.float32)
    a = tl.load(gate + heads, mask=real, other=0.0).to(tl.float32) + tl.load(bias_ptr + head)
    beta = tl.where(real, tl.sigmoid(b), 0.0)
    g = tl.where(real, tl.load(decay_ptr + head) * soft_plus(a), 0.0)
    # Summed up, [C]; beta goes along, or it would be made anew for every row and column it meets.
    g, beta = tl.associative_scan((g, beta), 0, sum_beside)
    last = tl.sum(tl.where(i == C - 1, g, 0.0), 0)

    lower = i[:, None] >= i[None, :]
    alike = tl.dot(k, tl.trans(k), input_precision='tf32x3') * beta[:, None]
    alike = tl.where(i[:, None] > i[None, :], alike, 0.0)
    solve = unit_inverse(alike, C, PRECISION) * beta[None, :]
    seen = tl.where(lower, tl.dot(q, tl.trans(k), input_precision='tf32x3'), 0.0)
    fade = tl.exp(tl.where(lower, g[:, None] - g[None, :], 0.0))  # what it fades is lower anyway

    u = tl.dot((solve * fade).to(kind), v, input_precision='tf32x3')
    own = tl.dot((seen * fade).to(kind), u.to(kind), input_precision='tf32x3')
    tl.store(own_ptr + by_value, own.to(kind))
    w = tl.dot(solve.to(kind), k, input_precision='tf32x3').to(kind)
    ask = q.to(tl.float32) - tl.dot(seen.to(kind), w, input_precision='tf32x3')
    tl.store(ask_ptr + by_key, (ask * tl.exp(g)[:, None]).to(kind))
    if goes_on:
        tl.store(new_ptr + by_value, (u * tl.exp(last - g)[:, None]).to(kind))
        whole = tl.exp(last)
        tl.store(last_ptr + slot, whole)
        turn = tl.dot(tl.trans(w), k, input_precision='tf32x3') * -whole
        tl.store(turn_ptr + slot * K * K + at_k[:, None] * K + at_k[None, :], turn.to(kind))


@triton.jit
def walk(
    state, turn_ptr, keys_ptr, new_ptr, last_ptr, before_ptr, first, low, high, heads, head, at_v,
    C: tl.constexpr, K: tl.constexpr, V: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Take the columns `at_v` [N] of a state over chunks first + low .. first + high of a head.

    The state is held transposed, [N, K], so that it enters the product from registers; it is kept
    as it was before each chunk.
    """
    kind = before_ptr.dtype.element_ty
    i, at_k = tl.arange(0, C), tl.arange(0, K)
    square = at_k[:, None] * K + at_k[None, :]
    by_key = i[:, None] * K + at_k[None, :]
    by_value = i[:, None] * V + at_v[None, :]
    tile = at_v[:, None] * K + at_k[None, :]
    fade = tl.load(last_ptr + (first + low) * heads + head, mask=low < high, other=1.0)
    for order in tl.range(low, high, num_stages=STAGES):
        slot = ((first + order) * heads + head).to(tl.int64)
        # The next chunk's decay is on its way while this one is computed.
        after = tl.load(last_ptr + slot + heads, mask=order + 1 < high, other=1.0)
        turn = tl.load(turn_ptr + slot * K * K + square)
        keys = tl.load(keys_ptr + slot * C * K + by_key)
        new = tl.load(new_ptr + slot * C * V + by_value)
        more = tl.dot(tl.trans(new), keys, input_precision='tf32x3')
        before = state.to(kind)
        tl.store(before_ptr + slot * V * K + tile, before)
        state = tl.dot(before, turn, tl.fma(state, fade, more), input_precision='tf32x3')
        fade = after
    return state


@triton.jit
def read(
    state, ask_ptr, own_ptr, proj_ptr, norm_ptr, out_ptr, row, real, slot,
    proj_row, channels, heads, dim, head, eps,
    C: tl.constexpr, K: tl.constexpr, V: tl.constexpr,
):  # fmt: skip
    """Write o = Q S + O of one chunk and head, normed and gated: norm(o) * silu(z).

    The chunk's rows are `row` [C], of which `real` count; `state` [K, V] is the one before it.
    """
    i, at_k, at_v = tl.arange(0, C), tl.arange(0, K), tl.arange(0, V)
    row = row.to(tl.int64)[:, None]
    inside = real[:, None] & (at_v < dim)[None, :]
    ask = tl.load(ask_ptr + slot * C * K + i[:, None] * K + at_k[None, :])
    own = tl.load(own_ptr + slot * C * V + i[:, None] * V + at_v[None, :]).to(tl.float32)
    gate = channels + head * dim + at_v
    z = tl.load(proj_ptr + row * proj_row + gate[None, :], mask=inside, other=0.0)
    o = tl.dot(ask, state, own, input_precision='tf32x3')  # [C, V]; zero in columns past dim
    z = z.to(tl.float32)
    scale = tl.load(norm_ptr + at_v, mask=at_v < dim, other=0.0)
    inverse = tl.rsqrt(tl.sum(o * o, 1) / dim + eps)
    y = o * inverse[:, None] * scale[None, :] * swish(z)
    spot = out_ptr + (row * heads + head) * dim + at_v[None, :]
    tl.store(spot, y.to(out_ptr.dtype.element_ty), mask=inside)
