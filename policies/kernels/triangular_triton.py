"""Inverse of a unit lower triangular tile inside a Triton kernel, by products alone."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def leading(a):
    """The part of float32 numbers that bfloat16 holds, as float32: the rest is cut off."""
    bits = a.to(tl.int32, bitcast=True) & -65536
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def product(a, b, EXACT: tl.constexpr):
    """Product of float32 tiles to about 17 bits, or with EXACT to float32's own precision.

    Each factor is split in two of bfloat16, whose products the tensor cores take at full rate.
    """
    if EXACT:
        return tl.dot(a, b, input_precision='tf32x3')
    a_high, b_high = leading(a), leading(b)
    a_low, b_low = (a - a_high).to(tl.bfloat16), (b - b_high).to(tl.bfloat16)
    a_high, b_high = a_high.to(tl.bfloat16), b_high.to(tl.bfloat16)
    return tl.dot(a_high, b_high, tl.dot(a_high, b_low, tl.dot(a_low, b_high)))


@triton.jit
def unit_inverse(a, C: tl.constexpr, EXACT: tl.constexpr):
    """Inverse of I + a, a strictly lower triangular [C, C], C a multiple of 8 up to 64.

    The diagonal blocks of 8 are inverted by (I - d)(I + d^2)(I + d^4), exact since d^8 = 0; what
    is left is block-nilpotent and takes as many. Larger blocks would take fewer products, but
    their powers grow: to thousands where every key is alike, and cancel in the end.
    """
    i = tl.arange(0, C)
    eye = (i[:, None] == i[None, :]).to(tl.float32)
    near = (i[:, None] // 8) == (i[None, :] // 8)
    d = tl.where(near, a, 0.0)
    d2 = product(d, d, EXACT)
    d4 = product(d2, d2, EXACT)
    inverse = product(product(eye - d, eye + d2, EXACT), eye + d4, EXACT)
    x = product(inverse, tl.where(near, 0.0, a), EXACT)
    x2 = product(x, x, EXACT)
    x4 = product(x2, x2, EXACT)
    outer = product(product(eye - x, eye + x2, EXACT), eye + x4, EXACT)
    return product(outer, inverse, EXACT)
