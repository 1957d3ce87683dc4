"""Every Triton kernel of the language model against float64, over odd shapes.

Run as a script it takes the device and the element type, and a seed: `lm_kernel_cases.py cpu
float32 0` under TRITON_INTERPRET=1 needs no GPU. Each case returns the largest error relative to
the largest value; the script fails when one is above its bound.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))
from lm_model_cases import decode, prefill
from lm_truth import attention_truth, delta_truth, error, gated_truth


def interpreter_with_new_numpy() -> None:
    """Let Triton 3.6's interpreter read one-element arrays as numbers under numpy 2.4."""
    import triton.runtime.interpreter as interpreter

    patch = interpreter._patch_lang_tensor

    def patched(tensor: type, scope: object) -> None:
        patch(tensor, scope)
        tensor.__index__ = lambda self: int(self.handle.data.item())  # type: ignore[attr-defined]

    interpreter._patch_lang_tensor = patched


class Draw:
    """Random tensors of one device and type, and the float64 values they hold."""

    def __init__(self, device: str, dtype: torch.dtype, seed: int) -> None:
        self.device, self.dtype, self.rng = device, dtype, random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int, dtype: torch.dtype | None = None, std: float = 1.0) -> Tensor:
        """Return normal numbers in the drawn type."""
        values = torch.empty(shape).normal_(0.0, std, generator=self.generator)
        return values.to(self.device, dtype or self.dtype)

    def wide(self, *shape: int, std: float = 1.0) -> Tensor:
        """Return normal numbers in float32."""
        return self.normal(*shape, dtype=torch.float32, std=std)

    def number(self, value: int) -> Tensor:
        """Return one integer as a tensor of the device."""
        return torch.tensor([value], device=self.device)


def norms(d: Draw) -> Iterator[tuple[str, float]]:
    """The residual norm and the gated norm."""
    from flashrt_policies.kernels import norm_triton

    for rows, width in ((1, 7), (3, 64), (5, 200)):
        x, delta, scale = d.normal(rows, width), d.normal(rows, width), d.wide(width)
        summed = (x.float() + delta.float()).to(d.dtype)
        h = norm_triton.add_rms_norm(x, delta, scale, 1e-6)
        assert torch.equal(x, summed)
        s = summed.double()
        want = s * torch.rsqrt(s.square().mean(-1, keepdim=True) + 1e-6) * scale.double()
        yield f'add_rms_norm {rows}x{width}', error(h, want)
        parts, bias, stream = d.wide(3, rows, width), d.wide(width), d.normal(rows, width)
        summed = stream.double() + parts.double().sum(0) + bias.double()
        h = norm_triton.add_rms_norm(stream, parts, scale, 1e-6, bias)
        yield f'add_rms_norm parts {rows}x{width}', error(stream, summed)
        s = stream.double()
        want = s * torch.rsqrt(s.square().mean(-1, keepdim=True) + 1e-6) * scale.double()
        yield f'add_rms_norm of parts {rows}x{width}', error(h, want)
    for rows, heads, dim in ((2, 3, 20), (3, 5, 128)):
        z = d.normal(rows, heads * dim + 9)[:, : heads * dim].unflatten(1, (heads, dim))
        o, scale = d.normal(rows, heads, dim), d.wide(dim)
        y = norm_triton.gated_rms_norm(o, z, scale, 1e-6)
        w = o.double()
        want = w * torch.rsqrt(w.square().mean(-1, keepdim=True) + 1e-6) * scale.double()
        yield f'gated_rms_norm {rows}x{heads}x{dim}', error(y, want * F.silu(z.double()))


def activation(d: Draw) -> Iterator[tuple[str, float]]:
    """The gated MLP's activation."""
    from flashrt_policies.kernels import activation_triton

    for rows, width in ((1, 5), (3, 1100)):
        x = d.normal(rows, 2 * width)
        gate, up = x.double().chunk(2, -1)
        yield f'silu_mul {rows}x{width}', error(activation_triton.silu_mul(x), F.silu(gate) * up)


