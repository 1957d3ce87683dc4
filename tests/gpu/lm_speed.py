"""What the language model costs on a GPU: products, replays kernel by kernel, other settings.

Parts of `check_lm`, which see for how to run them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

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


def bench_model(capacity: int) -> Any:
    """Return a `Bench` at Qwen3.5-0.8B's dimensions."""
    from flashrt_ros.bench.planner import Bench

    start = time.perf_counter()
    made = Bench('cuda', capacity)
    say(f'capture of all graphs: {time.perf_counter() - start:.1f} s, units {made.lm.units}')
    return made


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
                'tile': lt.choose(part, columns, depth),
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
    """What is undecided, beside the present settings, and what long prompts then cost whole.

    Whoever loses is deleted. A minute with an empty kernel cache, most of it compiling.
    """
    found: dict[str, float] = {}

    def note(name: str, ms: float) -> None:
        found[name] = ms
        say(f'{name}: {ms:.4f} ms')

    found.update(sweep_mix())
    sweep_head(note)
    results['sweep'] = found
    from flashrt_policies.hybrid_lm import schedule

    before = schedule.CUDA_UNITS
    schedule.CUDA_UNITS = (*before, 2 * before[-1])
    bench = bench_model(17000)
    schedule.CUDA_UNITS = before
    lm, whole = bench.lm, bench.lm.units
    for largest in whole[-2:]:
        lm.units = tuple(unit for unit in whole if unit <= largest)
        for length in (2048, 16384):
            tokens, samples = bench.words(length), []
            for _ in range(8):
                start = time.perf_counter()
                bench.cold(tokens)
                samples.append((time.perf_counter() - start) * 1e3)
            note(f'cold {length}, units up to {largest}', statistics.median(samples[2:]))
    for name, count, call in (
        ('append 32', 1, lambda: bench.lm.append(bench.words(32))),
        ('append 320', 1, lambda: bench.lm.append(bench.words(320))),
        ('decode', 32, bench.lm.step),
    ):
        bench.cold(bench.words(2048))
        samples = []
        for _ in range(12):
            start = time.perf_counter()
            for _ in range(count):
                call()
            _ = lm.token
            samples.append((time.perf_counter() - start) * 1e3 / count)
        note(f'{name} at 2k', statistics.median(samples[2:]))
    results['sweep'] = found


def sweep_mix() -> dict[str, float]:
    """The delta rule by the chunks of a stretch; what the code has is left in place."""
    import lm_kernel_cases as cases

    from flashrt_policies.kernels import gated_delta_triton as gd

    d = cases.Draw('cuda', torch.bfloat16, 0)
    dims, norm = (16, 16, 128, 128), d.wide(128)
    replays = {rows: cases.delta_inputs(d, rows, dims, 4) for rows in (64, 2048, 4096, 8192)}
    totals: dict[str, float] = {}
    before = gd.STRETCH, gd.LONG_STRETCH
    for stretch in (12, 16, 20, 28):
        gd.STRETCH = gd.LONG_STRETCH = stretch
        found = {
            rows: gpu_ms(partial(gd.mix, *inputs, norm, 1e-6, d.number(rows), dims), 12)
            for rows, inputs in replays.items()
        }
        say('mix: stretch', stretch, *(f'{n}: {ms:.4f}' for n, ms in found.items()))
        totals[str(stretch)] = sum(ms / rows for rows, ms in found.items() if rows > 64)
    gd.STRETCH, gd.LONG_STRETCH = before
    return totals


def sweep_head(note: Callable[[str, float], None]) -> None:
    """Outputs of a program and its warps where one row meets a vocabulary."""
    from flashrt_policies.kernels import linear_triton as lt

    x = torch.randn(1, 1024, device='cuda', dtype=torch.bfloat16)
    head = torch.randn(248320, 1024, device='cuda', dtype=torch.bfloat16)
    before = lt.HEAD
    for setting in ((16, 4), (8, 4), (4, 4), (16, 8), (32, 8), (8, 2), (16, 4)):
        lt.HEAD = setting
        note(f'head, outputs and warps {setting}', gpu_ms(lambda: lt.row(x, head)))
    lt.HEAD = before


def bench() -> None:
    """The rows of `flashrt bench planner`."""
    from flashrt_ros.bench import planner, report

    rows = planner.measure('cuda', planner.PEERS, say)
    made = report.build('planner', 'cuda', rows)
    say(report.table(made))
    report.write(made, results['out'] / 'planner.json')
