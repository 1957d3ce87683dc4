"""`flashrt bench decide`: what a round of forked decisions costs.

The model has the dimensions of Qwen3.5-0.8B and random weights in bfloat16; on the CPU a small
model of the same kind in float32 stands in, and the rows say so. Every time is that of the whole
call, from tokens on the host to the options' logits back on the host, on states never seen
before; `resume` rows ask about a state that has grown by 32 tokens since it was asked about last.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from flashrt_policies.hybrid_lm.config import LMConfig, parse_config
from flashrt_policies.hybrid_lm.fork.engine import ForkEngine, family
from flashrt_policies.hybrid_lm.fork.request import Answer, Branch, Request
from flashrt_policies.hybrid_lm.weights import allocate, randomise
from flashrt_ros.bench import decide_peers, report
from flashrt_ros.bench.planner import (
    MATRIX_FLOPS,
    QWEN_0_8B,
    READ_BYTES,
    SMALL,
    matrix_parameters,
    row,
)
from flashrt_ros.bench.report import Row
from flashrt_ros.capsule.registry import Registry
from flashrt_ros.contract.context import Context

PEERS = ('flide',)
CHOICES = 26  # options of every question
OPTIONS = ('keep',)
GROWN = 32  # tokens by which a state has grown, and of the question then
LARGEST = 10240  # rows of the largest graph
BITWISE = ('RACE1', 'MultiRC', '2k x16', 'resume 8k')


@dataclass(frozen=True)
class Shape:
    """A round: tokens of the state, branches, tokens of each; `resumed` of the state's known."""

    state: int
    branches: int
    tokens: int
    resumed: int = 0

    @property
    def rows(self) -> int:
        """Tokens to compute."""
        return self.state - self.resumed + self.branches * self.tokens


SHAPES = {
    'RACE1': Shape(250, 1, 75), 'RACEall': Shape(255, 4, 73), 'DI': Shape(323, 5, 190),
    'MultiRC': Shape(327, 48, 49), 'QuALITY1': Shape(3355, 1, 88),
    'QuALITYall': Shape(5835, 18, 90), '2k x1': Shape(2048, 1, 64), '2k x4': Shape(2048, 4, 64),
    '2k x16': Shape(2048, 16, 64), '2k x64': Shape(2048, 64, 64), '6k x64': Shape(6144, 64, 64),
    **{f'resume {n}k': Shape(n * 1024 + GROWN, 1, GROWN, n * 1024) for n in (2, 4, 8, 16)},
}  # fmt: skip


def streams_of(shapes: Iterable[Shape], largest: int = LARGEST) -> tuple[int, ...]:
    """Return the graphs of the whole family that these rounds take; no others are captured."""
    whole = family(largest)
    return tuple(sorted({next(size for size in whole if size >= x.rows) for x in shapes}))


class Bench:
    """A model with random weights, an engine over it, and random rounds."""

    def __init__(self, device: str, longest: int, streams: tuple[int, ...] | None = None) -> None:
        cpu = device == 'cpu'
        self.ctx = Context(device)
        self.config = parse_config(SMALL if cpu else QWEN_0_8B)
        self.weights = allocate(
            self.config, self.ctx.device, torch.float32 if cpu else torch.bfloat16
        )
        randomise(self.config, self.weights, seed=0)
        self.registry = Registry(self.ctx, (1 if cpu else 4) << 30)
        self.longest, self.streams = longest, streams or streams_of(SHAPES.values())
        self.rng = np.random.default_rng(0)

    def engine(
        self, deterministic: bool = False, streams: tuple[int, ...] | None = None
    ) -> ForkEngine:
        """Return an engine; two stand side by side."""
        return ForkEngine(
            self.ctx, self.config, self.weights, self.registry, slots=2, capacity=self.longest,
            streams=streams or self.streams, deterministic=deterministic,
            name='bitwise' if deterministic else 'fork',
        )  # fmt: skip

    def words(self, count: int) -> NDArray[np.int32]:
        """Return random tokens."""
        return self.rng.integers(0, self.config.vocab, count, dtype=np.int32)

    def request(self, shape: Shape, state: NDArray[np.int32] | None = None) -> Request:
        """Return a round of one request on a new state, or on one that has grown."""
        options = self.words(CHOICES)
        if state is None:
            state, keep = self.words(shape.state), False
        else:
            state, keep = np.concatenate((state, self.words(GROWN))), True
        return Request(
            state, [Branch(self.words(shape.tokens), options) for _ in range(shape.branches)], keep
        )