def products(d: Draw) -> Iterator[tuple[str, float]]:
    """Products of many rows and of one, with everything fused into the latter."""
    from flashrt_policies.kernels import linear_triton

    for rows, columns, depth in ((2, 33, 70), (65, 40, 128), (130, 70, 64)):
        x, w, b = d.normal(rows, depth), d.normal(columns, depth), d.normal(columns)
        want = x.double() @ w.double().T
        yield f'matmul {rows}x{columns}x{depth}', error(linear_triton.matmul(x, w), want)
        yield 'matmul bias', error(linear_triton.matmul(x, w, b), want + b.double())
        got = linear_triton.matmul(x, w, splits=2).double().sum(0)
        yield 'matmul splits', error(got, want)
        pair = d.normal(2 * columns, depth)
        gate, up = (x.double() @ pair.double().T).chunk(2, -1)
        yield 'matmul pair', error(linear_triton.matmul(x, pair, pair=True), F.silu(gate) * up)
    for columns, depth in ((9, 70), (40, 520)):
        x, w, b = d.normal(1, depth), d.normal(columns, depth), d.normal(columns)
        scale, add, pair = d.wide(depth), d.normal(1, columns), d.normal(2 * columns, depth)
        wide = x.double()
        normed = wide * torch.rsqrt(wide.square().mean() + 1e-6) * scale.double()
        want = wide @ w.double().T
        yield f'row {columns}x{depth}', error(linear_triton.row(x, w), want)
        got = linear_triton.row(x, w, bias=b, scale=scale, eps=1e-6)
        yield 'row norm bias', error(got, normed @ w.double().T + b.double())
        before = add.double()
        got = linear_triton.row(x, w, add=add)
        assert got is add
        yield 'row add', error(got, want + before)
        gate, up = (normed @ pair.double().T).chunk(2, -1)
        got = linear_triton.row(x, pair, scale=scale, eps=1e-6, pair=True)
        yield 'row pair', error(got, F.silu(gate) * up)


DELTA_SHAPES = (
    # rows, valid, (H, HV, K, V), taps
    (64, 64, (1, 1, 16, 16), 4),
    (128, 65, (1, 2, 8, 20), 3),
    (64, 1, (2, 4, 24, 12), 4),
    (192, 190, (1, 1, 32, 16), 2),
)


