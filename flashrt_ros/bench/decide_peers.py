"""The peer of `flashrt bench decide`: the flide engine, in process, on the same rounds.

It runs as a process of its own::

    python -m flashrt_ros.bench.decide_peers --device cuda --dims JSON --work 'DI 323 5 190 0'

and twice: once beside our own captures, each round a single time, which leaves its kernels in a
cache; and once alone, when it is measured. FLASHRT_PEER_SECONDS bounds the time from the start of
the benchmark to the end of the peer.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import logging
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from flashrt_ros.bench import peer
from flashrt_ros.bench.planner_peers import Clock, build
from flashrt_ros.bench.report import Row

if TYPE_CHECKING:
    from flashrt_ros.bench.decide import Shape

MODULE = 'flashrt_ros.bench.decide_peers'
NEEDS = ('transformers', 'flide')
SECONDS = 145.0  # from the start of the benchmark to the end of the peer
COMPILING = 70.0  # of these for the rounds that compile its kernels
RUNS, WARM = 20, 4
ROWS = slice(100, 126)  # of the embedding: 26 options, as ours


def flide(dims: dict[str, Any], device: str, works: Iterable[str], runs: int, warm: int) -> None:
    """Measure the flide engine: bare tokens, and a head of 26 rows."""
    formats: Any = importlib.import_module('flide.formats')
    base: Any = importlib.import_module('flide.formats.base')
    engines: Any = importlib.import_module('flide.runtime.engine')

    class Raw(base.Format):
        """No text format: tokens go in, 26 logits come out."""

        name = 'raw'
        backbones = ()

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            pass

        def load_heads(self, backbone: Any) -> dict[str, Any]:
            rows = backbone.lm.embed_tokens.weight[ROWS]
            return {'next': lambda hidden: hidden.to(rows.dtype) @ rows.T}

    formats.detect = lambda *args, **kwargs: Raw
    engines.formats.detect = formats.detect
    rng = random.Random(0)

    def words(length: int) -> list[int]:
        return [rng.randrange(1000, 200000) for _ in range(length)]

    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        build(dims, device).save_pretrained(Path(folder))
        torch.cuda.empty_cache()
        # A shape's graph is captured when it is first asked for, not hundreds at the start.
        engine = engines.Engine(
            folder, capture=False, backbone_options={'cuda_graphs': True}, session_cache_gb=20.0,
            session_min_tokens=1024, device='cuda:0' if device == 'cuda' else device,
        )  # fmt: skip
        sessions = engine.sessions

        def measure(state: int, branches: int, tokens: int, resumed: int) -> float:
            engine.sessions = sessions if resumed else None
            prompt, plans = words(resumed), []
            # Plans are drawn before the clock runs, as ours are.
            for _ in range(runs + warm):
                grown = prompt + words(state - resumed)
                questions = [words(tokens) for _ in range(branches)]
                plans.append(base.Plan(grown, questions, (base.Read('next'),)))
            if resumed:
                engine._run_one(base.Plan(prompt, [words(tokens)], (base.Read('next'),)))
            turn = iter(plans)
            return Clock(device, runs, warm).median(lambda: engine._run_one(next(turn)))

        for work in works:
            name, *sizes = work.rsplit(' ', 4)
            peer.attempt(name, partial(measure, *map(int, sizes)))


class Crew:
    """The peer of one run of the benchmark, at work from now on.

    Args:
        names: the peers, flide or none.
        shapes: the rounds, by the name of their row.
        dims: the model's dimensions.
        device: where.
        folder: for its kernels.
    """

    def __init__(
        self, names: Iterable[str], shapes: Mapping[str, Shape], dims: dict[str, Any], device: str,
        folder: Path,
    ) -> None:  # fmt: skip
        self._end = time.monotonic() + float(os.environ.get('FLASHRT_PEER_SECONDS', SECONDS))
        self._names = tuple(names)
        missing = [need for need in NEEDS if importlib.util.find_spec(need) is None]
        self._reason = f'{" and ".join(missing)} not installed' if missing else ''
        if device == 'cpu':
            self._reason = 'needs an NVIDIA GPU'
        self._call = [sys.executable, '-m', MODULE, '--device', device, '--dims', json.dumps(dims)]
        for name, shape in shapes.items():
            sizes = (shape.state, shape.branches, shape.tokens, shape.resumed)
            self._call += ['--work', ' '.join((name, *map(str, sizes)))]
        self._environment = {
            **os.environ, 'TRITON_CACHE_DIR': str(folder / 'flide'), 'HF_HUB_OFFLINE': '1',
        }  # fmt: skip
        self._pool = ThreadPoolExecutor(1)
        self._first = self._pool.submit(self._run, COMPILING, '--runs', '1', '--warm', '0')

    def _run(self, seconds: float, *more: str) -> peer.Found:
        if self._reason or not self._names:
            return {'': self._reason}
        return peer.run([*self._call, *more], seconds, self._environment)

    def compiled(self) -> None:
        """Wait until its kernels are compiled, or its time for that is over."""
        self._first.result()
        self._pool.shutdown()

    def measure(self, rows: Iterable[Row], log: Callable[[str], None] = print) -> None:
        """Write the peer's figures, or the reason why there is none, into `rows`."""
        found = self._run(max(1.0, self._end - time.monotonic()))
        for name in self._names:
            for made in rows:
                made.peers[name] = found.get(made.work.removeprefix('bitwise '), found[''])
                log(f'{name}: {made.work}: {made.peers[name]}')


def main() -> int:
    """Be the peer."""
    parser = argparse.ArgumentParser(description='Be the peer of flashrt bench decide.')
    parser.add_argument('--device', required=True)
    parser.add_argument('--dims', required=True, type=json.loads)
    parser.add_argument('--work', action='append', default=[])
    parser.add_argument('--runs', type=int, default=RUNS)
    parser.add_argument('--warm', type=int, default=WARM)
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    flide(args.dims, args.device, args.work, args.runs, args.warm)
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
