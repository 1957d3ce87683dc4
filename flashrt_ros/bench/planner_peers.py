"""The peers of `flashrt bench planner`, on the same works with the same dimensions.

`transformers-fla`: transformers with flash-linear-attention's kernels, a deep copy of its cache
standing for a restored capsule. `flide`: that engine in process, resuming from its session cache;
it answers questions about a prompt and writes no text. Each runs as a process of its own::

    python -m flashrt_ros.bench.planner_peers flide --device cuda --dims JSON --work 'cold 2k'

What takes a peer minutes is compiling and trying out kernels, on one core. So all of them start
with an empty kernel cache at once, beside our own such start, and are measured later, one by one,
with the kernels that this left. What would be done again for every length is done once:
flash-linear-attention tunes its norm for each number of rows, which the kernel never reads; flide
captures three hundred graphs before it answers, here a shape's graph when it is first asked for.

FLASHRT_PEER_SECONDS bounds the time from the start of the benchmark to the end of the last peer.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import importlib.util
import json
import logging
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch

from flashrt_ros.bench import peer
from flashrt_ros.bench.report import Row

NEW = 32  # tokens appended to what was restored
REVISITED = 2048  # tokens of each prompt that is revisited in turn
NEEDS = {'transformers-fla': ('transformers', 'fla'), 'flide': ('transformers', 'flide')}
MODULE = 'flashrt_ros.bench.planner_peers'
SECONDS = 225.0  # from the start of the benchmark to the end of the last peer
COMPILING = 105.0  # of these for the starts with an empty cache
EMPTY, FULL = 'start empty cache', 'start full cache'
# What is measured first, should the time not be enough for all.
FIRST_WORKS = (
    FULL, 'cold 2k', 'cold 16k', 'warm 2k', 'warm 16k', 'decode', 'warm 4k', 'warm 8k',
)  # fmt: skip
FIRST = 128  # tokens of the prompt that a start is measured with
Tell = Callable[[str, Callable[[], float]], None]


def count(word: str) -> int:
    """'2k' is 2048."""
    return int(word[:-1]) * 1024 if word.endswith('k') else int(word)


def since_start() -> float:
    """Milliseconds since this process was started, as its parent noted."""
    return (time.time() - float(os.environ['FLASHRT_PEER_STARTED'])) * 1e3


class Clock:
    """Medians of wall time in milliseconds, the device idle before and after.

    Args:
        device: where the calls run.
        runs: calls that count.
        warm: calls before them that do not.
    """

    def __init__(self, device: str, runs: int, warm: int) -> None:
        self.runs, self.warm = runs, warm
        self.wait = torch.cuda.synchronize if device != 'cpu' else lambda: None

    def median(self, call: Callable[[], Any]) -> float:
        """Return the median time of `call`."""
        samples = []
        for index in range(self.runs + self.warm):
            self.wait()
            start = time.perf_counter()
            call()
            self.wait()
            if index >= self.warm:
                samples.append((time.perf_counter() - start) * 1e3)
        return statistics.median(samples)

    def in_turn(self, calls: Sequence[Callable[[], Any]]) -> float:
        """Return the median time over calls made in turn, each of them once uncounted first."""
        samples = []
        for turn in range(self.runs + 1):
            for call in calls:
                self.wait()
                start = time.perf_counter()
                call()
                self.wait()
                if turn:
                    samples.append((time.perf_counter() - start) * 1e3)
        return statistics.median(samples)


def build(dims: dict[str, Any], device: str) -> Any:
    """Return transformers' model with random weights, in bfloat16 on a GPU."""
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    plain = {key: value for key, value in dims.items() if key != 'model_type'}
    torch.set_default_dtype(torch.float32 if device == 'cpu' else torch.bfloat16)
    try:
        with torch.device(device):
            return Qwen3_5ForCausalLM(Qwen3_5TextConfig(**plain)).eval()
    finally:
        torch.set_default_dtype(torch.float32)


