"""Every Triton kernel of the language model against float64, over odd shapes.

Run as a script it takes the device and the element type, and a seed: `lm_kernel_cases.py cpu
float32 0` under TRITON_INTERPRET=1 needs no GPU. Each case returns the largest error relative to
the largest value; the script fails when one is above its bound.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor


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


def error(got: Tensor, want: Tensor) -> float:
    """Return the largest difference relative to the largest value."""
    scale = max(want.abs().max().item(), 1e-6)
    return (got.double().cpu() - want.cpu()).abs().max().item() / scale


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


def delta_truth(
    proj: Tensor, window: Tensor, state: Tensor, conv: Tensor, decay: Tensor, bias: Tensor,
    valid: int, dims: tuple[int, int, int, int],
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Token by token in float64: output [valid, HV, V], state and window after them."""
    key_heads, heads, key_dim, dim = dims
    proj, window, state, conv = (x.double().cpu() for x in (proj, window, state, conv))
    decay, bias = decay.double().cpu(), bias.double().cpu()
    taps, channels = conv.shape
    series = torch.cat((window, proj[:valid, :channels]))
    state, out, keys = state.clone(), [], key_heads * key_dim
    for t in range(valid):
        mixed = F.silu((series[t : t + taps] * conv).sum(0))
        q, k, v = mixed.split((keys, keys, heads * dim))
        q, k = q.view(key_heads, key_dim), k.view(key_heads, key_dim)
        q = q * torch.rsqrt(q.square().sum(-1, keepdim=True) + 1e-6) * key_dim**-0.5
        k = k * torch.rsqrt(k.square().sum(-1, keepdim=True) + 1e-6)
        rep = heads // key_heads
        q, k, v = q.repeat_interleave(rep, 0), k.repeat_interleave(rep, 0), v.view(heads, dim)
        b, a = proj[t, channels + heads * dim :].split((heads, heads))
        state *= (decay * F.softplus(a + bias)).exp()[:, None, None]
        told = torch.einsum('hk,hkv->hv', k, state)
        state += k[:, :, None] * ((v - told) * b.sigmoid()[:, None])[:, None]
        out.append(torch.einsum('hk,hkv->hv', q, state))
    return torch.stack(out), state, series[valid:]


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
        out, after, moved = delta_truth(proj, window, state, conv, decay, bias, valid, dims)
        got = gated_delta_triton.mix(proj, window, state, conv, decay, bias, d.number(valid), dims)
        name = f'delta {valid}/{rows} {dims}'
        yield f'{name} out', error(got[:valid], out)
        yield f'{name} state', error(state, after)
        assert torch.equal(window.double().cpu(), moved)
        norm = d.wide(dims[3])
        proj, window, state, conv, decay, bias = delta_inputs(d, 1, dims, taps)
        out, after, moved = delta_truth(proj, window, state, conv, decay, bias, 1, dims)
        got = decode_triton.delta_step(proj, window, state, conv, decay, bias, norm, 1e-6, dims)
        z = proj[:, conv.shape[1] :][:, : dims[1] * dims[3]].double().cpu().view(dims[1], -1)
        o = out[0]
        want = o * torch.rsqrt(o.square().mean(-1, keepdim=True) + 1e-6) * norm.double().cpu()
        yield f'delta step {dims}', error(got, (want * F.silu(z)).view(1, -1))
        yield f'delta step {dims} state', error(state, after)
        assert torch.equal(window.double().cpu(), moved)


