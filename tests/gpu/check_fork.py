"""One run on an NVIDIA GPU: are forked decisions right, and what do they cost?

    python tests/gpu/check_fork.py OUTDIR [--only PART ...]

Writes OUTDIR/fork.txt (what is printed), OUTDIR/fork.json and OUTDIR/decide.json. Parts: warm
(kernels are compiled by several processes at once), kernels, bits, leak, variation, times,
profile, bench. A part that raises is reported and the next one runs; the exit code counts the
parts that failed. `--device cpu --only bits leak variation times` tries the script over a small
model.
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

import numpy as np
import torch

from flashrt_policies.hybrid_lm.fork.engine import ForkEngine
from flashrt_policies.hybrid_lm.fork.request import Branch, Request
from flashrt_policies.hybrid_lm.weights import allocate, slots
from flashrt_ros.bench import decide, report
from flashrt_ros.contract.context import Context

CASES = Path(__file__).resolve().parents[1] / 'policies_fork' / 'fork_kernel_cases.py'
WORKERS = 6  # each holds a model, both engines and their scratch: 16 GiB
results: dict[str, Any] = {}
made: dict[str, Any] = {}
log: list[str] = []


def say(*words: object) -> None:
    """Print, and keep for the file."""
    log.append(' '.join(map(str, words)))
    print(log[-1], flush=True)


def bench() -> decide.Bench:
    """The model that all parts share."""
    if 'bench' not in made:
        cpu = made['device'] == 'cpu'
        made['bench'] = decide.Bench(
            made['device'], 2200 if cpu else 16384 + 128, (1024,) if cpu else None
        )
    return made['bench']


def engine(deterministic: bool = False) -> ForkEngine:
    """One engine of each kind."""
    if deterministic not in made:
        start = time.perf_counter()
        made[deterministic] = bench().engine(deterministic)
        took = time.perf_counter() - start
        count = len(made[deterministic].streams)
        say(f'deterministic {deterministic}: {count} streams, {took:.1f} s')
    return made[deterministic]


def warm() -> None:
    """Compile everything into the cache, a share in each of several processes."""
    call = [sys.executable, str(Path(__file__)), str(made['out']), '--worker']
    workers = [
        subprocess.Popen(
            [*call, str(index)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        for index in range(WORKERS)
    ]
    errors = [worker.communicate()[1] for worker in workers]
    codes = [worker.returncode for worker in workers]
    say('workers', codes)
    assert not any(codes), next(
        text[-1500:] for text, code in zip(errors, codes, strict=True) if code
    )


def worker(index: int) -> None:
    """Note every launch of both engines without launching any, and compile a share of them."""
    from triton.runtime.jit import JITFunction

    seen: dict[str, Any] = {}
    inner = JITFunction.run

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        if not self.fn.__module__.startswith('flashrt_policies'):
            return inner(self, *args, grid=grid, warmup=warmup, **kwargs)
        shapes = [x.dtype if isinstance(x, torch.Tensor) else _kind(x) for x in args]
        seen.setdefault(f'{self.fn.__name__} {shapes} {kwargs}', (self, args, grid, kwargs))
        return None

    JITFunction.run = run
    on = decide.Bench('cuda', 16384 + 128)
    engines = (on.engine(), on.engine(deterministic=True))
    JITFunction.run = inner
    for kernel, args, grid, kwargs in list(seen.values())[index::WORKERS]:
        kernel.run(*args, grid=grid, warmup=True, **kwargs)
    del engines


def _kind(value: Any) -> object:
    """What Triton specialises an argument for."""
    if isinstance(value, int) and not isinstance(value, bool):
        return 1 if value == 1 else value % 16 == 0
    return type(value).__name__


def kernels() -> None:
    """Every kernel against its reference, over random trees, in two element types."""
    calls = {
        (dtype, seed): subprocess.Popen(
            [sys.executable, str(CASES), 'cuda', dtype, str(seed)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for dtype in ('float32', 'bfloat16') for seed in (0, 1, 2)
    }  # fmt: skip
    failed = []
    for key, call in calls.items():
        out, errors = call.communicate()
        bad = [line for line in out.splitlines() if line.startswith('FAIL')]
        say(*key, 'exit', call.returncode, len(out.splitlines()), 'cases', *bad)
        if call.returncode:
            failed.append(key)
            say(errors[-1500:])
    assert not failed, failed


def question(count: int) -> Branch:
    """A random branch."""
    return Branch(bench().words(count), bench().words(decide.CHOICES))


def bits() -> None:
    """Alone, among 64, among other requests, and after a resume: the same bits."""
    on, words = engine(deterministic=True), bench().words
    different = []
    for length, asked in ((250, 75), (1000, 49), (1999, 64), (64, 1), (130, 190)):
        state, mine = words(length), question(asked)
        alone = on.round([Request(state, [mine], keep=False)])[0][0].logits
        others = [
            question(int(n)) for n in bench().rng.integers(1, 80, 12 if length > 999 else 63)
        ]
        place = len(others) // 3
        many = [*others[:place], mine, *others[place:]]
        among = on.round([Request(state, many, keep=False)])[0][place].logits
        first = Request(words(333), [question(20)], keep=False)
        beside = on.round([first, Request(state, [mine], keep=False)])[1][0].logits
        on.round([Request(state[: length - length % 64 + 1][:length], [question(5)])])
        before = on.statistics.resumed
        resumed = on.round([Request(state, [mine])])[0][0].logits
        reused = on.statistics.resumed - before
        same = [np.array_equal(alone, x) for x in (among, beside, resumed)]
        plain = engine().round([Request(state, [mine], keep=False)])[0][0].logits
        say(
            f'{length} + {asked}: among, beside, resumed at {reused}: {same}; '
            f'default apart {np.abs(plain - alone).max():.1e}'
        )
        if not all(same):
            different.append((length, asked, same))
    results['bits different'] = different
    assert not different, different


def leak() -> None:
    """Another sibling: no bit of the other answers changes, in either mode."""
    for deterministic in (False, True):
        on = engine(deterministic)
        state = bench().words(700)
        branches = [question(40 + i) for i in range(9)]
        first = on.round([Request(state, branches, keep=False)])[0]
        branches[4] = Branch(bench().words(44), branches[4].options)
        second = on.round([Request(state, branches, keep=False)])[0]
        same = [np.array_equal(a.logits, b.logits) for a, b in zip(first, second, strict=True)]
        say('deterministic', deterministic, 'same bits', same)
        assert same == [i != 4 for i in range(9)]


def wide() -> ForkEngine:
    """The same weights in float32 on the CPU."""
    on = bench()
    weights = allocate(on.config, torch.device('cpu'), torch.float32)
    source, target = slots(on.config, on.weights), slots(on.config, weights)
    for name, slot in target.items():
        slot.place.copy_(source[name].place)
    return ForkEngine(
        Context('cpu'), on.config, weights, slots=1, capacity=1024, streams=(4096,), name='wide'
    )


def variation() -> None:
    """Total variation from float32: forked, and every prompt by itself."""
    reference, on = wide(), engine()
    state, options = bench().words(300), bench().words(decide.CHOICES)
    branches = [Branch(bench().words(int(n)), options) for n in bench().rng.integers(4, 70, 16)]
    want = reference.round([Request(state, branches, keep=False)])[0]
    forked = on.round([Request(state, branches, keep=False)])[0]
    single = [
        on.round([Request(
            np.concatenate((state, branch.tokens[:-1])), [Branch(branch.tokens[-1:], options)],
            keep=False,
        )])[0][0]
        for branch in branches
    ]  # fmt: skip

    def apart(found: list[Any]) -> list[float]:
        pairs = zip(found, want, strict=True)
        return [float(np.abs(a.probabilities - b.probabilities).sum() / 2) for a, b in pairs]

    figures = {'forked': apart(forked), 'one by one': apart(single)}
    for name, values in figures.items():
        say(name, f'total variation mean {np.mean(values):.2e}, largest {max(values):.2e}')
        results[f'variation {name}'] = values
    assert np.mean(figures['forked']) <= 1.1 * np.mean(figures['one by one']) + 1e-7


def times() -> None:
    """Every row without the peer, twice: default and bitwise."""
    cpu = made['device'] == 'cpu'
    shapes = {k: v for k, v in decide.SHAPES.items() if not cpu or v.state + v.rows < 2200}
    for deterministic in (False, True):
        on = engine(deterministic)
        rows = [
            decide.measured(bench(), on, name, shape, 2 if cpu else 12)
            for name, shape in shapes.items()
        ]
        say('deterministic', deterministic)
        for found in rows:
            say(f'  {found.work}: {found.ours} ms, floor {found.floor["value"]}')
        results[f'times {deterministic}'] = {found.work: found.ours for found in rows}


def profile() -> None:
    """What a pass spends its time on, kernel by kernel."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    on = engine()
    for name in ('RACE1', 'MultiRC', '2k x1', '2k x64', 'resume 8k'):
        shape = decide.SHAPES[name]
        base = bench().words(shape.resumed) if shape.resumed else None
        if base is not None:
            on.round([Request(base, [question(5)])])
        asked = [bench().request(shape, base) for _ in range(3)]
        with record(activities=[ProfilerActivity.CUDA]) as seen:
            for request in asked:
                on.round([request])
            torch.cuda.synchronize()
        table = sorted(seen.key_averages(), key=lambda x: -x.self_device_time_total)
        total = sum(x.self_device_time_total for x in table)
        say(f'{name}: {total / 3:.0f} us of kernels a round')
        for entry in table[:13]:
            say(
                f'  {entry.self_device_time_total / 3:8.0f} us {entry.count // 3:5d} x '
                f'{entry.self_device_time_total / entry.count:7.1f}  {entry.key[:70]}'
            )


