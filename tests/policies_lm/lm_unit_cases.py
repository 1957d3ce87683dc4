"""Does a token keep its bits when a replay is cut in two? Kernel by kernel, the same rows twice.

Each case runs one kernel on all rows at once and again on the stretches between `cuts`, and says
whether every output and state has the same bits. Run as a script on a GPU it prints a line per
kernel at Qwen3.5-0.8B's dimensions: `lm_unit_cases.py cuda bfloat16 [SEEDS]`; with `cpu float32`
under TRITON_INTERPRET=1 it does so at small dimensions, without a GPU.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))
import lm_kernel_cases

LARGE = {
    'hidden': 1024, 'products': ((8224, 1024), (1024, 2048), (7168, 1024), (1024, 3584)),
    'delta': (16, 16, 128, 128), 'attention': (8, 2, 256), 'capacity': 9000,
}  # fmt: skip
SMALL = {
    'hidden': 40, 'products': ((33, 70), (20, 64)), 'delta': (1, 2, 8, 20),
    'attention': (2, 1, 16), 'capacity': 200,
}  # fmt: skip
Name = str
Case = Callable[[Any, dict[str, Any], Sequence[int]], Iterator[tuple[Name, bool]]]


def stretches(cuts: Sequence[int]) -> list[slice]:
    """Return the rows between neighbouring cuts."""
    return [slice(a, b) for a, b in itertools.pairwise(cuts)]


def products(d: Any, dims: dict[str, Any], cuts: Sequence[int]) -> Iterator[tuple[Name, bool]]:
    """The product, by our own kernel alone and as the model takes it."""
    from flashrt_policies.kernels import linear_triton

    for columns, depth in dims['products']:
        x, w = d.normal(cuts[-1], depth), d.normal(columns, depth, std=0.02)
        stream, pair, scale = d.normal(cuts[-1], columns), w[: columns // 2 * 2], d.wide(columns)
        takes = {'matmul': linear_triton.matmul}
        if d.device != 'cpu':
            takes['linear'] = linear_triton.linear
        for name, take in takes.items():
            parts = torch.cat([take(x[s].contiguous(), w) for s in stretches(cuts)])
            yield f'{name} {columns}x{depth}', torch.equal(take(x, w), parts)
        whole = linear_triton.gated(x, pair)
        parts = torch.cat([linear_triton.gated(x[s], pair) for s in stretches(cuts)])
        yield f'gated {columns}x{depth}', torch.equal(whole, parts)

        def projected(s: slice) -> Tensor:
            here = stream[s].clone()  # noqa: B023
            h = linear_triton.project(x[s], w, None, here, scale, 1e-6)  # noqa: B023
            return torch.cat((here, h), 1)

        parts = torch.cat([projected(s) for s in stretches(cuts)])
        yield f'project {columns}x{depth}', torch.equal(projected(slice(0, cuts[-1])), parts)


def rows(d: Any, dims: dict[str, Any], cuts: Sequence[int]) -> Iterator[tuple[Name, bool]]:
    """What goes row by row: norms and the activation."""
    from flashrt_policies.kernels import activation_triton, norm_triton

    width, (_, heads, _, dim) = dims['hidden'], dims['delta']
    x, delta, scale = d.normal(cuts[-1], width), d.normal(cuts[-1], width), d.wide(width)
    o, z, plain = d.normal(cuts[-1], heads, dim), d.normal(cuts[-1], heads, dim), d.wide(dim)
    for name, call in (
        ('add_rms_norm', lambda s: norm_triton.add_rms_norm(x[s].clone(), delta[s], scale, 1e-6)),
        ('gated_rms_norm', lambda s: norm_triton.gated_rms_norm(o[s], z[s], plain, 1e-6)),
        ('silu_mul', lambda s: activation_triton.silu_mul(x[s].contiguous())),
    ):
        whole = call(slice(0, cuts[-1]))
        yield name, torch.equal(whole, torch.cat([call(s) for s in stretches(cuts)]))


def delta(d: Any, dims: dict[str, Any], cuts: Sequence[int]) -> Iterator[tuple[Name, bool]]:
    """The gated delta rule with its convolution, and the state it leaves."""
    from flashrt_policies.kernels import gated_delta_triton

    size = dims['delta']
    proj, window, state, *rest = lm_kernel_cases.delta_inputs(d, cuts[-1], size, 4)
    rest += [d.wide(size[3]), 1e-6]
    found = []
    for edges in ((0, cuts[-1]), cuts):
        w, s = window.clone(), state.clone()
        outs = [
            gated_delta_triton.mix(proj[e], w, s, *rest, d.number(e.stop - e.start), size)
            for e in stretches(edges)
        ]
        found.append((torch.cat(outs), s, w))
    for name, one, two in zip(('out', 'state', 'window'), *found, strict=True):
        yield f'delta {name}', torch.equal(one, two)


def attention(d: Any, dims: dict[str, Any], cuts: Sequence[int]) -> Iterator[tuple[Name, bool]]:
    """Placing and attending behind other tokens, also across a place where keys are split."""
    from flashrt_policies.kernels import attention_triton, place_triton

    (heads, kv, dim), capacity, last = dims['attention'], dims['capacity'], cuts[-1]
    freq = 10000.0 ** -(torch.arange(dim // 8, device=d.device) / (dim // 8))
    scales = (d.wide(dim), d.wide(dim))
    before = d.normal(2 * kv, capacity, dim)
    split = attention_triton.SPLIT
    places = (64,) if d.device == 'cpu' else (0, 64, split - 64, split + 64)
    for position in places:
        q, k, v = qkv(d, last, heads, kv, dim)
        found: list[tuple[Tensor, ...]] = []
        for edges in ((0, last), cuts):
            buffer, outs, placed = before.clone(), [], []
            for e in stretches(edges):
                at, count = d.number(position + e.start), d.number(e.stop - e.start)
                placed.append(
                    place_triton.place(
                        q[e, :, :dim], k[e], v[e], buffer[:kv], buffer[kv:], at, count, freq,
                        *scales, 1e-6,
                    )
                )  # fmt: skip
                outs.append(
                    attention_triton.attend(
                        placed[-1], buffer[:kv], buffer[kv:], at, count, q[e, :, dim:]
                    )
                )
            found.append((torch.cat(placed), buffer, torch.cat(outs)))
        for name, one, two in zip(('queries', 'keys', 'out'), *found, strict=True):
            yield f'attention {name} at {position}', torch.equal(one, two)


def qkv(d: Any, count: int, heads: int, kv: int, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries with gates [M, H, 2 D], keys and values [M, KV, D] of one projection."""
    proj = d.normal(count, (2 * heads + 2 * kv) * dim)
    q, k, v = proj.split((2 * heads * dim, kv * dim, kv * dim), 1)
    return (
        q.unflatten(1, (heads, 2 * dim)), k.unflatten(1, (kv, dim)), v.unflatten(1, (kv, dim)),
    )  # fmt: skip


