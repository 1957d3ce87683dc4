"""One form for every benchmark: rows with peers, floor and spread; JSON and a table."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy
import torch


@dataclass
class Row:
    """One measurement.

    Attributes:
        work: short id, the same in every report of this benchmark.
        ours: the median, or the count.
        unit: of `ours`, of the peers and of the floor.
        better: 'lower' or 'higher'.
        peers: name to the value measured in the same run, or the reason why there is none.
        floor: {'value': what the hardware allows, 'how': how that was found}.
        spread: p50, p99 and the number of runs.
    """

    work: str
    ours: float
    unit: str
    better: str = 'lower'
    peers: dict[str, float | str] = field(default_factory=dict)
    floor: dict[str, Any] = field(default_factory=dict)
    spread: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Times:
    """Wall times of one call, in microseconds, the device idle before and after.

    Attributes:
        samples: from the call until the device has done what it asked for.
        returned: from the call until it returned; empty where that was not measured.
    """

    samples: tuple[float, ...]
    returned: tuple[float, ...] = ()

    @property
    def p50(self) -> float:
        """The median."""
        return statistics.median(self.samples)

    def spread(self) -> dict[str, float]:
        """p50, p99 and runs; and `returned`, the median until the call returned."""
        ordered = sorted(self.samples)
        p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
        found = {'p50': round(self.p50, 3), 'p99': round(p99, 3), 'runs': len(ordered)}
        if self.returned:
            found['returned'] = round(statistics.median(self.returned), 3)
        return found


def timed(
    call: Callable[[], object],
    synchronize: Callable[[], None],
    runs: int,
    before: Callable[[], object] = lambda: None,
    warm: int = 2,
) -> Times:
    """Time `call` alone, `before` it does what must not be counted."""
    samples = []
    for index in range(warm + runs):
        before()
        synchronize()
        start = time.perf_counter_ns()
        call()
        synchronize()
        if index >= warm:
            samples.append((time.perf_counter_ns() - start) / 1e3)
    return Times(tuple(samples))


Call = Callable[[], object]


def interleaved(
    cases: Sequence[tuple[Call, Call]],
    synchronize: Callable[[], None],
    rounds: int,
    warm_seconds: float = 0.5,
) -> list[Times]:
    """Time calls in turn, round after round, so that clocks and caches are the same for all.

    Args:
        cases: (before, call); `before` does what must not be counted.
        synchronize: waits for the device.
        rounds: how often each call is counted.
        warm_seconds: rounds go on uncounted for as long, and for three rounds at least.
    """
    samples: list[list[float]] = [[] for _ in cases]
    returned: list[list[float]] = [[] for _ in cases]
    warm_until, warmed = time.perf_counter() + warm_seconds, 0
    while warmed < 3 or time.perf_counter() < warm_until or len(samples[0]) < rounds:
        counted = warmed >= 3 and time.perf_counter() >= warm_until
        for index, (before, call) in enumerate(cases):
            before()
            synchronize()
            start = time.perf_counter_ns()
            call()
            back = time.perf_counter_ns()
            synchronize()
            done = time.perf_counter_ns()
            if counted:
                samples[index].append((done - start) / 1e3)
                returned[index].append((back - start) / 1e3)
        warmed += 1
    return [
        Times(tuple(found), tuple(back)) for found, back in zip(samples, returned, strict=True)
    ]


def build(name: str, device: str, rows: list[Row]) -> dict[str, Any]:
    """The JSON object of a report."""
    return {
        'name': name,
        'machine': machine(device),
        'versions': versions(device),
        'commit': commit(),
        'rows': [asdict(row) for row in rows],
    }


def machine(device: str) -> dict[str, Any]:
    """What was measured on."""
    found: dict[str, Any] = {
        'device': device,
        'cpu': _cpu_name(),
        'cores': os.cpu_count(),
        'threads': torch.get_num_threads(),
    }
    if device != 'cpu':
        properties = torch.cuda.get_device_properties(torch.device(device))
        found['gpu'] = properties.name
        found['gpu_memory_gib'] = round(properties.total_memory / 2**30, 1)
    return found


def _cpu_name() -> str:
    try:
        for line in Path('/proc/cpuinfo').read_text().splitlines():
            if line.startswith('model name'):
                return line.partition(':')[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def versions(device: str) -> dict[str, str]:
    """Of everything that has a say in the figures."""
    found = {
        'python': platform.python_version(),
        'torch': str(torch.__version__),
        'numpy': str(numpy.__version__),
        'triton': 'none',
    }
    try:
        import triton

        found['triton'] = str(triton.__version__)
    except ImportError:
        pass
    if device != 'cpu':
        found['cuda'] = str(torch.version.cuda)
    return found


def commit() -> str:
    """The commit measured: FLASHRT_COMMIT where it is set, for copies of a tree; else git's."""
    if said := os.environ.get('FLASHRT_COMMIT'):
        return said
    here = Path(__file__).parent
    try:
        done = subprocess.run(
            ['git', 'rev-parse', 'HEAD'], cwd=here, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return 'unknown'
    return done.stdout.strip()


def table(report: dict[str, Any]) -> str:
    """The report for people."""
    peers = sorted({name for row in report['rows'] for name in row['peers']})
    head = ['work', 'ours', 'p99', *peers, 'floor', 'unit']
    lines = [head]
    for row in report['rows']:
        lines.append(
            [
                row['work'],
                _figure(row['ours']),
                _figure(row['spread'].get('p99')),
                *(_figure(row['peers'].get(name)) for name in peers),
                _figure(row['floor'].get('value')),
                row['unit'],
            ]
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return '\n'.join(
        '  '.join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _figure(value: object) -> str:
    if isinstance(value, int | float):
        return f'{value:.3g}' if abs(value) < 100 else f'{value:,.0f}'
    return '-' if value is None else str(value)


Keep = Callable[[list[Row]], None]


def keeper(name: str, device: str, path: Path | None) -> Keep:
    """Return what writes the rows there are so far: a run that is cut short leaves them."""
    if path is None:
        return lambda rows: None
    return lambda rows: save(build(name, device, rows), path)


def save(report: dict[str, Any], path: Path) -> None:
    """Write the JSON; a reader sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + '.part')
    draft.write_text(json.dumps(report, indent=1) + '\n')
    draft.replace(path)


def write(report: dict[str, Any], path: Path | None) -> None:
    """Print the table; write the JSON when a path is given."""
    print(table(report))
    if path is not None:
        save(report, path)
