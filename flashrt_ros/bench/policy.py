"""`flashrt bench policy`: what one chunk of actions costs, at full size with random weights.

A row's figure is the three graphs (images to tokens, prefix, all Euler steps), the images on the
device; `spread.host` is the same from an observation in the host's memory to a chunk there. The
floor is the larger of operations over the rate of a large matrix product and bytes over the rate
of a large copy, for the prefix and for each step, both rates measured in the same run.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import numpy as np
import torch

from flashrt_ros.bench import policy_peers, policy_ready, report
from flashrt_ros.bench.policy_models import PROMPTS, STEPS, TASK, Measured, operations
from flashrt_ros.bench.report import Row

PEERS = policy_peers.PEERS
WORKS = (('pi05', 1), ('pi05', 2), ('pi05', 3), ('pi0', 2), ('smolvla', 2))
REPLAYS = 10_000  # of which none may allocate, or differ in a bit

Log = Callable[[str], None]
Part = Callable[[], Iterable[Row]]


def name(family: str, views: int) -> str:
    """Return the id of a work: 'pi05 2views'."""
    return f'{family} {views}view{"s" if views > 1 else ""}'


def rates(device: str) -> dict[str, float]:
    """Return what the device reaches: operations and bytes a second."""
    if device == 'cpu':
        return {}
    a, b = torch.randn(2, 8192, 8192, device=device, dtype=torch.bfloat16)
    copy_from, copy_to = torch.empty(2, 2**30, dtype=torch.uint8, device=device)
    wait = torch.cuda.synchronize
    product = report.timed(lambda: a @ b, wait, 10).p50
    copied = report.timed(lambda: copy_to.copy_(copy_from), wait, 10).p50
    return {'operations': 2 * 8192**3 / product * 1e6, 'bytes': 2 * 2**30 / copied * 1e6}


def floor(measured: Measured, rate: dict[str, float], float8: bool = False) -> dict[str, object]:
    """Return what no implementation is below, milliseconds."""
    if not rate:
        return {}
    room = PROMPTS[measured.family]
    work = operations(measured.sizes, measured.family, measured.views, room, float8)
    prefix, step = (
        max(work[f'{part} operations'] / rate['operations'], work[f'{part} bytes'] / rate['bytes'])
        for part in ('prefix', 'step')
    )
    how = (
        f'prefix of {work["prefix operations"] / 1e12:.2f} TFLOP and {STEPS} steps of '
        f'{work["step bytes"] / 1e9:.2f} GB, at {rate["operations"] / 1e12:.0f} TFLOP/s and '
        f'{rate["bytes"] / 1e12:.2f} TB/s'
    )
    return {'value': round((prefix + STEPS * step) * 1e3, 3), 'how': how}


def timing(measured: Measured, call: Callable[[], object], runs: int) -> dict[str, float]:
    """Return a median and its spread, milliseconds."""
    warm = 1 if measured.ctx.device.type == 'cpu' else 10
    times = report.timed(call, measured.wait, runs, warm=warm)
    found = times.spread()
    return {key: round(value / (1 if key == 'runs' else 1e3), 4) for key, value in found.items()}


def chunk_rows(
    family: str, views: int, device: str, rate: dict[str, float], runs: int, float8: bool = False
) -> list[Row]:
    """The whole chunk, and what a new prompt costs when nothing new was seen."""
    measured = Measured(family, views, device, float8=float8)
    first = measured.act()
    measured.ctx.freeze()
    work = name(family, views) + (' float8' if float8 else '')
    with measured.ctx.guard_allocations():
        whole = timing(measured, measured.replay, runs)
    whole['host'] = timing(measured, measured.act, max(3, runs // 4))['p50']
    whole['identical'] = float(identical(measured, first))
    found = [Row(work, whole['p50'], 'ms', floor=floor(measured, rate, float8), spread=whole)]
    tasks = [TASK[: PROMPTS[family] - 2] + letter for letter in 'ab']
    turn = [0]

    def reprompt() -> None:
        turn[0] += 1
        measured.say(tasks[turn[0] % 2])
        measured.policy.plan()

    fewer = max(3, runs // 2)
    found.append(Row(f'{work} new prompt', 0.0, 'ms', spread=timing(measured, reprompt, fewer)))
    found[-1].ours = found[-1].spread['p50']
    policy = measured.policy
    for part, call in (
        ('images', policy.replay_vision), ('prefix', policy.replay_prefix),
        ('steps', policy.replay_denoise),
    ):  # fmt: skip
        found[0].spread[part] = timing(measured, call, fewer)['p50']
    chunks = 6 if measured.ctx.device.type == 'cpu' else 20
    joined = Row(f'{work} jump', round(jump(measured, True, chunks), 4), 'normalised')
    joined.spread = {'free': round(jump(measured, False, chunks), 4), 'chunks': float(chunks)}
    return [*found, joined]


def jump(measured: Measured, guided: bool, chunks: int) -> float:
    """Return the mean distance at the switch between a chunk and the one before.

    A chunk every 8 ticks, in effect after 4; normalised units.
    """
    before: np.ndarray | None = None
    measured.policy.reset(0)
    found = []
    elapsed = min(8, measured.policy.spec.horizon // 2)
    delay = elapsed // 2
    for _ in range(chunks):
        measured.policy.observe(measured.images, measured.proprio)
        if guided and before is not None:
            measured.policy.pace(elapsed, delay)
        chunk = measured.policy.plan()
        if before is not None:
            found.append(float(np.abs(chunk[delay] - before[elapsed + delay]).mean()))
        before = chunk
    return float(np.mean(found))


def identical(measured: Measured, first: np.ndarray) -> bool:
    """Whether a reset gives the first chunk again, bit by bit."""
    measured.policy.reset(0)
    return bool(np.array_equal(measured.act(), first))


def replay_row(device: str, replays: int) -> Row:
    """Allocations of the device's allocator over replays of one chunk, and if any differed."""
    measured = Measured('smolvla', 1, device, steps=2)  # fewer: what is looked for is in each
    measured.act()
    measured.ctx.freeze()
    policy = measured.policy
    begun = [policy.counter, policy.previous, policy.pacing]

    def again() -> None:
        for buffer in begun:
            buffer.tensor.zero_()
        measured.replay()

    for _ in range(3):
        again()
    want, ever = policy.action.tensor.clone(), torch.zeros(policy.action.shape, dtype=torch.bool)
    ever = ever.to(want.device)
    differs = ever.clone()
    torch.ne(policy.action.tensor, want, out=differs)
    measured.wait()
    with measured.ctx.backend.guard_allocations(lambda: True) as seen:
        for index in range(replays):
            again()
            torch.ne(policy.action.tensor, want, out=differs)
            ever.logical_or_(differs)
            if index % 64 == 0:
                measured.wait()
        measured.wait()
    found = Row('allocations', float(len(seen)), 'count')
    found.spread = {'replays': float(replays), 'identical': float(not bool(ever.any()))}
    found.spread['steps'] = float(policy._parts.network.steps)
    return found


