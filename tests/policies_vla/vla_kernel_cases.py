"""Every Triton kernel of the vision-language-action policies against its torch reference.

Run as a script it takes the device, the element type and a seed: `vla_kernel_cases.py cpu float32
0` under TRITON_INTERPRET=1 needs no GPU. The reference is computed in float64. Each case returns
the largest error relative to the largest value; the script fails when one is above its bound.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / 'policies_lm'))
from lm_kernel_cases import Draw, interpreter_with_new_numpy

from flashrt_policies.kernels.vla import attention as vla_attention
from flashrt_policies.kernels.vla import norm as vla_norm
from flashrt_policies.kernels.vla import rope as vla_rope
from flashrt_policies.kernels.vla.linear import Euler, Stream
from flashrt_policies.kernels.vla.matrix import Matrix, quantised
from flashrt_policies.kernels.vla.rope import Heads, Rotary

Errors = Iterator[tuple[str, float]]
PULL = 3.0  # guidance weight that the steps are checked with


def error(found: Tensor, want: Tensor) -> float:
    """Return the largest error relative to the largest value; NaN counts as infinite."""
    want = want.double().cpu()
    off = (found.double().cpu() - want).abs().max() / want.abs().max().clamp(min=1e-12)
    return float('inf') if bool(off.isnan()) else float(off)


def wide(x: Tensor) -> Tensor:
    """Return what a tensor holds, in float64 on the CPU."""
    return x.double().cpu()


def norms(d: Draw) -> Errors:
    """Layer norm with its residual, and gating by both activations."""
    from flashrt_policies.kernels.vla import norm_triton as kernels

    for rows, width in ((1, 40), (5, 129), (3, 64)):
        x, delta = d.normal(rows, width), d.normal(rows, width)
        weight, bias = d.normal(width), d.normal(width)
        sum_ = (x.float() + delta.float()).to(d.dtype)
        want = torch.nn.functional.layer_norm(wide(sum_), (width,), wide(weight), wide(bias), 1e-6)
        found = kernels.add_layer_norm(x, delta, weight, bias, 1e-6)
        yield f'layer norm {rows}x{width}', max(error(found, want), error(x, sum_))
        for kind in vla_norm.ACTIVATIONS:
            pair = d.normal(rows, 2 * width)
            yield (
                f'{kind} {rows}x{width}',
                error(kernels.gated(pair, kind), vla_norm.gated(wide(pair), kind)),
            )


def table(d: Draw, positions: int, dim: int) -> tuple[Rotary, Rotary]:
    """Return rotary tables on the device, and in float64."""
    made = vla_rope.rotary(positions, dim, 1e4, torch.device(d.device))
    return made, Rotary(wide(made.cos), wide(made.sin))


def rotations(d: Draw) -> Errors:
    """The split of a joint projection, with keys and values in the middle of a cache."""
    from flashrt_policies.kernels.vla import rope_triton as kernels

    for rows, heads in ((3, Heads(2, 1, 16)), (5, Heads(3, 1, 64)), (2, Heads(4, 2, 32))):
        made, exact = table(d, 40, heads.dim)
        qkv = d.normal(rows, (heads.queries + 2 * heads.kv) * heads.dim)
        positions = torch.randint(0, 40, (rows,), dtype=torch.int32).to(d.device)
        cache = d.normal(2, rows + 4, heads.kv, heads.dim)
        truth = torch.zeros(2, rows, heads.kv, heads.dim, dtype=torch.float64)
        spots = cache[0, 1 : 1 + rows], cache[1, 2 : 2 + rows]
        before = cache.clone()
        q = kernels.split_rotate(qkv, made, positions, heads, *spots)
        want = vla_rope.split_rotate_plain(
            wide(qkv), exact, positions.cpu(), heads, truth[0], truth[1]
        )
        worst = max(error(q, want), *(error(a, b) for a, b in zip(spots, truth, strict=True)))
        same = torch.equal(before[0, :1], cache[0, :1]) and torch.equal(
            before[0, 1 + rows :], cache[0, 1 + rows :]
        )
        yield f'rotate {rows} {tuple(heads)}', worst if same else float('inf')


def attention(d: Draw) -> Errors:
    """Ranks of every kind: padding, a state that sees no actions, causal actions."""
    from flashrt_policies.kernels.vla import attention_triton as kernels

    cases = ((3, 5, Heads(2, 1, 16)), (11, 150, Heads(3, 1, 64)), (9, 130, Heads(4, 2, 32)))
    for tokens, span, heads in cases:
        q = d.normal(tokens, heads.queries, heads.dim)
        k, v = d.normal(2, span, heads.kv, heads.dim)
        rank_k = torch.zeros(span, dtype=torch.int32)
        rank_k[span // 2 : span // 2 + 2] = vla_attention.HIDDEN
        rank_k[-tokens:] = torch.arange(tokens, dtype=torch.int32) + 1
        rank_q = torch.arange(tokens, dtype=torch.int32) + 1
        on = (q, k, v, rank_q.to(d.device), rank_k.to(d.device))
        want = exact_attention(wide(q), wide(k), wide(v), rank_q, rank_k)
        for busy in (1, 132):  # whole, and in parts
            with (
                mock.patch.object(kernels, 'processors', lambda device, busy=busy: busy),
                mock.patch.object(kernels, 'FEW', 0),
            ):
                found = kernels.attend(*on)
            yield f'attend {tokens}x{span} {tuple(heads)} on {busy}', error(found, want)


def exact_attention(q: Tensor, k: Tensor, v: Tensor, rank_q: Tensor, rank_k: Tensor) -> Tensor:
    """`attend_plain` without its rounding to float32."""
    group = q.shape[1] // k.shape[1]
    keys, values = (x.repeat_interleave(group, 1) for x in (k, v))
    scores = torch.einsum('thd,shd->hts', q, keys) * q.shape[-1] ** -0.5
    scores = scores.masked_fill(rank_k[None, None] > rank_q[None, :, None], float('-inf'))
    return torch.einsum('hts,shd->thd', scores.softmax(-1), values)


def products(d: Draw) -> Errors:
    """Few rows: plain, normed, gated, added, split into heads; in float8 as well."""
    from flashrt_policies.kernels.vla import linear_triton as kernels

    for rows, width, depth in ((1, 32, 32), (5, 48, 40), (70, 64, 128)):
        x, plain = d.normal(rows, depth), d.normal(width, depth, std=depth**-0.5)
        scale, bias = d.wide(depth), d.wide(width)
        for weight in (Matrix(plain), quantised(plain)):
            name = f'{rows}x{width}x{depth}' + (' float8' if weight.scale is not None else '')
            exact = wide(weight.data.float())
            if weight.scale is not None:
                exact = exact * wide(weight.scale)[:, None]
            if weight.scale is None:
                found = kernels.project(x, weight, bias, 'silu')
                want = vla_norm.activate(wide(x) @ exact.mT + wide(bias), 'silu')
                yield f'project {name}', error(found, want)
            y = norm(wide(x), wide(scale)) @ exact.mT + wide(bias)
            pair = y.unflatten(-1, (-1, 2))
            want = vla_norm.activate(pair[..., 0], 'gelu') * pair[..., 1]
            for stream in (Stream(x), prepared(x, scale)):
                ahead = stream.scaled is not None
                found = kernels.project_gated(stream, weight, bias, scale, 1e-6, 'gelu')
                yield f'gated {name} ahead={ahead}', error(found, want)
            yield from sums(d, x, weight, exact, name)


def prepared(x: Tensor, scale: Tensor) -> Stream:
    """Return a stream whose next norm is prepared, in tiles of three columns."""
    scaled = (x.float() * scale).to(x.dtype)
    tiles = torch.nn.functional.pad(x.float().square(), (0, -x.shape[1] % 3)).unflatten(1, (-1, 3))
    return Stream(x, scaled, tiles.sum(-1).mT.contiguous())


def sums(d: Draw, x: Tensor, weight: Matrix, exact: Tensor, name: str) -> Errors:
    """What is added to the stream, and the norm that is prepared with it: whole and in parts."""
    from flashrt_policies.kernels.vla import linear_triton as kernels

    rows, width = x.shape[0], exact.shape[0]
    start, gate, scale = d.normal(rows, width), d.wide(width), d.wide(width)
    want = wide(start) + (wide(x) @ exact.mT) * wide(gate)
    for deep in (1 << 20, 32):
        with (
            mock.patch.object(kernels, 'DEEP', deep),
            mock.patch.object(kernels, 'DEPTH', 32),
        ):
            stream = Stream(start.clone())
            kernels.project_add(stream, x, weight, gate, scale)
        worst = error(stream.x, want)
        assert stream.scaled is not None and stream.squares is not None
        worst = max(
            worst,
            error(stream.scaled, wide(stream.x) * wide(scale)),
            error(stream.squares.sum(0), wide(stream.x).square().sum(1)),
        )
        clean = not kernels.counters(x.device).any()
        yield f'add {name} deep={deep}', worst if clean else float('inf')


def norm(x: Tensor, scale: Tensor) -> Tensor:
    """Root-mean-square norm in the type of `x`."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * scale