def delta_inputs(
    d: Draw, rows: int, dims: tuple[int, int, int, int], taps: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return proj, window, state, conv, decay and bias of a linear layer."""
    key_heads, heads, key_dim, dim = dims
    channels = 2 * key_heads * key_dim + heads * dim
    return (
        d.normal(rows, channels + heads * dim + 2 * heads), d.normal(taps - 1, channels),
        d.wide(heads, key_dim, dim), d.normal(taps, channels, std=0.5),
        -d.wide(heads).abs(), d.wide(heads),
    )  # fmt: skip


def delta(d: Draw) -> Iterator[tuple[str, float]]:
    """The chunked gated delta rule with its convolution, and the single step."""
    from flashrt_policies.kernels import decode_triton, gated_delta_triton

    for rows, valid, dims, taps in DELTA_SHAPES:
        proj, window, state, conv, decay, bias = delta_inputs(d, rows, dims, taps)
        norm = d.wide(dims[3])
        out, after, moved = delta_truth(proj, window, state, conv, decay, bias, valid, dims)
        want = gated_truth(out, proj, conv.shape[1], norm, dims)
        before = (window.clone(), state.clone())
        rest = (conv, decay, bias, norm, 1e-6, d.number(valid), dims)
        # The same in stretches of one chunk.
        with mock.patch.multiple(gated_delta_triton, STRETCH=1, LONG_STRETCH=1):
            single = gated_delta_triton.mix(proj, *before, *rest)
        got = gated_delta_triton.mix(proj, window, state, *rest)
        assert torch.equal(got[:valid], single[:valid]) and torch.equal(state, before[1])
        name = f'delta {valid}/{rows} {dims}'
        yield f'{name} out', error(got[:valid], want)
        yield f'{name} state', error(state, after)
        assert torch.equal(window.double().cpu(), moved)
        proj, window, state, conv, decay, bias = delta_inputs(d, 1, dims, taps)
        out, after, moved = delta_truth(proj, window, state, conv, decay, bias, 1, dims)
        got = decode_triton.delta_step(proj, window, state, conv, decay, bias, norm, 1e-6, dims)
        want = gated_truth(out, proj, conv.shape[1], norm, dims)
        yield f'delta step {dims}', error(got, want)
        yield f'delta step {dims} state', error(state, after)
        assert torch.equal(window.double().cpu(), moved)


ATTENTION_SHAPES = (
    # rows, valid, position, capacity, heads, kv heads, dim, half, gate and norm
    (64, 64, 0, 80, 2, 1, 16, 8, True),
    (64, 3, 37, 150, 3, 1, 24, 3, True),
    (128, 100, 70, 300, 2, 2, 32, 4, False),
    (1, 1, 0, 8, 4, 2, 16, 2, True),
    (1, 1, 131, 140, 3, 1, 20, 10, False),
)


def attention(d: Draw) -> Iterator[tuple[str, float]]:
    """Prefill attention in one split and in several, and the decode step's."""
    from flashrt_policies.kernels import attention_triton, decode_triton, place_triton

    for rows, valid, position, capacity, heads, kv, dim, half, full in ATTENTION_SHAPES:
        width = 2 * dim if full else dim
        proj = d.normal(rows, heads * width + 2 * kv * dim)
        q, k, v = proj.split((heads * width, kv * dim, kv * dim), 1)
        q = q.unflatten(1, (heads, width))
        q, gate = q[..., :dim], q[..., dim:] if full else None
        k, v = k.unflatten(1, (kv, dim)), v.unflatten(1, (kv, dim))
        keys, values = d.normal(kv, capacity, dim), d.normal(kv, capacity, dim)
        freq = d.wide(half).abs()
        scales = (d.wide(dim), d.wide(dim)) if full else (None, None)
        args = [x[:valid] if x is not None else None for x in (q, k, v)]
        want, rotated = attention_truth(
            *args, keys, values, position, freq, *scales,  # type: ignore[arg-type]
            None if gate is None else gate[:valid],
        )  # fmt: skip
        at, count = d.number(position), d.number(valid)
        name = f'attend {valid}/{rows} at {position}'
        if rows == 1:
            got = decode_triton.attend_one(
                q, k, v, keys, values, at, freq, *scales, 1e-6, gate
            ).view(1, heads, dim)
            yield f'{name} one', error(got, want)
            got = decode_triton.attend_one(  # again, now that its key is in its slot
                q, k, v, keys, values, at - 2, freq, *scales, 1e-6, gate, d.number(3)
            ).view(1, heads, dim)
            yield f'{name} last', error(got, want)
        else:
            saved = attention_triton.SPLIT
            for split in (4096, 64):  # whole chunks in one split, and in several to merge
                attention_triton.SPLIT = split
                placed = place_triton.place(q, k, v, keys, values, at, count, freq, *scales, 1e-6)
                got = attention_triton.attend(placed, keys, values, at, count, gate)
                yield f'{name} split {split}', error(got[:valid], want)
            attention_triton.SPLIT = saved
        end = position + valid
        yield f'{name} keys', error(keys[:, position:end], rotated.transpose(0, 1))
        assert torch.equal(values[:, position:end], v[:valid].transpose(0, 1))


def tokens(d: Draw) -> Iterator[tuple[str, float]]:
    """Taking tokens from the prompt, hashing them, and choosing the next."""
    from flashrt_policies.kernels import embed, embed_triton, sampling, sampling_triton

    table, power = d.normal(50, 24), embed.powers(64).to(d.device)
    prompt = torch.randint(0, 50, (100,), generator=d.generator, dtype=torch.int32).to(d.device)
    history = torch.zeros(200, dtype=torch.int32, device=d.device)
    span = torch.tensor([3, 73], device=d.device)
    position, valid, hashed = d.number(5), d.number(0), d.number(embed.digest([1, 2, 3, 4, 5]))
    for count in (64, 6):
        x = embed_triton.take(64, prompt, span, table, history, position, valid, hashed, power)
        assert valid.item() == count
        start = int(span[0])
        want = table[prompt[start : start + count].long()]
        assert torch.equal(x[:count], want) and not x[count:].any()
        embed_triton.advance(span, position, valid)
    assert position.item() == 75 and torch.equal(history[5:75], prompt[3:73])
    assert hashed.item() == embed.digest([1, 2, 3, 4, 5, *prompt[3:73].tolist()])
    x, scale, hidden = d.normal(70, 24), d.wide(24), d.normal(1, 24)
    picked = embed_triton.pick(x, d.number(6))
    assert torch.equal(picked[0], x[5])
    span, here = torch.tensor([3, 9], device=d.device), d.number(5)
    embed_triton.finish(picked, scale, 1e-6, hidden, here, span, d.number(6))
    s = picked.double()
    want = s * torch.rsqrt(s.square().mean(-1, keepdim=True) + 1e-6) * scale.double()
    yield 'finish', error(hidden, want)
    assert span.tolist() == [9, 9] and here.item() == 11
    embed_triton.finish(picked, scale, 1e-6, hidden, here)
    assert here.item() == 12
    token = torch.tensor([7], dtype=torch.int32, device=d.device)
    before = int(hashed.item())
    x = embed_triton.take_one(token, table, history, position, hashed)
    assert torch.equal(x[0], table[7]) and hashed.item() == embed.digest([7], before)
    assert history[75].item() == 7
    for vocab in (5, 5000):
        logits = d.wide(vocab)
        logits[vocab // 2] = logits[vocab - 1] = 9.0  # a tie: the first one counts
        sampling_triton.greedy(logits, token)
        assert token.item() == vocab // 2
        seed, hot = d.number(2**40 + vocab), torch.ones(1, device=d.device)
        for min_p in (0.0, 0.2):
            here, there = d.number(2**33 + 1), d.number(2**33 + 1).cpu()
            low = torch.full((1,), min_p, device=d.device)
            for _ in range(3):
                sampling_triton.draw(logits, token, hot, low, seed, here)
                twin = torch.zeros(1, dtype=torch.int32)
                sampling.draw(logits.cpu(), twin, hot.cpu(), low.cpu(), seed.cpu(), there)
                assert token.item() == twin.item()
                assert here.item() == there.item()
    yield 'tokens', 0.0


CASES: tuple[Callable[[Draw], Iterator[tuple[str, float]]], ...] = (
    norms, activation, products, delta, attention, tokens, decode, prefill,
)  # fmt: skip
BOUNDS = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 2.5e-2}


def main() -> int:
    """Run every case; return 1 when an error is above its bound."""
    parser = argparse.ArgumentParser()
    parser.add_argument('device')
    parser.add_argument('dtype')
    parser.add_argument('seed', type=int)
    parser.add_argument('only', nargs='?')
    args = parser.parse_args()
    dtype = getattr(torch, args.dtype)
    torch.set_num_threads(2)
    if args.device == 'cpu':
        interpreter_with_new_numpy()
    bad = 0
    for case in CASES:
        if args.device != 'cpu' and case in (decode, prefill):
            continue  # they mix both paths on one device
        if args.only in (None, case.__name__):
            for name, value in case(Draw(args.device, dtype, args.seed)):
                wrong = not value <= BOUNDS[dtype]
                bad += wrong
                print(f'{"FAIL" if wrong else "ok  "} {name}: {value:.2e}', flush=True)
    return int(bad > 0)


if __name__ == '__main__':
    sys.exit(main())