def tune_once() -> None:
    """Let flash-linear-attention tune the norm of queries and keys once, not for every length.

    Of 25 settings five are tried: the kernel takes microseconds, compiling one a second.
    """
    if importlib.util.find_spec('fla') is None:
        return
    module: Any = importlib.import_module('fla.modules.l2norm')
    kernel = module.l2norm_fwd_kernel
    kernel.configs = kernel.configs[::6]  # from few rows and warps to many

    class Once:
        def __getitem__(self, grid: Any) -> Callable[..., Any]:
            launch = kernel[grid]
            return lambda *args, **kwargs: launch(*args, **{**kwargs, 'NB': 1})

    module.l2norm_fwd_kernel = Once()


def transformers_fla(dims: dict[str, Any], device: str, works: Iterable[str], tell: Tell) -> None:
    """Measure transformers with flash-linear-attention."""
    tune_once()
    model, clock = build(dims, device), Clock(device, 3, 1)

    @torch.inference_mode()
    def forward(tokens: torch.Tensor, cache: Any = None) -> Any:
        out = model(tokens, past_key_values=cache, use_cache=True, logits_to_keep=1)
        out.logits.argmax(-1).item()
        return out.past_key_values

    def resume(more: torch.Tensor, cache: Any) -> Any:
        return forward(more, copy.deepcopy(cache))

    def words(length: int) -> torch.Tensor:
        return torch.randint(0, dims['vocab_size'], (1, length), device=device)

    def measure(kind: str, size: int) -> float:
        if kind == 'cold':
            return clock.median(partial(forward, words(size)))
        if kind == 'warm':
            return clock.median(partial(resume, words(NEW), forward(words(size))))
        if kind == 'revisit':
            caches = [forward(words(REVISITED)) for _ in range(size)]
            return clock.in_turn([partial(resume, words(NEW), cache) for cache in caches])
        cache, one = forward(words(size)), words(1)
        return Clock(device, 10, 2).median(lambda: forward(one, cache))

    for work in works:
        kind, *rest = work.split()
        if kind == 'start':
            tell(work, lambda: [forward(words(FIRST)), since_start()][1])
        elif kind in ('cold', 'warm', 'revisit', 'decode'):
            tell(work, partial(measure, kind, count(rest[0]) if rest else 2048))


def flide(dims: dict[str, Any], device: str, works: Iterable[str], tell: Tell) -> None:
    """Measure the flide engine in process: a prompt and one question, its answer one token."""
    formats: Any = importlib.import_module('flide.formats')
    base: Any = importlib.import_module('flide.formats.base')
    engines: Any = importlib.import_module('flide.runtime.engine')
    format_class, plan_of, read_of = base.Format, base.Plan, base.Read

    class Raw(format_class):  # type: ignore[misc, valid-type]
        """Bare tokens and a head of 26 rows, so that no text format is measured."""

        name = 'raw'
        backbones = ()

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            pass

        def load_heads(self, backbone: Any) -> dict[str, Any]:
            rows = backbone.lm.embed_tokens.weight[100:126]
            return {'next': lambda hidden: hidden.to(rows.dtype) @ rows.T}

    formats.detect = lambda *args, **kwargs: Raw
    engines.formats.detect = formats.detect
    rng, clock = random.Random(0), Clock(device, 5, 2)

    def words(length: int) -> list[int]:
        return [rng.randrange(100, dims['vocab_size']) for _ in range(length)]

    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        build(dims, device).save_pretrained(Path(folder))
        engine = engines.Engine(
            folder, capture=False, backbone_options={'cuda_graphs': device != 'cpu'},
            session_cache_gb=20.0 if device != 'cpu' else 0.5, session_min_tokens=1024,
            device='cuda:0' if device == 'cuda' else device,
        )  # fmt: skip
        sessions = engine.sessions

        def ask(prompt: list[int], question: list[int]) -> Any:
            return engine._run_one(plan_of(prompt, [question], (read_of('next'),)))

        def measure(kind: str, size: int) -> float:
            engine.sessions = None if kind == 'cold' else sessions
            if kind == 'cold':
                return clock.median(lambda: ask(words(size - 1), words(1)))
            prompts = [words(size)] if kind == 'warm' else [words(REVISITED) for _ in range(size)]
            for prompt in prompts:
                ask(prompt, words(NEW))
            calls = [partial(lambda prompt: ask(prompt, words(NEW)), p) for p in prompts]
            return clock.median(calls[0]) if kind == 'warm' else clock.in_turn(calls)

        for work in works:
            kind, *rest = work.split()
            if kind == 'start':
                tell(work, lambda: [ask(words(FIRST - 1), words(1)), since_start()][1])
            elif kind in ('cold', 'warm', 'revisit'):
                tell(work, partial(measure, kind, count(rest[0])))
            elif kind == 'decode':
                peer.tell(work, 'it answers questions and writes no text')