def cosine_rows(device: str, family: str = 'pi05', views: int = 2) -> Iterator[Row]:
    """One minus the cosine of a chunk to the same in another precision, worst of its actions."""

    def chunk(dtype: torch.dtype, float8: bool = False) -> np.ndarray:
        release(device)  # the one before
        return Measured(family, views, device, dtype, float8).act()

    usual = chunk(torch.bfloat16)
    for title, other in (
        ('float8 off bfloat16', partial(chunk, torch.bfloat16, True)),
        ('bfloat16 off float32', partial(chunk, torch.float32)),
    ):
        yield Row(f'{name(family, views)} {title}', round(off(usual, other()), 6), '1-cosine')


def off(a: np.ndarray, b: np.ndarray) -> float:
    """Return one minus the smallest cosine of two chunks' actions."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    cosine = (a * b).sum(1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))
    return float(1 - cosine.min())


def release(device: str) -> None:
    """Give the memory of the policy before back."""
    gc.collect()
    if device != 'cpu':
        torch.cuda.empty_cache()


def parts(device: str, log: Log, works: Iterable[tuple[str, int]] = WORKS) -> list[Part]:
    """Return the benchmark as calls that give some of its rows each, without peers."""
    cpu = device == 'cpu'
    runs = 3 if cpu else 200
    rate = rates(device)

    def chunk(family: str, views: int, float8: bool = False) -> list[Row]:
        log(f'{name(family, views)} ...')
        return chunk_rows(family, views, device, rate, runs, float8)

    found: list[Part] = [partial(chunk, family, views) for family, views in works]
    if not cpu and torch.cuda.get_device_capability() >= (8, 9):
        found += [partial(chunk, 'pi05', 2, float8=True), partial(cosine_rows, device)]
    found.append(lambda: [replay_row(device, 20 if cpu else REPLAYS)])
    return [*found, partial(policy_ready.rows, device)]


def measure(device: str = 'cpu', peers: Iterable[str] = PEERS, log: Log = print) -> list[Row]:
    """All rows of the benchmark."""
    found: list[Row] = []
    for part in parts(device, log):
        found += part()
        release(device)
    policy_peers.compare(found, device, tuple(peers), log)
    return found


if __name__ == '__main__':
    from flashrt_ros.cli import main

    raise SystemExit(main(['bench', 'policy', *sys.argv[1:]]))
