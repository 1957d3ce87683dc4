"""One run on an NVIDIA GPU: are the VLA policies right there, and what do they cost?

    python tests/gpu/check_policy.py OUTDIR [--only PART ...] [--works FAMILY:VIEWS ...] [--tiny]

Parts, in this order: `sweep` (which settings of the kernels are fastest; the parts behind it run
with them), `kernels` (against float64), `fixtures` (against lerobot's numbers), `full` (the
benchmark's report, as `flashrt bench policy` writes it: every model and view, float8, cosines,
replays, start), and only when named `profile` (time by kernel). Writes OUTDIR/policy.txt (what is
printed), OUTDIR/policy.json and OUTDIR/report.json (the benchmark's). A part that raises is
reported and the next one runs; the exit code counts the parts that failed. With `--tiny` it runs
on the CPU at toy sizes, to try the script.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[2]
CASES = ROOT / 'tests' / 'policies_vla'
sys.path[:0] = [str(CASES), str(Path(__file__).parent)]
import policy_speed  # noqa: E402

from flashrt_ros.bench import policy as bench  # noqa: E402
from flashrt_ros.bench import report  # noqa: E402
from flashrt_ros.bench.policy_models import Measured  # noqa: E402

STARTED = time.time()
results: dict[str, Any] = {}
lines: list[str] = []
device = 'cuda'
works = bench.WORKS
out = Path()


def say(*words: object) -> None:
    """Print, and keep for the report."""
    lines.append(' '.join(map(str, words)))
    print(lines[-1], flush=True)


def kernels() -> None:
    """Every kernel against float64, over odd shapes."""
    environment = dict(os.environ, TRITON_INTERPRET='1') if device == 'cpu' else dict(os.environ)
    small = 'float16' if device == 'cpu' else 'bfloat16'  # the interpreter cannot multiply that
    for dtype in ('float32', small):
        done = subprocess.run(
            [sys.executable, str(CASES / 'vla_kernel_cases.py'), device, dtype, '0'],
            capture_output=True, text=True, env=environment,
        )  # fmt: skip
        say(dtype, 'exit', done.returncode)
        for line in done.stdout.splitlines():
            if line.startswith('FAIL') or dtype == small:
                say(' ', line)
        if done.returncode:
            say(done.stderr[-1200:])
            results.setdefault('failed kernels', []).append(dtype)


def fixtures() -> None:
    """The committed folders on this device: float32 against lerobot's numbers, then bfloat16."""
    from vla_cases import FAMILIES, FIXTURES, expected

    from flashrt_policies import registry
    from flashrt_policies.vla import load as loader
    from flashrt_ros.contract.context import Context
    from flashrt_ros.control.mailbox import Mailbox
    from flashrt_ros.control.text import encode

    for family in FAMILIES:
        for dtype in (torch.float32, torch.bfloat16):
            path = FIXTURES / family
            ctx = Context(device)
            mailbox = Mailbox(ctx, registry.spec(path).subgoal_length)
            config = json.loads((path / 'config.json').read_text())
            policy = loader.load(path, config, ctx, mailbox.port, dtype)
            arrays, tasks = expected(str(path))
            policy.reset(0)
            mailbox.post(encode(tasks[0], mailbox.length))
            mailbox.flip()
            images = {name: arrays[f'0/{name}'].numpy() for name in policy.spec.cameras}
            policy.observe(images, arrays['0/state'].numpy())
            policy.plan_prefix()
            policy.chunk.tensor.copy_(arrays['0/noise'])
            net = policy._parts.network
            with torch.no_grad():
                net.denoise(
                    policy.chunk.tensor, policy.length.tensor, policy.state.tensor,
                    policy.kv.tensor, policy.previous.tensor, policy.pacing.tensor,
                )  # fmt: skip
            used = policy.spec.action_dim
            found = policy.chunk.tensor.cpu()[:, :used].numpy()
            want = arrays['0/chunk'].numpy()
            say(family, dtype, 'off', np.abs(found - want).max(), '1-cos', bench.off(found, want))
            results[f'{family} {dtype} off'] = float(np.abs(found - want).max())


