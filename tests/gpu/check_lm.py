"""One run on an NVIDIA GPU: are the language model's kernels right, and what do they cost?

    python tests/gpu/check_lm.py OUTDIR [--only PART ...]

Writes OUTDIR/lm.txt (what is printed), OUTDIR/lm.json and OUTDIR/planner.json. Parts: kernels,
large, products, model, bits, error, profile, sweep, bench. A part that raises is reported and the
next one runs; the exit code counts the parts that failed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
CASES = ROOT / 'tests' / 'policies_lm'
sys.path.insert(0, str(CASES))
results: dict[str, Any] = {}
log_file: Any = None


def say(*words: object) -> None:
    """Print a line, and keep it."""
    line = ' '.join(map(str, words))
    print(line, flush=True)
    if log_file is not None:
        log_file.write(line + '\n')
        log_file.flush()


def gpu_ms(call: Callable[[], object], runs: int = 20) -> float:
    """Median time of a call on the GPU, milliseconds, captured so that launches do not count."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    graph.replay()
    samples = []
    for _ in range(runs):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(5):
            graph.replay()
        end.record()
        end.synchronize()
        samples.append(start.elapsed_time(end) / 5)
    return statistics.median(samples)


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

    from flashrt_policies.kernels import attention_triton, decode_triton, gated_delta_triton

    for dtype in (torch.bfloat16, torch.float32):
        d = cases.Draw('cuda', dtype, 1)
        dims, rows, valid = (4, 8, 128, 128), 320, 300
        proj, window, state, conv, decay, bias = cases.delta_inputs(d, rows, dims, 4)
        out, after, _ = cases.delta_truth(proj, window, state, conv, decay, bias, valid, dims)
        got = gated_delta_triton.mix(proj, window, state, conv, decay, bias, d.number(valid), dims)
        say(dtype, 'delta out', cases.error(got[:valid], out), 'state', cases.error(state, after))
        for rows, valid, position in ((64, 40, 9000), (256, 256, 4000), (1, 1, 9000)):
            heads, kv, dim = 8, 2, 256
            q, k, v, gate = (d.normal(rows, h, dim) for h in (heads, kv, kv, heads))
            keys, values = d.normal(kv, 12000, dim), d.normal(kv, 12000, dim)
            freq = 10000.0 ** -(torch.arange(32, device='cuda') / 32)
            scales = (d.wide(dim), d.wide(dim))
            want, _ = cases.attention_truth(
                q[:valid], k[:valid], v[:valid], keys, values, position, freq, *scales,
                gate[:valid],
            )  # fmt: skip
            at, count = d.number(position), d.number(valid)
            if rows == 1:
                got = decode_triton.attend_one(
                    q, k, v, keys, values, at, freq, *scales, 1e-6, gate
                ).view(1, heads, dim)
            else:
                placed = attention_triton.place(
                    q, k, v, keys, values, at, count, freq, *scales, 1e-6
                )
                got = attention_triton.attend(placed, keys, values, at, count, gate)
            say(dtype, f'attention {valid} at {position}', cases.error(got[:valid], want))


def products() -> None:
    """Rows keep their bits in tiles of every size; the library's bits; what both cost."""
    from flashrt_policies.kernels import linear_triton as lt

    shapes = [(8224, 1024), (5120, 1024), (1024, 2048), (7168, 1024), (1024, 3584)]
    table = []
    for columns, depth in shapes:
        w = torch.randn(columns, depth, device='cuda', dtype=torch.bfloat16) * 0.02
        x = torch.randn(2048, depth, device='cuda', dtype=torch.bfloat16)
        want = lt.matmul(x[:64], w)
        for rows in (64, 128, 256, 512, 1024, 2048):
            part = x[:rows].contiguous()
            ours, theirs = lt.matmul(part, w), torch.mm(part, w.T)
            line = {
                'shape': [rows, columns, depth],
                'tile': lt.choose_tile(rows, columns, 132),
                'same bits as 64 rows': torch.equal(ours[:64], want),
                'library has the bits': torch.equal(theirs, ours),
                'triton ms': gpu_ms(lambda part=part, w=w: lt.matmul(part, w)),
                'library ms': gpu_ms(lambda part=part, w=w: torch.mm(part, w.T)),
            }
            line['TFLOP/s'] = [
                round(2e-9 * rows * columns * depth / line[key], 1)
                for key in ('triton ms', 'library ms')
            ]
            table.append(line)
            say(line)
    results['products'] = table


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


