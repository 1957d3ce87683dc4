"""How long a process takes from its start until its policy has acted once, graphs captured.

    python -m flashrt_ros.bench.policy_ready pi05 2 cuda

Weights are random and made on the device, so no disk is measured. The first start has an empty
folder for compiled kernels, the second the folder that the first has filled.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from flashrt_ros.bench.report import Row

LIMIT_S = 300.0


def rows(device: str, family: str = 'pi05', views: int = 2) -> Iterator[Row]:
    """Start twice, cold and warm; seconds from the start of the process to the first chunk."""
    with tempfile.TemporaryDirectory() as cache:
        for kind in ('cold', 'warm'):
            seconds, parts = start(family, views, device, cache)
            yield Row(f'{family} ready {kind}', round(seconds, 2), 's', spread=parts)


def start(family: str, views: int, device: str, cache: str) -> tuple[float, dict[str, float]]:
    """Start one process; return seconds until it had acted, and until torch was there."""
    began = time.time()
    done = subprocess.run(
        [sys.executable, '-m', 'flashrt_ros.bench.policy_ready', family, str(views), device],
        env={**os.environ, 'TRITON_CACHE_DIR': cache},
        capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f'policy_ready failed: {done.stderr.strip()[-300:]}')
    imported, built, acted = (float(word) - began for word in done.stdout.split()[-3:])
    return acted, {'imports': round(imported, 2), 'captured': round(built, 2)}


def main(family: str, views: str, device: str) -> None:
    """Act once, and print when what was there."""
    from flashrt_ros.bench.policy_models import Measured

    imported = time.time()
    measured = Measured(family, int(views), device)
    measured.wait()
    built = time.time()
    measured.act()
    print(imported, built, time.time())


if __name__ == '__main__':
    main(*sys.argv[1:4])