def sweep() -> None:
    """The settings of the kernels of prefix and steps; what is best holds for the parts behind."""
    families = policy_speed.FAMILIES
    warm([(name, family, 'bfloat16') for name in policy_speed.SETTINGS for family in families])
    found, times, best = policy_speed.sweep(device)
    for line in found:
        say(' ', line)
    results['sweep'] = times
    results['settings'] = {f'{module.__name__}.{key}': value for module, key, value in best}
    for module, key, value in best:
        setattr(module, key, value)
    bench.release(device)


def warm(jobs: list[tuple[str, str, str]]) -> None:
    """Compile side by side: one after the other takes minutes."""
    if device == 'cuda':
        began = time.time()
        failed = policy_speed.warm_all(device, jobs)
        say('compiled in', round(time.time() - began, 1), 's; failed:', failed or 'none')


def full() -> None:
    """Every row of the benchmark, into a report of its own; what fails costs its own rows."""
    warm([('as they are', *kind) for kind in policy_speed.WHOLE])
    rows: list[report.Row] = []
    failed = 0
    for part in bench.parts(device, say, works):
        try:
            for row in part():
                rows.append(row)
                least = row.floor.get('value')
                say(f'{time.time() - STARTED:.0f} s', row.work, row.ours, row.unit, row.spread,
                    least)  # fmt: skip
                (out / 'report.json').write_text(
                    json.dumps(report.build('policy', device, rows), indent=1) + '\n'
                )
        except Exception:
            failed += 1
            say('FAILED', traceback.format_exc()[-1200:])
        bench.release(device)
    if failed:
        raise RuntimeError(f'{failed} parts of the benchmark failed')


def profile() -> None:
    """Where the time of a chunk goes, by kernel."""
    from torch.profiler import ProfilerActivity, profile

    for family, views in works:
        measured = Measured(family, views, device)
        measured.act()
        for part in ('vision', 'prefix', 'denoise'):
            run = getattr(measured.policy, f'replay_{part}')
            for _ in range(3):
                run()
            measured.wait()
            kinds = [ProfilerActivity.CPU]
            if device == 'cuda':
                kinds.append(ProfilerActivity.CUDA)
            with profile(activities=kinds) as found:
                for _ in range(3):
                    run()
                measured.wait()
            rows = [
                (e.self_device_time_total / 3e3, e.count // 3, e.key[:70])
                for e in found.key_averages()
                if e.self_device_time_total > 0
            ]
            rows.sort(reverse=True)
            say(family, part, 'busy', round(sum(r[0] for r in rows), 3), 'ms in',
                sum(r[1] for r in rows), 'kernels')  # fmt: skip
            for spent, count, name in rows[:12]:
                say(
                    f'   {spent:8.3f} ms {count:5d} x {spent / max(count, 1) * 1e3:7.2f} us {name}'
                )
        del measured
        bench.release(device)


PARTS = {part.__name__: part for part in (sweep, kernels, fixtures, full, profile)}
USUAL = ('sweep', 'kernels', 'fixtures', 'full')


def main() -> int:
    """Run the parts; return how many failed."""
    global device, works, out
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('out', type=Path)
    parser.add_argument('--only', nargs='*', default=list(USUAL), choices=list(PARTS))
    parser.add_argument('--tiny', action='store_true')
    parser.add_argument('--works', nargs='*', default=[], help='FAMILY:VIEWS; all by default')
    options = parser.parse_args()
    out = options.out
    out.mkdir(parents=True, exist_ok=True)
    device = 'cpu' if options.tiny else 'cuda'
    chosen = [work.split(':') for work in options.works]
    works = tuple((family, int(views)) for family, views in chosen) or works
    failed = 0
    for name in options.only:
        began = time.time()
        try:
            PARTS[name]()
        except Exception:
            failed += 1
            say(name, 'FAILED', traceback.format_exc()[-1500:])
        say(f'== {name}: {time.time() - began:.1f} s')
        gc.collect()
        (out / 'policy.txt').write_text('\n'.join(lines) + '\n')
        (out / 'policy.json').write_text(json.dumps(results, indent=1, default=str))
    return failed


if __name__ == '__main__':
    sys.exit(main())