def floor(config: LMConfig, shape: Shape) -> tuple[float, str]:
    """Milliseconds: the arithmetic at the matrix rate or the bytes at the read rate."""
    trunk = (shape.state**2 - shape.resumed**2) / 2
    pairs = trunk + shape.branches * shape.tokens * (shape.state + shape.tokens / 2)
    flops = 2.0 * matrix_parameters(config) * shape.rows
    flops += 4.0 * config.full_layers * config.heads * config.head_dim * pairs
    moved = 2.0 * matrix_parameters(config)
    moved += 4 * config.full_layers * config.kv_heads * config.head_dim * shape.state
    arithmetic, reading = flops / MATRIX_FLOPS * 1e3, moved / READ_BYTES * 1e3
    if arithmetic >= reading:
        return arithmetic, f'{flops / 1e12:.2f} TFLOP at 752 TFLOP/s'
    return reading, f'{moved / 1e9:.2f} GB at 4.22 TB/s'


def measured(bench: Bench, engine: ForkEngine, name: str, shape: Shape, runs: int) -> Row:
    """Time one kind of round, with a new state or question each time."""
    base = bench.words(shape.resumed) if shape.resumed else None
    if base is not None:
        engine.round([Request(base, [Branch(base[:GROWN], [0])])])  # leaves its checkpoint
    waiting: list[Request] = []
    uncaptured = engine.statistics.uncaptured

    def before() -> None:
        waiting[:] = [bench.request(shape, base)]

    def call() -> list[list[Answer]]:
        return engine.round(waiting)

    times = report.timed(call, bench.ctx.synchronize, runs, before, warm=3 if runs > 3 else 1)
    made = row(name, times, floor(bench.config, shape))
    made.spread['rows'] = shape.rows
    if engine.statistics.uncaptured > uncaptured:
        made.spread['uncaptured'] = engine.statistics.uncaptured - uncaptured
    return made


def own_rows(device: str, shapes: dict[str, Shape], ready: Callable[[], None]) -> Iterator[Row]:
    """All rows, as they come; `ready` is called when all is captured and before anything is timed.

    Args:
        device: where.
        shapes: the rounds.
        ready: returns when the device is free.
    """
    runs = 2 if device == 'cpu' else 30
    bench = Bench(device, max(x.state for x in shapes.values()) + 64)
    bitwise = {name: shapes[name] for name in BITWISE if name in shapes}
    with torch.inference_mode():
        engine = bench.engine()
        steady = bench.engine(deterministic=True, streams=streams_of(bitwise.values()))
        ready()
        plain = {}
        for name, shape in shapes.items():
            made = measured(bench, engine, name, shape, runs)
            plain[name] = made.ours
            yield made
        for name, shape in bitwise.items():
            made = measured(bench, steady, f'bitwise {name}', shape, runs)
            made.spread['over the default'] = round(made.ours / plain[name], 3)
            yield made


def measure(
    device: str = 'cpu',
    peers: Iterable[str] = PEERS,
    log: Callable[[str], None] = print,
    keep: report.Keep = lambda rows: None,
) -> list[Row]:
    """All rows of the benchmark; `keep` is given them whenever there are more."""
    cpu = device == 'cpu'
    shapes = {name: x for name, x in SHAPES.items() if not cpu or x.rows <= 1300}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        # The peer compiles its kernels beside ours, and is measured afterwards.
        crew = decide_peers.Crew(peers, shapes, QWEN_0_8B, device, Path(folder))
        rows: list[Row] = []
        for made in own_rows(device, shapes, crew.compiled):
            if cpu:
                made.floor.clear()  # the rates behind them are those of a GPU
            log(f'{made.work}: {made.ours} {made.unit}, {made.spread}')
            rows.append(made)
            keep(rows)
        if not cpu:
            torch.cuda.empty_cache()
        crew.measure(rows, log)
        keep(rows)
    if cpu:
        for made in rows:
            made.work += ' small'
    return rows


def main(argv: list[str] | None = None) -> int:
    """Run it by itself: python -m flashrt_ros.bench.decide --device cuda --json FILE."""
    parser = argparse.ArgumentParser(description='Measure forked decisions.')
    parser.add_argument('--device', default='cpu')
    parser.add_argument('--json', type=Path)
    args = parser.parse_args(argv)
    rows = measure(args.device, keep=report.keeper('decide', args.device, args.json))
    report.write(report.build('decide', args.device, rows), args.json)
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
