"""What prefix and Euler steps cost by the settings of their kernels, and which settings to keep.

    python tests/gpu/policy_speed.py SETTING FAMILY PRECISION DEVICE

compiles what one setting needs, on few layers, so that many do it side by side. `sweep` then
captures prefix and steps of whole policies once for each setting, in one process, and says what
every one of them changes, in time and in what comes out.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from unittest import mock

import torch

from flashrt_policies.kernels.vla import attention_triton as vla_attention_triton
from flashrt_policies.kernels.vla import linear_triton as vla_linear_triton
from flashrt_policies.vla import sizes
from flashrt_ros.bench import policy_models
from flashrt_ros.bench.policy_models import Measured

FAMILIES = ('pi05', 'smolvla')
WORTH = 0.01  # of the time: what a setting must save to be kept
linear, attention = vla_linear_triton, vla_attention_triton
Setting = tuple[tuple[Any, str, Any], ...]
SETTINGS: dict[str, Setting] = {
    'as they are': (),
    'attend-2-loads': ((attention, 'LOADS', (2, 2)),),
    'attend-128-keys': ((attention, 'KEYS', (128, 32)),),
    'deep-from-4096': ((linear, 'DEEP', 4096),),
    'tiles-narrower': ((linear, 'BUSY', 0.45),),
}
# What the benchmark compiles: family and precision.
PRECISIONS = {
    'bfloat16': (torch.bfloat16, False), 'float8': (torch.bfloat16, True),
    'float32': (torch.float32, False),
}  # fmt: skip
WHOLE = (
    *((family, 'bfloat16') for family in sizes.FULL), ('pi05', 'float8'), ('pi05', 'float32'),
)  # fmt: skip


@contextlib.contextmanager
def applied(setting: Setting) -> Iterator[None]:
    """Within the block the kernels have these settings."""
    with contextlib.ExitStack() as stack:
        for module, name, value in setting:
            stack.enter_context(mock.patch.object(module, name, value))
        yield


def warm(name: str, family: str, precision: str, device: str) -> None:
    """Compile what a setting needs: few layers of full width launch all that there is."""

    def short(whole: sizes.Sizes) -> sizes.Sizes:
        one = dataclasses.replace
        return one(
            whole, tower=one(whole.tower, layers=1), text=one(whole.text, layers=2),
            expert=one(whole.expert, layers=2), vocabulary=512,
        )  # fmt: skip

    full = {name: short(whole) for name, whole in sizes.FULL.items()}
    dtype, float8 = PRECISIONS[precision]
    with applied(SETTINGS[name]), mock.patch.object(policy_models, 'FULL', full):
        Measured(family, 2, device, None if device == 'cpu' else dtype, float8).act()


def warm_all(device: str, jobs: Iterable[tuple[str, str, str]], width: int = 14) -> list[str]:
    """Compile for every job (setting, family, precision), side by side; return what failed."""
    waiting, failed = list(jobs), []
    running: dict[tuple[str, ...], subprocess.Popen[str]] = {}
    while waiting or running:
        while waiting and len(running) < width:
            job = waiting.pop(0)
            command = [sys.executable, __file__, *job, device]
            running[job] = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        first = next(iter(running))
        _, errors = running[first].communicate()
        if running.pop(first).returncode:
            failed.append(f'{first}: {errors.strip()[-300:]}')
    return failed


def prefix(measured: Measured) -> tuple[Callable[[], None], torch.Tensor]:
    """Return a call that runs the prefix, and the keys and values that it fills."""
    policy = measured.policy
    words = policy.words.tensor[: policy._room]

    def call() -> None:
        policy._parts.network.fill(
            policy.features.tensor, words, policy.length.tensor, policy.state.tensor,
            policy.kv.tensor,
        )  # fmt: skip

    return call, policy.kv.tensor[:, :, : policy._parts.network.prefix_tokens]


def steps(measured: Measured) -> tuple[Callable[[], None], torch.Tensor]:
    """Return a call that runs the Euler steps from a noise that stays, and where they end."""
    policy = measured.policy
    net, x = policy._parts.network, torch.empty_like(policy.chunk.tensor)
    generator = torch.Generator().manual_seed(5)
    noise = torch.randn(x.shape, generator=generator).to(x.device)

    def call() -> None:
        x.copy_(noise)
        net.denoise(
            x, policy.length.tensor, policy.state.tensor, policy.kv.tensor,
            policy.previous.tensor, policy.pacing.tensor,
        )  # fmt: skip

    return call, x


def timed(call: Callable[[], None], device: str, rounds: int = 30) -> float:
    """Return milliseconds of a call, replayed from a graph on a GPU; the median."""
    with torch.no_grad():
        call()
        if device == 'cpu':
            began = time.perf_counter()
            call()
            return (time.perf_counter() - began) * 1e3
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
    found = []
    for index in range(rounds + 3):
        a, b = torch.cuda.Event(True), torch.cuda.Event(True)
        a.record()
        graph.replay()
        b.record()
        b.synchronize()
        if index >= 3:
            found.append(a.elapsed_time(b))
    return statistics.median(found)


def sweep(device: str) -> tuple[list[str], dict[str, dict[str, float]], Setting]:
    """Return a line for each setting, milliseconds by part and setting, and what to keep.

    What to keep is every setting that alone saves time in sum over the parts, the best of those
    that contradict each other, if together they save more than the best alone.
    """
    lines: list[str] = []
    found: dict[str, dict[str, float]] = {}
    policies = {family: Measured(family, 2, device) for family in FAMILIES}
    with torch.no_grad():
        for measured in policies.values():
            measured.act()
    calls = {f'{family} prefix': prefix(measured) for family, measured in policies.items()}
    calls.update((f'{family} steps', steps(measured)) for family, measured in policies.items())
    base: dict[str, torch.Tensor] = {}

    def measure(name: str, setting: Setting) -> float:
        with applied(setting):
            for part, (call, result) in calls.items():
                try:
                    spent = timed(call, device)
                except Exception as error:  # too much shared memory, say
                    lines.append(f'{name} {part}: failed: {str(error)[:100]}')
                    spent = float('inf')
                found.setdefault(part, {})[name] = round(spent, 3)
                base.setdefault(part, result.clone())
                off = float((result.float() - base[part].float()).norm() / base[part].norm())
                lines.append(f'{name} {part}: {spent:.3f} ms, changes by {off:.1e}')
        return sum(found[part][name] for part in calls)

    totals = {name: measure(name, setting) for name, setting in SETTINGS.items()}
    first = totals.pop('as they are')
    chosen: dict[tuple[int, str], tuple[Any, str, Any]] = {}
    kept = []
    for name in sorted(totals, key=lambda name: totals[name]):
        spots = {(id(module), key) for module, key, _ in SETTINGS[name]}
        if totals[name] < (1 - WORTH) * first and not spots & set(chosen):
            chosen.update({(id(one[0]), one[1]): one for one in SETTINGS[name]})
            kept.append(name)
    best: Setting = tuple(chosen.values())
    if kept:
        together = measure('together: ' + ' '.join(kept), best)
        alone = min(totals, key=lambda name: totals[name])
        if together > totals[alone]:
            kept, best = [alone], SETTINGS[alone]
    lines.append(f'to keep: {" ".join(kept) or "what there is"}')
    return lines, found, best


if __name__ == '__main__':
    warm(*sys.argv[1:5])