def attention_truth(
    q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, position: int, freq: Tensor,
    q_scale: Tensor | None, k_scale: Tensor | None, gate: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return output [M, H, D] and rotated keys [M, KV, D] in float64."""
    q, k, v = q.double().cpu(), k.double().cpu(), v.double().cpu()
    for scale in (q_scale, k_scale):
        if scale is not None:
            x = q if scale is q_scale else k
            x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * scale.double().cpu()
            q, k = (x, k) if scale is q_scale else (q, x)
    rows, heads, dim = q.shape
    # Angles as float32 has them: at large positions their rounding is the model's own.
    steps = torch.arange(position, position + rows).float()
    angle = (steps[:, None] * freq.cpu()).double()
    half = freq.shape[0]
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]

    def turn(x: Tensor) -> Tensor:
        first, second = x[..., :half], x[..., half : 2 * half]
        return torch.cat(
            (first * cos - second * sin, second * cos + first * sin, x[..., 2 * half :]), -1
        )

    q, k = turn(q), turn(k)
    rep = heads // keys.shape[0]
    whole = torch.cat((keys.double().cpu()[:, :position], k.transpose(0, 1)), 1)
    mixed = torch.cat((values.double().cpu()[:, :position], v.transpose(0, 1)), 1)
    scores = torch.einsum('mhd,hnd->hmn', q, whole.repeat_interleave(rep, 0)) * dim**-0.5
    later = torch.arange(whole.shape[1]) > torch.arange(position, position + rows)[:, None]
    weights = scores.masked_fill(later, float('-inf')).softmax(-1)
    out = torch.einsum('hmn,hnd->mhd', weights, mixed.repeat_interleave(rep, 0))
    if gate is not None:
        out = out * gate.double().cpu().sigmoid()
    return out, k


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
    from flashrt_policies.kernels import attention_triton, decode_triton

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
        else:
            saved = attention_triton.SPLIT
            for split in (4096, 64):  # one split, and several to merge
                attention_triton.SPLIT = split
                placed = attention_triton.place(
                    q, k, v, keys, values, at, count, freq, *scales, 1e-6
                )
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


def small_model() -> tuple[Any, Any, Any]:
    """Return config, weights and rotary frequencies of a two-layer model on the CPU."""
    from flashrt_policies.hybrid_lm.config import parse_config
    from flashrt_policies.hybrid_lm.weights import allocate, randomise
    from flashrt_policies.kernels.attention import inverse_frequencies

    raw = {
        'model_type': 'qwen3_5_text', 'vocab_size': 30, 'hidden_size': 40,
        'intermediate_size': 24, 'num_hidden_layers': 2, 'num_attention_heads': 4,
        'num_key_value_heads': 2, 'head_dim': 16, 'linear_num_key_heads': 2,
        'linear_num_value_heads': 4, 'linear_key_head_dim': 8, 'linear_value_head_dim': 16,
        'layer_types': ['linear_attention', 'full_attention'], 'attention_bias': True,
    }  # fmt: skip
    config = parse_config(raw)
    weights = allocate(config, torch.device('cpu'), torch.float32)
    randomise(config, weights, seed=1, std=0.15)
    freq = inverse_frequencies(config.rotary_dim, config.rope_theta, config.rope_scaling)
    return config, weights, freq


def two_states(config: Any, position: int) -> tuple[Any, Any]:
    """Return two states with the same random past of `position` tokens."""
    from flashrt_policies.hybrid_lm.state import LMState
    from flashrt_ros.contract.context import Context

    ctx = Context('cpu')
    one, two = (LMState(ctx, config, 190, torch.float32, name) for name in ('one', 'two'))
    for state in (one, two):
        generator = torch.Generator().manual_seed(3)
        for buffer in (state.kv, state.recurrent, state.window):
            assert buffer is not None
            buffer.tensor.normal_(generator=generator)
        state.position.tensor.fill_(position)
    return one, two


def decode(d: Draw) -> Iterator[tuple[str, float]]:
    """The fused decode step of a whole model against the layer-by-layer one."""
    from flashrt_policies.hybrid_lm.layers import Stretch, run_layers
    from flashrt_policies.hybrid_lm.step import step_layers

    config, weights, freq = small_model()
    one, two = two_states(config, 37)
    x = d.wide(1, 40).cpu()
    at = Stretch(one.position.tensor, torch.ones(1, dtype=torch.int64), freq)
    left, delta = run_layers(config, weights, one, x.clone(), at)
    right = step_layers(config, weights, two, x.clone(), at)
    yield 'decode residual', error(right, (left + delta).double())
    for first, second in zip(one.growing + one.fixed, two.growing + two.fixed, strict=True):
        yield f'decode {second.name}', error(second.tensor, first.tensor.double())


def prefill(d: Draw) -> Iterator[tuple[str, float]]:
    """A whole replay with every kernel in its place against the torch path."""
    from flashrt_policies.hybrid_lm import layers
    from flashrt_policies.kernels import (
        activation_triton,
        attention_triton,
        gated_delta_triton,
        linear_triton,
        norm_triton,
    )

    config, weights, freq = small_model()
    x = d.wide(64, 40).cpu()
    for valid, position in ((64, 0), (40, 64)):
        one, two = two_states(config, position)
        at = layers.Stretch(one.position.tensor, torch.tensor([valid]), freq)
        left, delta = layers.run_layers(config, weights, one, x.clone(), at)
        with contextlib.ExitStack() as stack:
            for module, name in (
                (norm_triton, 'add_rms_norm'), (norm_triton, 'gated_rms_norm'),
                (activation_triton, 'silu_mul'), (attention_triton, 'place'),
                (attention_triton, 'attend'),
            ):  # fmt: skip
                function = getattr(module, name)
                stack.enter_context(mock.patch.object(layers, name, function))
            stack.enter_context(mock.patch.object(layers, 'linear', linear_triton.matmul))
            stack.enter_context(mock.patch.object(layers, 'gated_delta', gated_delta_triton))
            right, more = layers.run_layers(config, weights, two, x.clone(), at)
        want = (left + delta).double()[:valid]
        yield f'prefill {valid} at {position}', error((right + more)[:valid], want)
        for first, second in zip(one.growing + one.fixed, two.growing + two.fixed, strict=True):
            yield f'prefill {second.name}', error(second.tensor, first.tensor.double())


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