CASES: tuple[Case, ...] = (rows, products, delta, attention)


def compare(
    d: Any, dims: dict[str, Any], cuts: Sequence[int], cases: Sequence[Case] = CASES
) -> Iterator[tuple[Name, bool]]:
    """Every kernel at one way of cutting."""
    for case in cases:
        for name, same in case(d, dims, cuts):
            yield f'{name}, rows {cuts}', same


def main() -> int:
    """Print a line per kernel and cut; return 1 when any bits differ."""
    from flashrt_policies.kernels import linear_triton

    device, dtype = sys.argv[1], getattr(torch, sys.argv[2])
    torch.set_num_threads(1)
    cases = CASES
    if device == 'cpu':
        lm_kernel_cases.interpreter_with_new_numpy()
        # One kernel for every height: numpy's exponential rounds by where a number lies.
        linear_triton.LIBRARY_ROWS = 1 << 30
        dims, cuts, seeds = SMALL, [(0, 64, 128)], 1
        cases = cases[1:]  # what goes row by row does not meet the cut
    else:
        dims, seeds = LARGE, int(sys.argv[3]) if len(sys.argv) > 3 else 3
        cuts = [(0, 64, 128), (0, 64, 2048), (0, 1024, 2048), (0, 64, 192, 448, 960)]
    if sys.argv[-1] == 'unaligned':
        cuts, cases = [(0, 32, 64)], (delta,)
    bad = 0
    for cut in cuts:
        verdicts: dict[str, list[bool]] = {}
        for seed in range(seeds):
            draw = lm_kernel_cases.Draw(device, dtype, seed)
            for name, same in compare(draw, dims, cut, cases):
                verdicts.setdefault(name, []).append(same)
        for name, found in verdicts.items():
            bad += not all(found)
            print(f'{"same  " if all(found) else "DIFFER"} {name}: {sum(found)}/{len(found)}',
                  flush=True)  # fmt: skip
    return int(bad > 0)


if __name__ == '__main__':
    sys.exit(main())