def bench_model(capacity: int) -> Any:
    """Return a `Bench` at Qwen3.5-0.8B's dimensions."""
    from flashrt_ros.bench.planner import Bench

    start = time.perf_counter()
    made = Bench('cuda', capacity)
    say(f'capture of all graphs: {time.perf_counter() - start:.1f} s, units {made.lm.units}')
    return made


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


def profile() -> None:
    """Where the time of a replay goes, kernel by kernel."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    from flashrt_ros.contract.graph import ShapeKey

    bench = bench_model(17000)
    lm = bench.lm
    found: dict[str, Any] = {}
    for name, prepare, call in (
        ('2048 cold', lambda: lm.forget(), lambda: lm.consume(bench.words(2048))),
        ('2048 at 14336', None, lambda: lm.consume(bench.words(2048))),
        ('64 at 2048', lambda: bench.cold(bench.words(2048)), lambda: lm.append(bench.words(32))),
        ('64 at 14336', None, lambda: lm.append(bench.words(32))),
        ('decode at 2048', lambda: bench.cold(bench.words(2048)), lm.step),
    ):
        if prepare is None:
            bench.cold(bench.words(14336))
        else:
            prepare()
        torch.cuda.synchronize()
        with profiler(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
            start = time.perf_counter()
            call()
            torch.cuda.synchronize()
            wall = (time.perf_counter() - start) * 1e3
        rows = [
            (e.key[:60], e.count, e.device_time_total / 1e3)
            for e in seen.key_averages()
            if e.device_time_total > 0 and e.device_type == torch.autograd.DeviceType.CUDA
        ]
        rows.sort(key=lambda r: -r[2])
        say(f'--- {name}: wall {wall:.2f} ms, kernels {sum(r[2] for r in rows):.2f} ms')
        for key, count, total in rows[:16]:
            say(f'    {total:8.3f} ms {count:5d} x  {key}')
        found[name] = rows[:25]
    head = gpu_ms(lambda: lm._choose(False))
    say(f'head and choice {head:.3f} ms')
    for unit in lm.units:
        lm.forget()
        lm._span.tensor.copy_(torch.tensor([0, 0]))
        key = ShapeKey(tokens=unit)
        samples = []
        for _ in range(12):
            lm.forget()
            lm._span.tensor.copy_(torch.tensor([0, unit]))
            torch.cuda.synchronize()
            start = time.perf_counter()
            lm._prefill.replay(key)
            torch.cuda.synchronize()
            samples.append((time.perf_counter() - start) * 1e3)
        say(f'unit {unit}: {statistics.median(samples):.3f} ms')
        found[f'unit {unit}'] = statistics.median(samples)
    results['profile'] = found


def sweep() -> None:
    """Other settings of the kernels, timed alone at the real model's dimensions."""
    import lm_kernel_cases as cases

    from flashrt_policies.kernels import attention_triton as at
    from flashrt_policies.kernels import decode_triton, norm_triton
    from flashrt_policies.kernels import gated_delta_triton as gd
    from flashrt_policies.kernels import linear_triton as lt

    d = cases.Draw('cuda', torch.bfloat16, 0)
    dims = (16, 16, 128, 128)
    found: dict[str, float] = {}
    for rows in (64, 2048):
        args = cases.delta_inputs(d, rows, dims, 4)
        valid = d.number(rows)
        for columns in (16, 32, 64):
            gd.SCAN_COLUMNS = columns
            for warps in (4, 8):
                gd.PREPARE_WARPS = warps
                for scan_warps in (4, 8):
                    gd.SCAN_WARPS = scan_warps
                    name = f'mix {rows}: columns {columns} warps {warps} {scan_warps}'
                    try:
                        found[name] = gpu_ms(
                            lambda args=args, valid=valid: gd.mix(*args, valid, dims)
                        )
                    except Exception as problem:
                        say(name, type(problem).__name__)
                        continue
                    say(f'{name}: {found[name]:.4f} ms')
        gd.SCAN_COLUMNS, gd.PREPARE_WARPS, gd.SCAN_WARPS = 32, 4, 4
    keys, values = d.normal(2, 32768, 256), d.normal(2, 32768, 256)
    plain = at.tile_sizes
    for rows, position in ((64, 2048), (64, 30000), (2048, 0), (2048, 14336)):
        q, gate = d.normal(rows, 8, 256), d.normal(rows, 8, 256)
        where, valid = d.number(position), d.number(rows)
        for size, deep in ((32, 2), (32, 3), (64, 1), (64, 2), (128, 1)):
            at.tile_sizes = lambda *_, size=size, deep=deep: (size, deep)
            name = f'attend {rows} at {position}: keys {size} stages {deep}'
            try:
                found[name] = gpu_ms(
                    lambda q=q, gate=gate, where=where, valid=valid: at.attend(
                        q, keys, values, where, valid, gate
                    )
                )
            except Exception as problem:
                say(name, type(problem).__name__)
                continue
            flops = 4 * 8 * 256 * rows * (position + rows / 2)
            say(f'{name}: {found[name]:.4f} ms {flops / found[name] / 1e9:.0f} TFLOP/s')
    at.tile_sizes = plain
    x, y, z, scale = d.normal(1, 1024), d.normal(1, 2048), d.normal(1, 3584), d.wide(1024)
    w_in, w_out, w_pair = d.normal(8224, 1024), d.normal(1024, 2048), d.normal(7168, 1024)
    w_down, w_head = d.normal(1024, 3584), d.normal(248320, 1024)
    few, many = d.normal(64, 1024), d.normal(2048, 1024)
    for name, call in (
        ('row in', lambda: lt.row(x, w_in, scale=scale, eps=1e-6)),
        ('row out', lambda: lt.row(y, w_out, add=x)),
        ('row pair', lambda: lt.row(x, w_pair, scale=scale, eps=1e-6, pair=True)),
        ('row down', lambda: lt.row(z, w_down, add=x)),
        ('row head', lambda: lt.row(x, w_head)),
        ('library head', lambda: torch.mm(x, w_head.T)),
        ('norm 64', lambda: norm_triton.add_rms_norm(few, few, scale, 1e-6)),
        ('norm 2048', lambda: norm_triton.add_rms_norm(many, many, scale, 1e-6)),
    ):
        found[name] = gpu_ms(call)
        say(f'{name}: {found[name] * 1e3:.1f} us')
    proj, window, state, conv, decay, bias = cases.delta_inputs(d, 1, dims, 4)
    norm = d.wide(128)
    found['delta step'] = gpu_ms(
        lambda: decode_triton.delta_step(proj, window, state, conv, decay, bias, norm, 1e-6, dims)
    )
    say(f'delta step: {found["delta step"] * 1e3:.1f} us')
    results['sweep'] = found


def bench() -> None:
    """The rows of `flashrt bench planner`."""
    from flashrt_ros.bench import planner, report

    rows = planner.measure('cuda', planner.PEERS, say)
    made = report.build('planner', 'cuda', rows)
    say(report.table(made))
    report.write(made, results['out'] / 'planner.json')


PARTS = (kernels, large, products, model, bits, error, profile, sweep, bench)


def main() -> int:
    """Run the parts; return how many failed."""
    global log_file
    parser = argparse.ArgumentParser(description='Check the language model on a GPU.')
    parser.add_argument('out', type=Path)
    parser.add_argument('--only', nargs='*', default=[])
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    log_file = (args.out / 'lm.txt').open('w', encoding='utf-8')
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