def heads(d: Draw) -> Errors:
    """Norm, joint projection and rotation in one launch."""
    from flashrt_policies.kernels.vla import linear_triton as kernels

    for rows, shape, depth in ((3, Heads(2, 1, 16), 40), (18, Heads(3, 1, 64), 36)):
        made, exact = table(d, 40, shape.dim)
        width = (shape.queries + 2 * shape.kv) * shape.dim
        x, weight = d.normal(rows, depth), Matrix(d.normal(width, depth, std=depth**-0.5))
        scale, bias = d.wide(depth), d.wide(width)
        positions = torch.arange(rows, dtype=torch.int32, device=d.device) + 3
        cache = d.normal(2, rows, shape.kv, shape.dim)
        truth = torch.zeros(2, rows, shape.kv, shape.dim, dtype=torch.float64)
        q = kernels.project_heads(
            prepared(x, scale), weight, bias, scale, 1e-6, made, positions, shape, *cache
        )
        y = norm(wide(x), wide(scale)) @ wide(weight.data).mT + wide(bias)
        want = vla_rope.split_rotate_plain(y, exact, positions.cpu(), shape, *truth)
        worst = max(error(q, want), error(cache[0], truth[0]), error(cache[1], truth[1]))
        yield f'heads {rows} {tuple(shape)}', worst
        only = Matrix(weight.data[: shape.queries * shape.dim].contiguous())
        bias = bias[: shape.queries * shape.dim].contiguous()
        again = kernels.project_heads(
            Stream(x), only, bias, scale, 1e-6, made, positions, shape, cache[0], cache[1]
        )
        yield f'queries alone {rows} {tuple(shape)}', error(again, want)


