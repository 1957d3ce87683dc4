"""What the Euler steps cost by the settings of their kernels, and which settings to keep.

    python tests/gpu/policy_speed.py warm SETTING DEVICE

compiles what one setting needs, on few layers, so that many do it side by side. `sweep` then
captures the steps of whole policies once for each setting, in one process, and says what every one
of them changes, in time and in the actions.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch

from flashrt_policies.kernels.vla import linear_triton as vla_linear_triton
from flashrt_policies.vla import sizes
from flashrt_ros.bench import policy as bench
from flashrt_ros.bench import policy_models
from flashrt_ros.bench.policy_models import Measured

FAMILIES = ('pi05', 'smolvla')
WORTH = 0.01  # of the time: what a setting must save to be kept
linear = vla_linear_triton
Setting = tuple[tuple[Any, str, Any], ...]
SETTINGS: dict[str, Setting] = {
    'as they are': (),
    'loads-8': ((linear, 'LOADS', 8),),
    'tiles-wider': ((linear, 'BUSY', 0.2),),
    'four-parts': ((linear, 'PARTS', 4),),
}


@contextlib.contextmanager
def applied(setting: Setting) -> Iterator[None]:
    """Within the block the kernels have these settings."""
    with contextlib.ExitStack() as stack:
        for module, name, value in setting:
            stack.enter_context(mock.patch.object(module, name, value))
        yield


def warm(name: str, device: str) -> None:
    """Compile what a setting needs: two layers of full width launch all that there is."""

    def short(whole: sizes.Sizes) -> sizes.Sizes:
        one = dataclasses.replace
        return one(
            whole, tower=one(whole.tower, layers=1), text=one(whole.text, layers=2),
            expert=one(whole.expert, layers=2), vocabulary=512,
        )  # fmt: skip

    full = {family: short(whole) for family, whole in sizes.FULL.items()}
    with applied(SETTINGS[name]), mock.patch.object(policy_models, 'FULL', full):
        for family in FAMILIES:
            measured = Measured(family, 2, device)
            call, _ = steps(measured)
            with torch.no_grad():
                call()
            measured.wait()


def warm_all(device: str, width: int = 14) -> list[str]:
    """Compile for every setting, some side by side; return what failed."""
    waiting, running, failed = list(SETTINGS), {}, []
    while waiting or running:
        while waiting and len(running) < width:
            name = waiting.pop(0)
            command = [sys.executable, __file__, 'warm', name, device]
            running[name] = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        name = next(iter(running))
        _, errors = running[name].communicate()
        if running.pop(name).returncode:
            failed.append(f'{name}: {errors.strip()[-300:]}')
    return failed


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
    """Return a line for each setting, milliseconds by family and setting, and what to keep.

    What to keep is every setting that alone saves time in sum over the families, the best of those
    that contradict each other, if together they save more than the best alone.
    """
    lines: list[str] = []
    found: dict[str, dict[str, float]] = {}
    policies = {family: Measured(family, 2, device) for family in FAMILIES}
    with torch.no_grad():
        for measured in policies.values():
            measured.act()
    calls = {family: steps(measured) for family, measured in policies.items()}
    base: dict[str, torch.Tensor] = {}

    def measure(name: str, setting: Setting) -> float:
        with applied(setting):
            for family, (call, x) in calls.items():
                try:
                    spent = timed(call, device)
                except Exception as error:  # too much shared memory, say
                    lines.append(f'{name} {family}: failed: {str(error)[:100]}')
                    spent = float('inf')
                found.setdefault(family, {})[name] = round(spent, 3)
                base.setdefault(family, x.clone())
                off = bench.off(base[family].cpu().numpy(), x.cpu().numpy())
                lines.append(f'{name} {family}: {spent:.3f} ms, 1-cosine {off:.1e}')
        return sum(found[family][name] for family in calls)

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
    warm(*sys.argv[2:4])
