"""Where a snapshot's and a restore's time goes on a GPU: `python tests/gpu/capsule_timeline.py`.

Prints medians in microseconds since the call: until the driver is asked to launch, until it has,
until the call returned and until the device was done; at several lengths, after several
preparations. Then what the copies alone take on the device, by its own events. For whoever makes
them faster.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from flashrt_ros.bench.closures import Planner, Robot
from flashrt_ros.capsule import launcher

now = time.perf_counter_ns


class Clock:
    """Notes when the driver is called and when it comes back."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self.enter = self.leave = 0

    def __call__(self, *args: Any) -> Any:
        """Pass it on."""
        self.enter = now()
        code = self.driver(*args)
        self.leave = now()
        return code


def measure(
    name: str, before: Callable[[], Any], call: Callable[[], Any], wait: Any, clock: Any, runs: int
) -> None:
    """One line."""
    rows = []
    for index in range(runs + 20):
        before()
        start = now()
        call()
        back = now()
        wait()
        done = now()
        if index >= 20:
            rows.append(
                (clock.enter - start, clock.leave - clock.enter, back - start, done - start)
            )
    found = ' '.join(
        f'{statistics.median(column) / 1e3:8.2f}' for column in zip(*rows, strict=True)
    )
    worst = sorted(row[3] for row in rows)[int(len(rows) * 0.99)] / 1e3
    print(f'{name:38s} {found} {worst:8.2f}', flush=True)


def on_device(name: str, copy: Callable[[], Any], nbytes: int, runs: int) -> None:
    """What the device takes, several launches in a row."""
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for _ in range(3):
        copy()
    first.record()
    for _ in range(runs):
        copy()
    last.record()
    torch.cuda.synchronize()
    took = first.elapsed_time(last) / runs * 1e3
    print(f'{name:38s} {took:8.2f} us {2 * nbytes / took / 1e6:6.2f} TB/s', flush=True)


def main(device: str = 'cuda') -> None:
    """All lines."""
    runs = 200 if device == 'cuda' else 3
    clock = Clock(launcher._driver())
    launcher._driver = lambda: clock
    robot = Robot(device)
    wait = robot.ctx.current_stream().synchronize
    session, kept = robot.session, []  # type: ignore[var-annotated]
    capsule = session.snapshot('start')
    print(f'{"":38s}   launch launched returned     done      p99')

    def idle() -> None:
        kept.clear()
        wait()

    measure('robot snapshot', idle, lambda: kept.append(session.snapshot('t')), wait, clock, runs)
    measure('robot restore', idle, lambda: session.restore(capsule), wait, clock, runs)
    flat = torch.empty(1 << 21, dtype=torch.uint8, device=device)
    other = torch.empty_like(flat)
    measure('robot, one copy', idle, lambda: other.copy_(flat), wait, clock, runs)
    measure('nothing', idle, lambda: None, wait, clock, runs)

    lengths = (2048, 16384, 131072) if device == 'cuda' else (256, 512)
    planner = Planner(device, lengths[-1] + 256, (8 if device == 'cuda' else 1) << 30)
    session, wait = planner.session, planner.wait
    starts = [planner.start(length) for length in lengths]
    noise = torch.ones(64 << 20, device=device)
    for start in starts:
        for way in ('plain', 'after 1 ms', 'after a read of 256 MiB', 'after both'):
            name = f'{start.position} {way}'

            def before(start: Any = start, way: str = way) -> None:
                while kept:
                    planner.registry.evict(kept.pop())
                session.restore(start)
                planner.grow()
                session.rollback(start)
                planner.grow()
                if way.endswith(('MiB', 'both')):
                    noise.sum()
                wait()
                if way.endswith(('ms', 'both')):
                    until = now() + 1_000_000
                    while now() < until:
                        pass

            back = partial(session.rollback, start)
            measure(f'rollback {name}', before, back, wait, clock, runs)
            measure(
                f'snapshot {name}', before, lambda: kept.append(session.snapshot('t')), wait,
                clock, runs,
            )  # fmt: skip
    while kept:
        planner.registry.evict(kept.pop())
    middle = starts[1]

    def leave() -> None:
        session.restore(starts[0])
        wait()

    measure('restore 16k', leave, lambda: session.restore(middle), wait, clock, runs)
    flat = torch.empty(middle.nbytes, dtype=torch.uint8, device=device)
    other = torch.empty_like(flat)
    measure('one copy of as many bytes', leave, lambda: other.copy_(flat), wait, clock, runs)
    if device != 'cuda':
        return
    mover, node = session._live.mover, middle.texts[0].node
    assert node is not None
    piece = (0, node.blocks['gpu'], 0, node.end, 0, node.end)
    block, small = middle.fixed.blocks['gpu'], capsule.fixed.blocks['gpu']
    on_device('device: restore 16k', lambda: mover.load(block, [piece]), middle.nbytes, 20)
    on_device('device: one copy', lambda: other.copy_(flat), middle.nbytes, 20)
    fixed = middle.layout.fixed_bytes
    on_device('device: fixed part of the planner', lambda: mover.load(block, []), fixed, 200)
    part, others = flat[:fixed], other[:fixed]
    on_device('device: one copy', lambda: others.copy_(part), fixed, 200)
    mover = robot.session._live.mover
    on_device('device: the robot', lambda: mover.load(small, []), capsule.nbytes, 500)


if __name__ == '__main__':
    main(*sys.argv[1:])