def joints(d: Draw) -> Errors:
    """Projection and attention in one launch: over the prefix alone, and themselves as well."""
    from flashrt_policies.kernels.vla import joint_triton as kernels

    cases = (
        (3, 5, Heads(2, 1, 16), 40),
        (11, 150, Heads(3, 1, 64), 128),
        (9, 40, Heads(4, 2, 32), 36),
    )
    for rows, prefix, shape, depth in cases:
        made, exact = table(d, prefix + rows, shape.dim)
        width, queries = (shape.queries + 2 * shape.kv) * shape.dim, shape.queries * shape.dim
        x, scale = d.normal(rows, depth), d.wide(depth)
        positions = torch.arange(rows, dtype=torch.int32, device=d.device) + prefix
        kv = d.normal(2, prefix + rows, shape.kv, shape.dim)
        own = torch.arange(rows, dtype=torch.int32) + 1
        rank = torch.zeros(prefix, dtype=torch.int32)
        rank[prefix // 2 : prefix // 2 + 2] = vla_attention.HIDDEN
        every = torch.cat((rank, own))
        ranks = own.to(d.device), every.to(d.device)
        for crossing, float8, bias in (
            (False, False, True),
            (True, False, False),
            (False, True, True),
        ):
            plain = d.normal(queries if crossing else width, depth, std=depth**-0.5)
            weight = quantised(plain) if float8 else Matrix(plain)
            shift = d.wide(len(plain)) if bias else None
            y = norm(wide(x), wide(scale)) @ wide(weight.dense(torch.float32)).mT
            y = y if shift is None else y + wide(shift)
            truth = wide(kv).clone()
            only = Heads(shape.queries, 0, shape.dim) if crossing else shape
            into = truth[:, prefix:, : only.kv]
            q = vla_rope.split_rotate_plain(y, exact, positions.cpu(), only, *into)
            span = prefix if crossing else prefix + rows
            want = exact_attention(q, *truth[:, :span], own, every[:span])
            for stream in (Stream(x), prepared(x, scale)):
                found = kernels.project_attend(
                    stream, weight, shift, scale, 1e-6, made, positions, ranks, shape, kv
                )
                ahead = stream.scaled is not None
                yield (
                    f'{rows}+{prefix} {tuple(shape)} {crossing=} {float8=} {ahead=}',
                    error(found, want),
                )


def steps(d: Draw) -> Errors:
    """One Euler step under guidance, the rows behind a first one that takes no part."""
    from flashrt_policies.kernels.vla import linear_triton as kernels

    for rows, width, depth in ((10, 32, 48), (3, 7, 40)):
        h, weight = d.normal(rows + 1, depth), Matrix(d.normal(width, depth, std=depth**-0.5))
        scale, bias = d.wide(depth), d.wide(width)
        x, target, held = d.wide(rows, width), d.wide(rows, width), d.wide(rows, 1)
        want = wide(x)
        velocity = norm(wide(h[1:]), wide(scale)) @ wide(weight.data).mT + wide(bias)
        Euler(want, wide(target), wide(held), 0.7, PULL, 0.1).advance(velocity)
        for stream in (Stream(h), prepared(h, scale)):
            found = x.clone()
            step = Euler(found, target, held, 0.7, 3.0, 0.1)
            kernels.project_flow(stream.behind(1), weight, bias, scale, 1e-6, step)
            yield f'step {rows}x{width} ahead={stream.scaled is not None}', error(found, want)


def stacks(d: Draw) -> Errors:
    """A whole step of two layers: every launch in its place, against the plain bodies."""
    from flashrt_policies.kernels.vla import attention_triton as vla_attention_triton
    from flashrt_policies.kernels.vla import joint, joint_triton
    from flashrt_policies.kernels.vla import linear_triton as vla_linear_triton
    from flashrt_policies.vla import expert as module
    from flashrt_policies.vla.sizes import Stack
    from flashrt_policies.vla.tensors import RandomSource

    sums = (
        (module, 'project_add', vla_linear_triton),
        (module, 'project_gated', vla_linear_triton),
    )
    apart = ((joint, 'project_heads', vla_linear_triton), (joint, 'attend', vla_attention_triton))
    together = ((module, 'project_attend', joint_triton),)
    sizes = Stack(40, 2, Heads(2, 1, 16), 48)
    tokens, prefix = 5, 70
    for crossing in (frozenset(), frozenset({1})):
        source = RandomSource(torch.device(d.device), d.dtype)
        expert = module.Expert(source, 'x.', sizes, False, crossing=crossing)
        made, _ = table(d, prefix + tokens, 16)
        kv = d.normal(2, 2, prefix + tokens, 1, 16)
        own = torch.arange(tokens, dtype=torch.int32, device=d.device)
        rank = torch.zeros(prefix, dtype=torch.int32, device=d.device)
        ranks = (own + 2, torch.cat((rank, own + 2)))
        start, scale = d.normal(tokens, 40), d.wide(40)
        results = []
        for replaced in ((), (*sums, *apart), (*sums, *together)):
            x, cache = start.clone(), kv.clone()
            with contextlib.ExitStack() as stack:
                for where, name, kernels in replaced:
                    stack.enter_context(mock.patch.object(where, name, getattr(kernels, name)))
                stream = expert(x, 0, made, (own + prefix, own), ranks, cache, scale)
            results.append((stream.x, cache))
        plain, separate, joined = results
        worst = max(error(a, b) for a, b in zip(separate, plain, strict=True))
        yield f'stack crossing={sorted(crossing)}', worst
        yield f'joint stack crossing={sorted(crossing)}', error(joined[0], plain[0])


def draws(d: Draw) -> Errors:
    """Noise: the plain form's numbers, and its counter, past the 32 bits of a word."""
    from flashrt_policies.kernels import noise
    from flashrt_policies.kernels.vla import noise_triton as kernels

    for count, seed, counter in ((10, 5, 0), (321, 2**40 + 7, 2**32 - 3)):
        key, at = d.number(seed), d.number(counter)
        want_at = torch.tensor([counter])
        want = noise.normal_(
            torch.empty(count, dtype=torch.float64), torch.tensor([seed]), want_at
        )
        found = kernels.normal_(torch.zeros(count, device=d.device), key, at)
        off = error(found, want)
        yield f'noise {count}', off if int(at) == int(want_at) else float('inf')


CASES: dict[str, Callable[[Draw], Errors]] = {
    'norms': norms,
    'rotations': rotations,
    'attention': attention,
    'products': products,
    'heads': heads,
    'joints': joints,
    'steps': steps,
    'stacks': stacks,
    'draws': draws,
}
BOUNDS = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}


def main() -> int:
    """Run the cases named, or all; return 1 when one is above its bound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('device')
    parser.add_argument('dtype')
    parser.add_argument('seed', type=int)
    parser.add_argument('cases', nargs='*', default=list(CASES))
    options = parser.parse_args()
    if options.device == 'cpu':
        interpreter_with_new_numpy()
    dtype = getattr(torch, options.dtype)
    torch.manual_seed(options.seed)
    random.seed(options.seed)
    failed = False
    for case in options.cases:
        for name, off in CASES[case](Draw(options.device, dtype, options.seed)):
            bad = not off <= BOUNDS[dtype]
            failed |= bad
            print(f'{"FAIL" if bad else "ok"} {case}: {name} {off:.2e} (seed {options.seed})')
    return int(failed)


if __name__ == '__main__':
    sys.exit(main())
