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
from collections.abc import Callable
from unittest import mock

import torch
from torch import Tensor
from vla_attention_cases import attention, heads, rotations
from vla_case_tools import Draw, Errors, error, norm, prepared, table, wide

from flashrt_policies.kernels.vla import norm as vla_norm
from flashrt_policies.kernels.vla.linear import Euler, Stream
from flashrt_policies.kernels.vla.matrix import Matrix, quantised
from flashrt_policies.kernels.vla.rope import Heads

PULL = 3.0  # guidance weight that the steps are checked with


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


def products(d: Draw) -> Errors:
    """Few rows: plain, normed, gated, added, split into heads; in float8 as well."""
    from flashrt_policies.kernels.vla import linear_triton as kernels

    usual = kernels.BUSY
    # Tiles as narrow as a full GPU wants them, and then the widest.
    for rows, width, depth, busy in ((1, 32, 32, usual), (5, 48, 40, usual), (70, 160, 128, 0.0)):
        x, plain = d.normal(rows, depth), d.normal(width, depth, std=depth**-0.5)
        scale, bias = d.wide(depth), d.wide(width)
        for weight in (Matrix(plain), quantised(plain)):
            with mock.patch.object(kernels, 'BUSY', busy):
                yield from product(d, x, weight, scale, bias, f'{rows}x{width}x{depth}')


def product(d: Draw, x: Tensor, weight: Matrix, scale: Tensor, bias: Tensor, name: str) -> Errors:
    """One weight matrix by every end of a product, but for heads and steps."""
    from flashrt_policies.kernels.vla import linear_triton as kernels

    exact = wide(weight.data.float())
    if weight.scale is None:
        found = kernels.project(x, weight, bias, 'silu')
        want = vla_norm.activate(wide(x) @ exact.mT + wide(bias), 'silu')
        yield f'project {name}', error(found, want)
    else:
        exact, name = exact * wide(weight.scale)[:, None], f'{name} float8'
    y = norm(wide(x), wide(scale)) @ exact.mT + wide(bias)
    pair = y.unflatten(-1, (-1, 2))
    want = vla_norm.activate(pair[..., 0], 'gelu') * pair[..., 1]
    for stream in (Stream(x), prepared(x, scale)):
        ahead = stream.scaled is not None
        found = kernels.project_gated(stream, weight, bias, scale, 1e-6, 'gelu')
        yield f'gated {name} ahead={ahead}', error(found, want)
    yield from sums(d, x, weight, exact, name)


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
    if d.device != 'cpu':
        return  # the plain bodies are the CPU's
    from flashrt_policies.kernels.vla import attention_triton as vla_attention_triton
    from flashrt_policies.kernels.vla import linear_triton as vla_linear_triton
    from flashrt_policies.vla import expert as module
    from flashrt_policies.vla.sizes import Stack
    from flashrt_policies.vla.tensors import RandomSource

    ours = (
        (module, 'project_heads', vla_linear_triton),
        (module, 'attend', vla_attention_triton),
        (module, 'project_add', vla_linear_triton),
        (module, 'project_gated', vla_linear_triton),
    )
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
        for replaced in ((), ours):
            x, cache = start.clone(), kv.clone()
            with contextlib.ExitStack() as stack:
                for where, name, kernels in replaced:
                    stack.enter_context(mock.patch.object(where, name, getattr(kernels, name)))
                turns = made.at(own + prefix), made.first(tokens)
                stream = expert(x, 0, turns, ranks, cache, scale)
            results.append((stream.x, cache))
        plain, found = results
        worst = max(error(a, b) for a, b in zip(found, plain, strict=True))
        yield f'stack crossing={sorted(crossing)}', worst


def frames(d: Draw) -> Errors:
    """What steps share: with a chunk before and without, its rest shorter than the delay too."""
    from flashrt_policies.kernels.vla import frame as plain
    from flashrt_policies.kernels.vla import frame_triton as kernels

    for layout, leading, elapsed, delay in (
        (plain.Layout(512, 200, 0), 0, 2, 4), (plain.Layout(8, 5, 1), 1, 0, 6),
        (plain.Layout(600, 48, 1), 0, 7, 9), (plain.Layout(3, 1, 0), 1, 40, 2),
    ):  # fmt: skip
        previous, suffix = torch.randn(11, 7), torch.arange(11 + leading, dtype=torch.int32) + 2
        exact = previous.double()
        numbers = torch.tensor([layout.prompt - 1]), torch.tensor([elapsed, delay])
        want = plain.frame_plain(layout, suffix, numbers[0], exact, numbers[1])
        on = [x.to(d.device) for x in (suffix, numbers[0], previous, numbers[1])]
        found = kernels.frame(layout, *on)
        worst = max(error(found.held, want.held), error(found.target, want.target))
        same = all(torch.equal(a.cpu(), b) for a, b in zip(found[:2], want[:2], strict=True))
        yield f'frame {tuple(layout)} {elapsed} {delay}', worst if same else float('inf')


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
    'steps': steps,
    'stacks': stacks,
    'frames': frames,
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
        from lm_kernel_cases import interpreter_with_new_numpy

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
