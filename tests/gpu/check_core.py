"""The core on a GPU machine: `python tests/gpu/check_core.py OUTDIR [--bench-only]`.

Runs the contract's and the capsules' tests on both devices, then the capsule benchmark on the GPU
and on the CPU. With --bench-only the tests are those of the copies alone, on the GPU: exactness,
in seconds. OUTDIR gets tests.log, capsule-cuda.json and capsule-cpu.json. Needs torch with CUDA,
Triton, safetensors and pytest; without hypothesis the property tests are skipped, aloud.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXACT = ('tests/capsule/test_capsule_mover.py', 'tests/capsule/test_capsule_lineage.py')


def step(title: str, command: list[str], log: Path) -> int:
    """Run one command, show its end, keep all of it."""
    print(f'== {title}', flush=True)
    start = time.monotonic()
    environment = {**os.environ, 'PYTHONPATH': str(ROOT), 'PYTHONUNBUFFERED': '1'}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, check=False,
    )  # fmt: skip
    with log.open('a') as file:
        file.write(f'== {title}\n{done.stdout}\n')
    print(done.stdout[-6000:], flush=True)
    passed = time.monotonic() - start
    print(f'== {title}: exit code {done.returncode}, {passed:.0f} s', flush=True)
    return done.returncode


def main(out: Path, more: list[str]) -> int:
    """0 only when everything passed."""
    out.mkdir(parents=True, exist_ok=True)
    log = out / 'tests.log'
    python = sys.executable
    pytest = [python, '-m', 'pytest', '-q', '-c', os.devnull, f'--rootdir={ROOT}', '-rsf']
    pytest += ['--import-mode=importlib', '-p', 'no:cacheprovider', '--tb=short', '--color=no']
    if '--bench-only' in more:
        pytest += [*EXACT, '-k', 'cuda']
    else:
        pytest += ['tests/contract', 'tests/capsule', *more]
    bench = [python, '-m', 'flashrt_ros.bench.capsule']
    codes = [step('tests', pytest, log)]
    for device in ('cuda', 'cpu'):
        file = str(out / f'capsule-{device}.json')
        codes.append(step(f'bench {device}', [*bench, '--device', device, '--json', file], log))
    return max(codes)


if __name__ == '__main__':
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
