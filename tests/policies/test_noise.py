"""Promise: noise is Philox4x32-10, normal, independent, and its whole state is two buffers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from flashrt_policies.kernels import noise

MASK = 0xFFFFFFFF

# Known answers of Random123's kat_vectors for philox4x32-10: counter, key, result.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((MASK,) * 4, (MASK,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def reference(counter: tuple[int, ...], key: tuple[int, ...]) -> tuple[int, ...]:
    """Philox4x32-10 in Python's unbounded integers, written from the paper."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & MASK, (p0 >> 32) ^ c3 ^ k1, p0 & MASK
        k0, k1 = (k0 + 0x9E3779B9) & MASK, (k1 + 0xBB67AE85) & MASK
    return c0, c1, c2, c3


def buffers(seed: int, counter: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a seed and a counter, int64 [1] each."""
    return torch.tensor([seed]), torch.tensor([counter])


@pytest.mark.parametrize(('counter', 'key', 'result'), KNOWN)
def test_known_answers(
    counter: tuple[int, ...], key: tuple[int, ...], result: tuple[int, ...]
) -> None:
    """The published vectors come out, of the reference and of the torch operations."""
    assert reference(counter, key) == result
    c = [torch.tensor([word]) for word in counter]
    k = [torch.tensor([word]) for word in key]
    got = noise.philox((c[0], c[1], c[2], c[3]), (k[0], k[1]))
    assert got.tolist() == [list(result)]


def test_planted_fault_is_seen() -> None:
    """Nine rounds, or a multiplier off by one bit, give other words (the check can fail)."""
    saved = noise._ROUNDS
    try:
        noise._ROUNDS = 9
        zero = torch.zeros(1, dtype=torch.int64)
        assert noise.philox((zero,) * 4, (zero, zero)).tolist() != [list(KNOWN[0][2])]
    finally:
        noise._ROUNDS = saved


def test_words_match_the_reference_at_random_seeds_and_counters() -> None:
    """Seeds and counters of 64 bits, negative ones too, agree with the reference."""
    case = 20240607
    print('seed', case)
    draw = np.random.default_rng(case)
    for _ in range(20):
        seed, start = (int(x) for x in draw.integers(-(2**63), 2**63 - 100, size=2))
        s, c = buffers(seed, start)
        got = noise.words_(10, s, c).tolist()
        want: list[int] = []
        for block in range(start, start + 3):
            word = block % 2**64
            key = seed % 2**64
            want += reference((word & MASK, word >> 32, 0, 0), (key & MASK, key >> 32))
        assert got == want[:10]
        assert c.item() == start + 3


def test_moments_and_independence() -> None:
    """Mean, spread, skew, tails and correlations are those of independent standard normals."""
    seed, counter = buffers(7)
    draws = noise.normal_(torch.empty(200_000, dtype=torch.float64), seed, counter).numpy()
    n = draws.size
    assert abs(draws.mean()) < 4 / math.sqrt(n)
    assert abs(draws.var() - 1) < 4 * math.sqrt(2 / n)
    assert abs((draws**3).mean()) < 4 * math.sqrt(15 / n)
    assert abs((np.abs(draws) > 1.959964).mean() - 0.05) < 4 * math.sqrt(0.05 * 0.95 / n)
    for lag in (1, 2, 3, 4, 8, 64, n // 2):
        assert abs((draws[lag:] * draws[:-lag]).mean()) < 4.5 / math.sqrt(n - lag)
    other = noise.normal_(torch.empty(n, dtype=torch.float64), *buffers(8)).numpy()
    assert abs((draws * other).mean()) < 4 / math.sqrt(n)
    later = noise.normal_(torch.empty(n, dtype=torch.float64), seed, counter).numpy()
    assert abs((draws * later).mean()) < 4 / math.sqrt(n)


def test_same_counter_same_bits_and_the_counter_moves_on() -> None:
    """A restored counter draws the same bits; without restoring, new ones."""
    seed, counter = buffers(3)
    first = noise.normal_(torch.empty(16, 4), seed, counter).clone()
    assert counter.item() == 16
    second = noise.normal_(torch.empty(16, 4), seed, counter).clone()
    assert not torch.equal(first, second)
    counter.zero_()
    assert torch.equal(noise.normal_(torch.empty(16, 4), seed, counter), first)


def test_element_types_round_one_draw() -> None:
    """float32 and float64 see the same draw, rounded once."""
    wide = noise.normal_(torch.empty(9, dtype=torch.float64), *buffers(5))
    narrow = noise.normal_(torch.empty(9), *buffers(5))
    assert torch.equal(wide.to(torch.float32), narrow)