def rows() -> None:
    """`flashrt bench decide` with its peer."""
    made.pop('bench', None)
    made.pop(True, None)
    made.pop(False, None)
    torch.cuda.empty_cache()
    found = decide.measure('cuda', decide.PEERS, say)
    report.write(report.build('decide', 'cuda', found), made['out'] / 'decide.json')


PARTS = {
    'warm': warm, 'kernels': kernels, 'bits': bits, 'leak': leak, 'variation': variation,
    'times': times, 'profile': profile, 'bench': rows,
}  # fmt: skip


def main() -> int:
    """Run the parts; return how many failed."""
    parser = argparse.ArgumentParser(description='Check forked decisions on a GPU.')
    parser.add_argument('out', type=Path)
    parser.add_argument('--only', nargs='*', default=list(PARTS))
    parser.add_argument('--device', default='cuda')
    parser.add_argument('--worker', type=int)
    args = parser.parse_args()
    if args.worker is not None:
        worker(args.worker)
        return 0
    if args.device == 'cuda' and not torch.cuda.is_available():
        print('no CUDA device; want an NVIDIA GPU')
        return 1
    args.out.mkdir(parents=True, exist_ok=True)
    made.update(device=args.device, out=args.out)
    say(torch.__version__)
    failed = []
    for name in args.only:
        start = time.perf_counter()
        say(f'=== {name}')
        try:
            with torch.inference_mode():
                PARTS[name]()
        except Exception:
            failed.append(name)
            say(traceback.format_exc()[-3000:])
        say(f'=== {name} took {time.perf_counter() - start:.1f} s')
        (args.out / 'fork.json').write_text(json.dumps(results, indent=1, default=str) + '\n')
        (args.out / 'fork.txt').write_text('\n'.join(log) + '\n')
    say('failed parts:', failed or 'none')
    return len(failed)


if __name__ == '__main__':
    sys.exit(main())
