"""One run on an NVIDIA GPU: are the language model's kernels right, and what do they cost?

    python tests/gpu/check_lm.py OUTDIR [--only PART ...]

Writes OUTDIR/lm.txt (what is printed), OUTDIR/lm.json and OUTDIR/planner.json. Parts: kernels,
large, products, model, bits, units, error, profile, sweep, bench. A part that raises is reported
and the next one runs; the exit code counts the parts that failed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
CASES = ROOT / 'tests' / 'policies_lm'
sys.path[:0] = [str(CASES), str(Path(__file__).parent)]
import lm_speed  # noqa: E402
from lm_speed import bench_model, results, say  # noqa: E402


def kernels() -> None:
    """Every kernel against float64, over odd shapes, in three element types."""
    for dtype in ('float32', 'bfloat16', 'float16'):
        done = subprocess.run(
            [sys.executable, str(CASES / 'lm_kernel_cases.py'), 'cuda', dtype, '0'],
            capture_output=True, text=True,
        )  # fmt: skip
        say(dtype, 'exit', done.returncode)
        for line in done.stdout.splitlines():
            if dtype != 'float16' or line.startswith('FAIL'):
                say(' ', line)
        if done.returncode:
            say(done.stderr[-1500:])
            results.setdefault('failed kernels', []).append(dtype)


def large() -> None:
    """The delta rule and attention at a real model's head sizes."""
    import lm_kernel_cases as cases
    import lm_truth
    import lm_unit_cases

    from flashrt_policies.kernels import (
        attention_triton,
        decode_triton,
        gated_delta_triton,
        place_triton,
    )

    for dtype in (torch.bfloat16, torch.float32):
        d = cases.Draw('cuda', dtype, 1)
        dims, rows, valid = (4, 8, 128, 128), 320, 300
        proj, window, state, conv, decay, bias = cases.delta_inputs(d, rows, dims, 4)
        for name in ('delta', 'delta of one key'):
            if name == 'delta of one key':  # the hardest system: equal keys, full steps, no decay
                proj, window, state, conv, decay, bias = cases.delta_inputs(d, rows, dims, 4)
                proj[:, : conv.shape[1]], decay = proj[:1, : conv.shape[1]].clone(), 0 * decay
                proj[:, -16:-8] = 9.0
            norm = d.wide(dims[3])
            out, after, _ = lm_truth.delta_truth(
                proj, window, state, conv, decay, bias, valid, dims
            )
            want = lm_truth.gated_truth(out, proj, conv.shape[1], norm, dims)
            got = gated_delta_triton.mix(
                proj, window, state, conv, decay, bias, norm, 1e-6, d.number(valid), dims
            )
            say(
                dtype, name, lm_truth.error(got[:valid], want), 'state',
                lm_truth.error(state, after),
            )  # fmt: skip
        for rows, valid, position in ((64, 40, 9000), (256, 256, 4000), (1, 1, 9000)):
            heads, kv, dim = 8, 2, 256
            q, k, v = lm_unit_cases.qkv(d, rows, heads, kv, dim)  # of one projection
            q, gate = q.split(dim, -1)
            keys, values = d.normal(kv, 12000, dim), d.normal(kv, 12000, dim)
            freq = 10000.0 ** -(torch.arange(32, device='cuda') / 32)
            scales = (d.wide(dim), d.wide(dim))
            want, _ = lm_truth.attention_truth(
                q[:valid], k[:valid], v[:valid], keys, values, position, freq, *scales,
                gate[:valid],
            )  # fmt: skip
            at, count = d.number(position), d.number(valid)
            if rows == 1:
                got = decode_triton.attend_one(
                    q, k, v, keys, values, at, freq, *scales, 1e-6, gate
                ).view(1, heads, dim)
            else:
                placed = place_triton.place(q, k, v, keys, values, at, count, freq, *scales, 1e-6)
                got = attention_triton.attend(placed, keys, values, at, count, gate)
            say(dtype, f'attention {valid} at {position}', lm_truth.error(got[:valid], want))


def model() -> None:
    """A small model in float32: the GPU's path against the CPU's."""
    import lm_oracle

    from flashrt_policies.hybrid_lm.model import HybridLM
    from flashrt_policies.hybrid_lm.weights import Weights
    from flashrt_ros.contract.context import Context

    here = lm_oracle.tiny(capacity=700)

    def moved(value: Any) -> Any:
        return value.cuda() if isinstance(value, torch.Tensor) else value

    layers = [type(x)(**{k: moved(v) for k, v in vars(x).items()}) for x in here.weights.layers]
    w = here.weights
    there_weights = Weights(w.embed.cuda(), w.head.cuda(), w.norm.cuda(), layers, 'moved')
    there = HybridLM(
        Context('cuda'), here.config, there_weights, capacity=700, units=(64, 128, 256, 512)
    )
    generator = torch.Generator().manual_seed(0)
    worst = 0.0
    for count in (1, 2, 63, 64, 65, 129, 300, 600):
        tokens = torch.randint(61, (count,), generator=generator)
        for lm in (here, there):
            lm.reset()
            lm.append(tokens)
        difference = (here.logits.tensor - there.logits.tensor.cpu()).abs().max().item()
        texts = [list(lm.generate(30)) for lm in (here, there)]
        say(f'model {count} tokens: {difference:.2e}, same text: {texts[0] == texts[1]}')
        assert there.state.digest.tensor.item() == here.state.digest.tensor.item()
        worst = max(worst, difference)
    for lm in (here, there):
        lm.reset(seed=4, temperature=1.0)
        lm.append(torch.arange(50))
    say('drawn text the same:', list(here.generate(20)) == list(there.generate(20)))
    results['model worst'] = worst
    assert worst < 2e-4, worst


