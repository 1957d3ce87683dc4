"""The peers of `flashrt bench planner`, measured in the same run on the same weights' shapes.

`transformers-fla`: transformers with flash-linear-attention's kernels, a deep copy of its cache
standing for a restored capsule. `flide`: that engine in process, resuming from its session cache.
A peer that cannot be measured leaves its reason in the rows.
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from flashrt_ros.bench.report import Row

COLD = {'cold 2k': 2048, 'cold 4k': 4096, 'cold 8k': 8192, 'cold 16k': 16384}
WARM = {'warm 2k': 2048, 'warm 4k': 4096, 'warm 8k': 8192, 'warm 16k': 16384}
NEW = 32


def median(call: Callable[[], Any], runs: int, warm: int = 2) -> float:
    """Median wall time in milliseconds, the device idle before and after."""
    samples = []
    for index in range(runs + warm):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        if index >= warm:
            samples.append((time.perf_counter() - start) * 1e3)
    return statistics.median(samples)


def build(dims: dict[str, Any]) -> Any:
    """Return transformers' model with random weights in bfloat16 on the GPU."""
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    plain = {key: value for key, value in dims.items() if key != 'model_type'}
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device('cuda'):
            return Qwen3_5ForCausalLM(Qwen3_5TextConfig(**plain)).eval()
    finally:
        torch.set_default_dtype(torch.float32)


def transformers_fla(dims: dict[str, Any]) -> dict[str, float]:
    """Measure transformers with flash-linear-attention."""
    model, found = build(dims), {}

    @torch.inference_mode()
    def forward(tokens: torch.Tensor, cache: Any = None) -> Any:
        out = model(tokens, past_key_values=cache, use_cache=True, logits_to_keep=1)
        out.logits.argmax(-1).item()
        return out.past_key_values

    def resume(more: torch.Tensor, cache: Any) -> Any:
        return forward(more, copy.deepcopy(cache))

    def words(count: int) -> torch.Tensor:
        return torch.randint(0, dims['vocab_size'], (1, count), device='cuda')

    for work, length in COLD.items():
        prompt = words(length)
        found[work] = median(partial(forward, prompt), 4)
    for work, length in WARM.items():
        cache, more = forward(words(length)), words(NEW)
        found[work] = median(partial(resume, more, cache), 4)
    cache, one = forward(words(2048)), words(1)
    found['decode'] = median(lambda: forward(one, cache), 20)
    return found


def flide(dims: dict[str, Any]) -> dict[str, float]:
    """Measure the flide engine in process: a prompt and one question of one token."""
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
    rng, found = random.Random(0), {}

    def words(count: int) -> list[int]:
        return [rng.randrange(1000, 200000) for _ in range(count)]

    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        build(dims).save_pretrained(Path(folder))
        torch.cuda.empty_cache()
        engine = engines.Engine(
            folder, capture=8192, backbone_options={'cuda_graphs': True}, session_cache_gb=20.0,
            session_min_tokens=1024,
        )  # fmt: skip
        sessions, engine.sessions = engine.sessions, None
        for work, length in COLD.items():
            if length <= 8192:

                def cold(length: int = length) -> Any:
                    return engine._run_one(
                        plan_of(words(length - 1), [words(1)], (read_of('next'),))
                    )

                found[work] = median(cold, 8, warm=4)
        engine.sessions = sessions
        for work, length in WARM.items():
            prompt = words(length)
            engine._run_one(plan_of(prompt, [words(NEW)], (read_of('next'),)))

            def warm(prompt: list[int] = prompt) -> Any:
                plan = plan_of(prompt + words(NEW), [words(NEW)], (read_of('next'),))
                return engine._run_one(plan)

            found[work] = median(warm, 8, warm=4)
    return found


KNOWN: dict[str, tuple[Callable[[dict[str, Any]], dict[str, float]], tuple[str, ...]]] = {
    'transformers-fla': (transformers_fla, ('transformers', 'fla')),
    'flide': (flide, ('transformers', 'flide')),
}


def measure(
    rows: list[Row], peers: Iterable[str], dims: dict[str, Any], log: Callable[[str], None]
) -> None:
    """Write each peer's figure, or the reason why there is none, into `rows`."""
    for name in peers:
        function, modules = KNOWN[name]
        missing = [module for module in modules if importlib.util.find_spec(module) is None]
        found: dict[str, float] = {}
        reason = f'{" and ".join(missing)} not installed' if missing else 'not one of its works'
        if not missing:
            try:
                found = function(dims)
            except Exception as error:  # a peer may fail in its own ways; ours must be written
                reason = f'{type(error).__name__}: {" ".join(str(error).split())[:120]}'
                log(f'{name}: {reason}')
        for row in rows:
            value = found.get(row.work)
            row.peers[name] = reason if value is None else round(value, 3)
        torch.cuda.empty_cache()
