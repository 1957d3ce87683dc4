"""The peer of `flashrt bench decide`: the flide engine, in process, on the same rounds.

It runs as a process of its own::

    python -m flashrt_ros.bench.decide_peers --device cuda --dims JSON --work 'DI 323 5 190 0'
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import logging
import random
import sys
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from flashrt_ros.bench import peer
from flashrt_ros.bench.planner_peers import Clock, build
from flashrt_ros.bench.report import Row

MODULE = 'flashrt_ros.bench.decide_peers'
NEEDS = ('transformers', 'flide')
SECONDS = 200.0  # for all works
ROWS = slice(100, 126)  # of the embedding: 26 options, as ours


def flide(dims: dict[str, Any], device: str, works: Iterable[str]) -> None:
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
            for _ in range(24):
                grown = prompt + words(state - resumed)
                questions = [words(tokens) for _ in range(branches)]
                plans.append(base.Plan(grown, questions, (base.Read('next'),)))
            if resumed:
                engine._run_one(base.Plan(prompt, [words(tokens)], (base.Read('next'),)))
            turn = iter(plans)
            return Clock(device, 20, 4).median(lambda: engine._run_one(next(turn)))

        for work in works:
            name, *sizes = work.rsplit(' ', 4)
            peer.attempt(name, partial(measure, *map(int, sizes)))


def measure(
    rows: Iterable[Row],
    peers: Iterable[str],
    dims: dict[str, Any],
    device: str,
    log: Callable[[str], None] = print,
) -> None:
    """Write the peer's figures, or the reason why there are none, into `rows`."""
    from flashrt_ros.bench.decide import SHAPES

    rows = list(rows)
    for name in peers:
        missing = [need for need in NEEDS if importlib.util.find_spec(need) is None]
        found: peer.Found = {'': f'{" and ".join(missing)} not installed'}
        if device == 'cpu':
            found = {'': 'needs an NVIDIA GPU'}
        elif not missing:
            call = [sys.executable, '-m', MODULE, '--device', device, '--dims', json.dumps(dims)]
            for made in rows:
                shape = SHAPES.get(made.work)
                if shape is not None:
                    sizes = (shape.state, shape.branches, shape.tokens, shape.resumed)
                    call += ['--work', ' '.join((made.work, *map(str, sizes)))]
            found = peer.run(call, SECONDS)
        for made in rows:
            value = found.get(made.work.removeprefix('bitwise '), found[''])
            made.peers[name] = value
        if not all(isinstance(made.peers[name], int | float) for made in rows):
            log(f'{name}: {found[""]}')


def main() -> int:
    """Be the peer."""
    parser = argparse.ArgumentParser(description='Be the peer of flashrt bench decide.')
    parser.add_argument('--device', required=True)
    parser.add_argument('--dims', required=True, type=json.loads)
    parser.add_argument('--work', action='append', default=[])
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    flide(args.dims, args.device, args.work)
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