def bits() -> None:
    """Restore and append against the cold prefill, bit for bit, in the real model."""
    bench = bench_model(9000)
    lm, session = bench.lm, bench.session
    say('library agrees:', list(__import__(
        'flashrt_policies.kernels.linear_triton', fromlist=['x'])._library.items()))  # fmt: skip
    failed = []
    for length, boundary in (
        (65, 64), (128, 64), (200, 128), (2080, 2048), (2112, 2048), (2080, 1024), (4200, 2112),
        (5000, 4160), (8500, 8192), (8500, 64), (4097, 4096), (3000, 1984),
    ):  # fmt: skip
        tokens = bench.words(length)
        bench.cold(tokens)
        cold = (lm.logits.tensor.clone(), lm.state.recurrent.tensor.clone())
        lm.forget()
        lm.consume(tokens[:boundary])
        capsule = session.snapshot('aligned', boundary)
        bench.cold(bench.words(333))
        session.restore(capsule)
        lm.append(tokens[boundary:])
        same = torch.equal(lm.logits.tensor, cold[0])
        states = torch.equal(lm.state.recurrent.tensor, cold[1])
        far = (lm.logits.tensor - cold[0]).abs().max().item()
        say(f'{boundary} then {length}: same logits {same}, states {states}, apart {far:.2e}')
        if not (same and states):
            failed.append((boundary, length))
        session.registry.evict(capsule)
    results['bits failed'] = failed
    assert not failed, failed


def units() -> None:
    """Which kernel, if any, gives a row other bits in a replay of another size."""
    done = subprocess.run(
        [sys.executable, str(CASES / 'lm_unit_cases.py'), 'cuda', 'bfloat16'],
        capture_output=True, text=True,
    )  # fmt: skip
    say(done.stdout or done.stderr[-1500:])
    assert done.returncode == 0, 'some bits differ'


def error() -> None:
    """Error of bfloat16 logits against float64, beside transformers' own."""
    import importlib.util
    import tempfile

    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    from flashrt_policies.hybrid_lm.loader import load
    from flashrt_policies.hybrid_lm.model import HybridLM
    from flashrt_ros.bench.planner import QWEN_0_8B
    from flashrt_ros.contract.context import Context

    say('fla installed:', importlib.util.find_spec('fla') is not None)
    dims = {k: v for k, v in QWEN_0_8B.items() if k != 'model_type'}
    dims.update(num_hidden_layers=8, vocab_size=32000)
    torch.manual_seed(0)
    theirs = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**dims)).eval().to(torch.bfloat16)
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        config, weights = load(folder, 'cuda')
    lm = HybridLM(Context('cuda'), config, weights, capacity=4096)
    theirs = theirs.cuda()
    tokens = torch.randint(0, 32000, (1, 1500))
    with torch.no_grad():
        fast = theirs(tokens.cuda(), logits_to_keep=64).logits[0].double()
        exact_model = theirs.double()
        import lm_oracle

        lm_oracle.plain_torch()
        try:
            exact = exact_model(tokens.cuda(), logits_to_keep=64).logits[0].double()
        except Exception as problem:  # the reference casts to float32 inside
            say('float64 forward failed:', problem)
            raise
    ours = []
    lm.append(tokens[0, : 1500 - 63])
    ours.append(lm.logits.tensor.clone())
    for position in range(1500 - 63, 1500):
        lm.consume(tokens[0, position : position + 1])
        lm.choose()
        ours.append(lm.logits.tensor.clone())
    mine = torch.stack(ours).double()
    figures = {
        name: [(x - exact).abs().mean().item(), (x - exact).abs().max().item()]
        for name, x in (('ours', mine), ('transformers', fast))
    }
    lm.reset()
    lm.append(tokens[0])
    figures['ours, one prompt'] = [
        (lm.logits.tensor.double() - exact[-1]).abs().mean().item(),
        (lm.logits.tensor.double() - exact[-1]).abs().max().item(),
    ]
    last = (fast[-1] - exact[-1]).abs()
    figures['transformers, last row'] = [last.mean().item(), last.max().item()]
    say('mean and largest error:', figures)
    results['error'] = figures


PARTS = (
    kernels, large, lm_speed.products, model, bits, units, error, lm_speed.profile, lm_speed.sweep,
    lm_speed.bench,
)  # fmt: skip


def main() -> int:
    """Run the parts; return how many failed."""
    parser = argparse.ArgumentParser(description='Check the language model on a GPU.')
    parser.add_argument('out', type=Path)
    parser.add_argument('--only', nargs='*', default=[])
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print('no CUDA device; want an NVIDIA GPU')
        return 1
    args.out.mkdir(parents=True, exist_ok=True)
    lm_speed.log_file = (args.out / 'lm.txt').open('w', encoding='utf-8')
    results['out'] = args.out
    say(torch.__version__, torch.cuda.get_device_name())
    failed = []
    for part in PARTS:
        if args.only and part.__name__ not in args.only:
            continue
        start = time.perf_counter()
        say(f'=== {part.__name__}')
        try:
            part()
        except Exception:
            failed.append(part.__name__)
            say(traceback.format_exc()[-3000:])
        torch.cuda.empty_cache()
        say(f'=== {part.__name__} took {time.perf_counter() - start:.1f} s')
        kept = {key: value for key, value in results.items() if key != 'out'}
        (args.out / 'lm.json').write_text(json.dumps(kept, indent=1, default=str) + '\n')
    say('failed parts:', failed or 'none')
    return len(failed)


if __name__ == '__main__':
    sys.exit(main())
