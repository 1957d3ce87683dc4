"""`flashrt bench reset`: how soon an episode begins anew, and how many environments run at once.

An episode is the drawer with the shipped policy. `reset capsule` restores simulator and policy
together; its peers begin it anew (`plain`: the scene's own reset and cleared caches) and build
both anew (`rebuild`). Every reset must be followed by the same first chunk, so a thousand of them
are counted. `env reset` is gymnasium's, with two pictures of 96 by 96 to show. `fork 4` is the
fork alone, whose branches share one capsule; `fork 4 every turn` restores each of the four once.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import gymnasium
import mujoco
import numpy as np

import flashrt_sim  # noqa: F401 - names the environments to gymnasium
from flashrt_ros.bench.report import Row, interleaved, timed
from flashrt_sim.episode import LiveEpisode

PEERS = ('plain', 'rebuild')
ENVIRONMENT, SUBGOAL, SEED = 'flashrt/Drawer-v0', 'open the drawer', 3
COUNTS = (1, 2, 4, 8, 16)
RESETS = 1000

Log = Callable[[str], None]


def nothing() -> None:
    """Nothing to wait for: all of it runs on the host."""


def to_ms(spread: dict[str, float]) -> dict[str, float]:
    """Microseconds to milliseconds, counts as they are."""
    return {key: round(v if key == 'runs' else v / 1e3, 4) for key, v in spread.items()}


def row(work: str, times: Any, **more: Any) -> Row:
    """One measured call, milliseconds."""
    spread = to_ms(times.spread())
    return Row(work, spread['p50'], 'ms', spread=spread, **more)


def begin(policy: str | Path, device: str) -> LiveEpisode:
    """A live episode before its first tick."""
    live = LiveEpisode.open(ENVIRONMENT, policy, device=device)
    live.start(SEED, SUBGOAL)
    return live


def episode_rows(
    live: LiveEpisode, policy: str | Path, device: str, peers: Iterable[str], runs: int
) -> list[Row]:
    """Resets of simulator and policy together, and forks."""
    start = live.snapshot('start')
    cases: list[tuple[Callable[[], object], Callable[[], object]]] = [
        (nothing, lambda: live.restore(start)),
        (nothing, lambda: live.snapshot('another')),
        (nothing, lambda: live.fork(4, noise=[1, 2, 3, 4])),
    ]
    restored, frozen, forked = interleaved(cases, live.actor.ctx.synchronize, runs)
    plain = timed(
        lambda: live.start(SEED, SUBGOAL), live.actor.ctx.synchronize, max(3, runs // 20)
    )
    simulator = live.scene.simulator
    floor = timed(lambda: mujoco.mj_forward(simulator.model, simulator.data), nothing, runs)
    reset = row('reset capsule', restored)
    reset.floor = {
        'value': round(floor.p50 / 1e3, 4),
        'how': 'positions of all bodies computed once from the joints (mj_forward)',
    }
    if 'plain' in peers:
        reset.peers['plain'] = to_ms(plain.spread())['p50']
    if 'rebuild' in peers:
        built = timed(lambda: begin(policy, device).close(), nothing, 3, warm=0)
        reset.peers['rebuild'] = to_ms(built.spread())['p50']
    live.restore(start)
    fork = row('fork 4', forked, peers={'one restore': reset.ours})
    fork.spread['restores'] = round(fork.ours / reset.ours, 2)
    turns = timed(lambda: take_turns(live), live.actor.ctx.synchronize, max(3, runs // 20))
    live.restore(start)
    return [
        reset,
        row('reset plain', plain),
        row('snapshot', frozen),
        fork,
        row('fork 4 every turn', turns, peers={'one restore': reset.ours}),
    ]


def take_turns(live: LiveEpisode) -> None:
    """Fork in four, and let every branch have its turn."""
    for branch in live.fork(4, noise=[1, 2, 3, 4]):
        branch.enter()


def chunk_row(live: LiveEpisode, resets: int) -> Row:
    """How many resets are followed by the very first chunk, bit by bit."""
    live.start(SEED, SUBGOAL)
    start = live.snapshot('start')

    def first() -> bytes:
        live.restore(start)
        live.tick()
        found: bytes = live.actor.queue.state()['actions'].tobytes()  # type: ignore[attr-defined]
        return found

    expected = first()
    assert expected
    same = sum(first() == expected for _ in range(resets))
    found = Row('identical first chunks', float(same), 'count', better='higher')
    found.spread = {'runs': float(resets)}
    return found


def rate(call: Callable[[], object], count: int, seconds: float) -> tuple[float, float]:
    """Calls of `count` each, per second: the median of five stretches, and their spread in %."""
    call()
    found = []
    for _ in range(5):
        calls, start = 0, time.perf_counter()
        while (spent := time.perf_counter() - start) < seconds / 5 or not calls:
            call()
            calls += 1
        found.append(calls * count / spent)
    middle = statistics.median(found)
    return round(middle, 1), round(100 * (max(found) - min(found)) / middle, 1)


def environment_rows(counts: Iterable[int], seconds: float, log: Log) -> list[Row]:
    """Gymnasium's own call for one, and rates for many, in this process and in processes."""
    single: Any = gymnasium.make(ENVIRONMENT)
    single.reset(seed=SEED)
    capsule = single.snapshot()
    options = {'capsule': capsule}
    one = row('env reset', timed(lambda: single.reset(options=options), nothing, 200))
    again = timed(lambda: single.reset(seed=SEED), nothing, 10)
    one.peers['plain'] = to_ms(again.spread())['p50']
    single.close()
    rows = [one]
    for count in counts:
        log(f'{count} environments ...')
        reset, step = (
            Row(f'{what} {count}', 0.0, '1/s', better='higher') for what in ('resets', 'steps')
        )
        for mode in ('sync', 'async'):
            # Processes started afresh: a rendering context does not survive a fork. One thread
            # each: the software rasteriser would start one for every core in every process.
            more = {'context': 'spawn'} if mode == 'async' else {}
            if more:
                os.environ['LP_NUM_THREADS'] = '1'
            many = gymnasium.make_vec(
                ENVIRONMENT, count, vectorization_mode=mode, vector_kwargs=more
            )
            try:
                many.reset(seed=SEED)
                resets = rate(lambda: many.reset(options=dict(options)), count, seconds)  # noqa: B023
                actions = np.zeros((count, 4), np.float32)
                steps = rate(lambda: many.step(actions), count, seconds)  # noqa: B023
            finally:
                many.close()
            for found, (figure, spread) in ((reset, resets), (step, steps)):
                if mode == 'sync':
                    found.ours, found.spread = figure, {'percent': spread, 'runs': 5.0}
                else:
                    found.peers['processes'] = figure
        rows += [reset, step]
    return rows


def measure(
    device: str = 'cpu',
    peers: Iterable[str] = PEERS,
    log: Log = print,
    *,
    policy: str | Path = 'drawer',
    counts: Iterable[int] = COUNTS,
    resets: int = RESETS,
    runs: int = 500,
    seconds: float = 2.0,
) -> list[Row]:
    """All rows of the benchmark."""
    import torch

    torch.set_num_threads(1)  # as rollouts do: the number of threads may change the last bit
    log('one episode ...')
    live = begin(policy, device)
    rows = episode_rows(live, policy, device, tuple(peers), runs)
    log(f'{resets} resets ...')
    rows.append(chunk_row(live, resets))
    live.close()
    return rows + environment_rows(counts, seconds, log)


if __name__ == '__main__':
    from flashrt_ros.cli import main

    raise SystemExit(main(['bench', 'reset', *sys.argv[1:]]))
