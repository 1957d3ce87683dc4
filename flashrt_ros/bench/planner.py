"""`flashrt bench planner`: what a prompt, a resumed prompt and a token cost.

The model has the dimensions of Qwen3.5-0.8B and random weights in bfloat16; on the CPU a small
model of the same kind in float32 stands in, and the rows say so. Every time is that of the whole
call, from tokens on the host to the chosen token back on the host.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from flashrt_policies.hybrid_lm.config import LMConfig, parse_config
from flashrt_policies.hybrid_lm.model import HybridLM
from flashrt_policies.hybrid_lm.weights import allocate, randomise
from flashrt_ros.bench import planner_peers, report
from flashrt_ros.bench.report import Row, Times
from flashrt_ros.capsule.capsule import Capsule
from flashrt_ros.capsule.closure import Closure
from flashrt_ros.capsule.fingerprint import Fingerprint
from flashrt_ros.capsule.registry import Registry
from flashrt_ros.capsule.session import Session
from flashrt_ros.contract.context import Context

QWEN_0_8B = {
    'model_type': 'qwen3_5_text', 'vocab_size': 248320, 'hidden_size': 1024,
    'intermediate_size': 3584, 'num_hidden_layers': 24, 'num_attention_heads': 8,
    'num_key_value_heads': 2, 'head_dim': 256, 'linear_num_key_heads': 16,
    'linear_num_value_heads': 16, 'linear_key_head_dim': 128, 'linear_value_head_dim': 128,
    'max_position_embeddings': 65536, 'tie_word_embeddings': True,
}  # fmt: skip
SMALL = {
    **QWEN_0_8B, 'vocab_size': 512, 'hidden_size': 128, 'intermediate_size': 256,
    'num_hidden_layers': 4, 'num_attention_heads': 4, 'head_dim': 32, 'linear_num_key_heads': 4,
    'linear_num_value_heads': 4, 'linear_key_head_dim': 32, 'linear_value_head_dim': 32,
}  # fmt: skip
APPENDED = 32
MODULE = 'flashrt_ros.bench.planner'  # not __name__: that is __main__ when run by itself
MATRIX_FLOPS = 752e12  # bf16 products measured on an H200
READ_BYTES = 4.22e12  # bytes a second that a copy reads and writes, measured on an H200
PEERS = ('transformers-fla', 'flide')
OPTIONS = ('keep',)
START_SECONDS = 100.0  # longest for a process to its first token


class Bench:
    """A model with random weights, a session over its state, and random prompts."""

    def __init__(self, device: str, capacity: int) -> None:
        cpu = device == 'cpu'
        self.ctx = Context(device)
        self.config = parse_config(SMALL if cpu else QWEN_0_8B)
        dtype = torch.float32 if cpu else torch.bfloat16
        weights = allocate(self.config, self.ctx.device, dtype)
        randomise(self.config, weights, seed=0)
        self.lm = HybridLM(self.ctx, self.config, weights, capacity=capacity)
        closure = Closure('planner')
        self.lm.close_over(closure)
        budget = (1 if cpu else 6) << 30
        self.registry = Registry(self.ctx, budget)
        made = Fingerprint.of(closure, self.ctx.device, **self.lm.fingerprint())
        self.session = Session(self.ctx, closure, made, registry=self.registry)
        self.rng = torch.Generator().manual_seed(0)

    def words(self, count: int) -> Tensor:
        """Return `count` random tokens, int32 on the host."""
        return torch.randint(self.config.vocab, (count,), generator=self.rng, dtype=torch.int32)

    def cold(self, tokens: Tensor) -> int:
        """Take a prompt in from nothing and return the chosen token."""
        self.lm.forget()
        self.lm.append(tokens)
        return self.lm.token

    def stored(self, length: int) -> Capsule:
        """Return a capsule of a random prompt that shares nothing with any other."""
        self.lm.forget()
        self.lm.append(self.words(length))
        return self.session.snapshot('prompt', length, pin=True)

    def drop(self, capsules: Iterable[Capsule]) -> None:
        """Give their memory back."""
        for capsule in capsules:
            capsule.unpin(self.session)
            self.registry.evict(capsule)


def label(tokens: int) -> str:
    """2048 is 2k."""
    return f'{tokens // 1024}k' if tokens >= 1024 else str(tokens)


def row(work: str, times: Times, floor: tuple[float, str] | None = None) -> Row:
    """Times in milliseconds."""
    spread = {k: v / 1e3 if k != 'runs' else v for k, v in times.spread().items()}
    made = Row(work, round(times.p50 / 1e3, 3), 'ms', spread=spread)
    if floor is not None:
        made.floor = {'value': round(floor[0], 3), 'how': floor[1]}
    return made


def matrix_parameters(config: LMConfig) -> int:
    """Return the parameters that every token is multiplied with, without the head."""
    mlp = 3 * config.hidden * config.intermediate
    value = config.lin_v_heads * config.lin_v_dim
    mixer = config.hidden * (config.conv_dim + 2 * value + 2 * config.lin_v_heads)
    query = config.heads * config.head_dim
    full = config.hidden * ((3 if config.gated else 2) * query)
    full += config.hidden * 2 * config.kv_heads * config.head_dim
    return len(config.layers) * mlp + config.linear_layers * mixer + config.full_layers * full


def cold_floor(config: LMConfig, length: int) -> tuple[float, str]:
    """Milliseconds that the arithmetic of a cold prompt takes at the measured matrix rate."""
    products = 2.0 * matrix_parameters(config) * length
    attention = 2.0 * config.full_layers * config.heads * config.head_dim * length**2
    flops = products + attention
    return flops / MATRIX_FLOPS * 1e3, f'{flops / 1e12:.2f} TFLOP at 752 TFLOP/s'


def step_floor(config: LMConfig, length: int, moved: int = 0) -> tuple[float, str]:
    """Milliseconds to read every weight and key once, and to move `moved` bytes."""
    weights = 2 * (matrix_parameters(config) + config.vocab * config.hidden)
    keys = 4 * config.full_layers * config.kv_heads * config.head_dim * length
    total = weights + keys + 2 * moved
    return total / READ_BYTES * 1e3, f'{total / 1e9:.2f} GB at 4.22 TB/s'


def cold_rows(bench: Bench, lengths: Iterable[int], runs: int) -> list[Row]:
    """Prompts from nothing."""
    rows = []
    for length in lengths:
        tokens = bench.words(length)
        count = max(3, runs * 2048 // length)
        times = report.timed(partial(bench.cold, tokens), bench.ctx.synchronize, count, warm=2)
        rows.append(row(f'cold {label(length)}', times, cold_floor(bench.config, length)))
    return rows


def warm_rows(bench: Bench, lengths: Iterable[int], runs: int) -> list[Row]:
    """A stored prompt restored over another one, 32 tokens appended, the next token chosen."""
    rows = []
    for length in lengths:
        turns = [bench.stored(length), bench.stored(length)]
        more = bench.words(APPENDED)

        def resume(turns: list[Capsule] = turns, more: Tensor = more) -> int:
            turns.reverse()
            bench.session.restore(turns[0])
            bench.lm.append(more)
            return bench.lm.token

        times = report.timed(resume, bench.ctx.synchronize, runs, warm=3)
        floor = step_floor(bench.config, length, turns[0].nbytes)
        rows.append(row(f'warm {label(length)}', times, floor))
        bench.drop(turns)
    return rows


def decode_row(bench: Bench, length: int, runs: int) -> Row:
    """One token after another: the mean over stretches of which only the last token is read."""
    bench.cold(bench.words(length))
    steps = 32

    def stretch() -> int:
        for _ in range(steps):
            bench.lm.step()
        return bench.lm.token

    whole = report.timed(stretch, bench.ctx.synchronize, max(3, runs // 5), warm=1)
    each = Times(tuple(sample / steps for sample in whole.samples))

    def one() -> int:
        bench.lm.step()
        return bench.lm.token

    made = row('decode', each, step_floor(bench.config, length))
    alone = row('', report.timed(one, bench.ctx.synchronize, runs)).spread
    made.spread.update({f'read back {key}': value for key, value in alone.items()})
    return made


def turn_row(bench: Bench, count: int, length: int, runs: int) -> Row:
    """`count` pinned prompts revisited in turn: the slowest over the quickest median."""
    prompts = [bench.stored(length) for _ in range(count)]
    more = bench.words(APPENDED)
    times: list[list[float]] = [[] for _ in prompts]

    def visit(index: int) -> int:
        bench.session.restore(prompts[index])
        bench.lm.append(more)
        return bench.lm.token

    for turn in range(runs + 1):
        for index in range(count):
            bench.ctx.synchronize()
            start = time.perf_counter_ns()
            visit(index)
            if turn:
                times[index].append((time.perf_counter_ns() - start) / 1e3)
    floor = step_floor(bench.config, length, prompts[0].nbytes)
    bench.drop(prompts)
    made = row(f'revisit {count}', Times(tuple(t for series in times for t in series)), floor)
    medians = sorted(Times(tuple(series)).p50 for series in times)
    made.spread['slowest over quickest'] = round(medians[-1] / medians[0], 3)
    return made


def first_token(device: str) -> None:
    """Build the model in this process, take 128 tokens in and read the next one."""
    bench = Bench(device, 4096)
    bench.cold(bench.words(128))


def start_rows(device: str, cache: Path, between: Callable[[], None] = lambda: None) -> list[Row]:
    """From the start of a process to its first token: kernel cache empty, then full.

    Args:
        device: where.
        cache: an empty folder for the kernels.
        between: called between the two.
    """
    touch = f"import torch; torch.zeros(1, device='{device}')"
    environment = {**os.environ, 'TRITON_CACHE_DIR': str(cache)}

    def seconds(*command: str) -> Times:
        start = time.perf_counter_ns()
        subprocess.run(
            [sys.executable, *command], env=environment, check=True, timeout=START_SECONDS
        )
        return Times(((time.perf_counter_ns() - start) / 1e3,))

    call = ('-m', MODULE, '--device', device, '--first-token')
    empty = seconds(*call)
    between()
    full, bare = seconds(*call), seconds('-c', touch).p50 / 1e3
    floor = (bare, 'a process that imports torch and touches the device')
    return [row('start empty cache', empty, floor), row('start full cache', full, floor)]


@contextmanager
def kernels_in(cache: Path) -> Iterator[None]:
    """Within the block this process takes its kernels from a folder, and leaves them there."""
    before = os.environ.get('TRITON_CACHE_DIR')
    os.environ['TRITON_CACHE_DIR'] = str(cache)
    try:
        yield
    finally:
        del os.environ['TRITON_CACHE_DIR']
        if before is not None:
            os.environ['TRITON_CACHE_DIR'] = before


def own_rows(device: str) -> Iterator[Row]:
    """All rows but the starts, as they come."""
    cpu = device == 'cpu'
    longest = 2048 if cpu else 32768
    runs = 3 if cpu else 40
    bench = Bench(device, longest + 512)
    yield from cold_rows(bench, [n for n in (2048, 4096, 8192, 16384) if n <= longest], runs)
    warm = [n for n in (2048, 4096, 8192, 16384, 32768) if n <= longest]
    yield from warm_rows(bench, warm, runs)
    yield decode_row(bench, 2048, runs)
    for count in (2, 5, 10, 20):
        yield turn_row(bench, count, 2048 if not cpu else 512, 5)


def measure(
    device: str = 'cpu',
    peers: Iterable[str] = PEERS,
    log: Callable[[str], None] = print,
    keep: report.Keep = lambda rows: None,
) -> list[Row]:
    """All rows of the benchmark; `keep` is given them whenever there are more."""
    rows: list[Row] = []
    starts: list[Row] = []

    def kept() -> None:
        keep(rows + starts)

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        # Peers compile their kernels beside our own first start, which does so too.
        crew = planner_peers.Crew(peers, QWEN_0_8B, device, Path(folder))
        try:
            starts += start_rows(device, Path(folder) / 'ours', crew.compiled)
        except subprocess.SubprocessError as error:
            log(f'start: {error}')
            crew.compiled()
        with kernels_in(Path(folder) / 'ours'):
            for made in own_rows(device):
                # Before the peers: what is measured is told, whatever becomes of them.
                log(f'{made.work}: {made.ours} {made.unit}, {made.spread}')
                rows.append(made)
                kept()
        if device != 'cpu':
            torch.cuda.empty_cache()
        rows += starts
        starts = []
        crew.measure(rows, log, kept)
    if device == 'cpu':
        for made in rows:
            made.work += ' small'
            made.floor.clear()  # the rates behind them are those of a GPU
    return rows


def main(argv: list[str] | None = None) -> int:
    """Run it by itself: python -m flashrt_ros.bench.planner --device cuda --json FILE."""
    parser = argparse.ArgumentParser(description='Measure the planner.')
    parser.add_argument('--device', default='cpu')
    parser.add_argument('--json', type=Path)
    parser.add_argument('--peer', action='append', choices=PEERS)
    parser.add_argument('--first-token', action='store_true', help='build, answer once, leave')
    args = parser.parse_args(argv)
    if args.first_token:
        first_token(args.device)
        return 0
    keep = report.keeper('planner', args.device, args.json)
    rows = measure(args.device, args.peer or PEERS, keep=keep)
    report.write(report.build('planner', args.device, rows), args.json)
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