KNOWN = {'transformers-fla': transformers_fla, 'flide': flide}


class Crew:
    """The peers of one run of the benchmark, at work from now on.

    Args:
        names: the peers.
        dims: the model's dimensions.
        device: where.
        folder: for their kernels.
    """

    def __init__(
        self, names: Iterable[str], dims: dict[str, Any], device: str, folder: Path
    ) -> None:
        self._end = time.monotonic() + float(os.environ.get('FLASHRT_PEER_SECONDS', SECONDS))
        self._found: dict[str, peer.Found] = {}
        self._calls: dict[str, Callable[[list[str], float], peer.Found]] = {}
        for name in names:
            missing = [need for need in NEEDS[name] if importlib.util.find_spec(need) is None]
            if device == 'cpu':
                self._found[name] = {'': 'needs an NVIDIA GPU'}
            elif missing:
                self._found[name] = {'': f'{" and ".join(missing)} not installed'}
            else:
                self._calls[name] = partial(run, name, dims, device, str(folder / name))
        self._pool = ThreadPoolExecutor(max(1, len(self._calls)))
        seconds = min(COMPILING, self._left())
        self._starts = {
            name: self._pool.submit(call, [EMPTY], seconds) for name, call in self._calls.items()
        }

    def _left(self) -> float:
        return max(1.0, self._end - time.monotonic())

    def compiled(self) -> None:
        """Wait until the starts with an empty cache have ended, and the device is free."""
        starts, self._starts = self._starts, {}
        for name, start in starts.items():
            found = start.result()
            self._found[name] = {EMPTY: found.get(EMPTY, found[''])}
        self._pool.shutdown()

    def measure(
        self,
        rows: Iterable[Row],
        log: Callable[[str], None] = print,
        kept: Callable[[], None] = lambda: None,
    ) -> None:
        """Write each peer's figure, or the reason why there is none, into `rows`.

        Args:
            rows: ours.
            log: told every figure.
            kept: called whenever a peer has written its own.
        """
        rows = list(rows)
        works = [row.work for row in rows if row.work != EMPTY]
        works.sort(key=lambda work: (*FIRST_WORKS, work).index(work))
        for turn, name in enumerate(self._found):
            if name in self._calls:
                share = self._left() / (len(self._found) - turn)
                self._found[name] = {**self._calls[name](works, share), **self._found[name]}
            found = self._found[name]
            for row in rows:
                row.peers[name] = found.get(row.work, found[''])
                log(f'{name}: {row.work}: {row.peers[name]}')
            kept()


def run(
    name: str, dims: dict[str, Any], device: str, cache: str, works: list[str], seconds: float
) -> peer.Found:
    """Run one peer on some works with its kernels' cache in the folder `cache`."""
    environment = {
        **os.environ, 'TRITON_CACHE_DIR': cache, 'FLASHRT_PEER_STARTED': str(time.time()),
        'HF_HUB_OFFLINE': '1',  # nothing is looked for elsewhere while the clock runs
    }  # fmt: skip
    words = [word for work in works for word in ('--work', work)]
    dims_word = json.dumps(dims)
    return peer.run(
        [sys.executable, '-m', MODULE, name, '--device', device, '--dims', dims_word, *words],
        seconds, environment,
    )  # fmt: skip


def main() -> int:
    """Be one peer."""
    parser = argparse.ArgumentParser(description='Be one peer of flashrt bench planner.')
    parser.add_argument('name', choices=KNOWN)
    parser.add_argument('--device', required=True)
    parser.add_argument('--dims', required=True, type=json.loads)
    parser.add_argument('--work', action='append', default=[])
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    KNOWN[args.name](args.dims, args.device, args.work, peer.attempt)
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
