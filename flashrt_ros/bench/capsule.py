"""`flashrt bench capsule`: what freezing, restoring, rolling back and forking cost.

The closures are in `closures`; `full-copy` is the plain way, a copy per buffer of everything.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

import torch

from flashrt_ros.bench import report
from flashrt_ros.bench.closures import TURN, Planner, Robot
from flashrt_ros.bench.report import Row, Times
from flashrt_ros.capsule.capsule import Capsule
from flashrt_ros.contract.context import Context
from flashrt_ros.contract.graph import ShapeKey

PEERS = ('full-copy',)


Floor = tuple[Times, str]  # with how it was found


def row(
    work: str, ours: Times, peer: Times | str | None = None, floor: Floor | None = None
) -> Row:
    """Times in microseconds."""
    made = Row(work, round(ours.p50, 2), 'us', spread=ours.spread())
    if peer is not None:
        made.peers['full-copy'] = peer if isinstance(peer, str) else round(peer.p50, 2)
    if floor is not None:
        times, how = floor
        made.floor = {'value': round(times.p50, 2), 'how': how, 'p99': times.spread()['p99']}
    return made


class FullCopy:
    """The plain way: a copy per buffer, of everything that is valid."""

    def __init__(self, views: list[torch.Tensor]) -> None:
        self.views = views
        self.saved = [view.clone() for view in views]

    def save(self) -> None:
        """A snapshot into memory that is there already."""
        for view, saved in zip(self.views, self.saved, strict=True):
            saved.copy_(view)

    def load(self) -> None:
        """A restore."""
        for view, saved in zip(self.views, self.saved, strict=True):
            view.copy_(saved)


def nothing() -> None:
    """Before a call that needs no preparation."""


def waiter(ctx: Context) -> Callable[[], None]:
    """The shortest way to wait for what sessions do: the device's own."""
    native = ctx.current_stream().native
    return nothing if native is None else native.synchronize


def one_copy(ctx: Context, nbytes: int) -> Callable[[], object]:
    """The floor: one contiguous copy of as many bytes."""
    source = torch.empty(nbytes, dtype=torch.uint8, device=ctx.device).random_()
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def floor_of(times: Times, nbytes: int) -> Floor:
    """The figures of `one_copy` with their words."""
    return times, f'one copy of {nbytes} bytes, measured in turn with it'


def robot_rows(device: str, runs: int) -> list[Row]:
    """Snapshot and restore of a small closure."""
    robot = Robot(device)
    session = robot.session
    capsule = session.snapshot('start')
    kept: list[Capsule] = []
    plain = FullCopy([buffer.tensor for buffer in robot.buffers])
    saving, saved, loading, loaded, copied = report.interleaved(
        [
            (kept.clear, lambda: kept.append(session.snapshot('tick'))),
            (nothing, plain.save),
            (nothing, lambda: session.restore(capsule)),
            (nothing, plain.load),
            (nothing, one_copy(robot.ctx, capsule.nbytes)),
        ],
        waiter(robot.ctx),
        runs,
        warm_seconds=2.0,  # the first rows of the process: its clocks and caches are cold
    )
    floor = floor_of(copied, capsule.nbytes)
    return [
        row('robot snapshot', saving, saved, floor),
        row('robot restore', loading, loaded, floor),
    ]


def label(tokens: int) -> str:
    """2048 is 2k."""
    return f'{tokens // 1024}k'


def restore_rows(planner: Planner, lengths: Sequence[int], runs: int) -> list[Row]:
    """Restores of histories that share nothing, in turn: every byte moves every time."""
    capsules = [planner.start(length) for length in lengths]
    cases: list[tuple[Callable[[], object], Callable[[], object]]] = []
    for capsule, length in zip(capsules, lengths, strict=True):
        cases += [
            (nothing, partial(planner.session.restore, capsule)),
            (nothing, FullCopy(planner.views(length)).load),
            (nothing, one_copy(planner.ctx, capsule.nbytes)),
        ]
    times = report.interleaved(cases, waiter(planner.ctx), runs)
    rows = []
    for index, (capsule, length) in enumerate(zip(capsules, lengths, strict=True)):
        ours, plain, copied = times[3 * index : 3 * index + 3]
        floor = floor_of(copied, capsule.nbytes)
        made = row(f'planner restore {label(length)}', ours, plain, floor)
        made.spread['of_copy_bandwidth'] = round(copied.p50 / ours.p50, 4)
        rows.append(made)
        planner.registry.evict(capsule)
    return rows


def turn_rows(planner: Planner, lengths: Sequence[int], runs: int) -> list[Row]:
    """A 64-token turn at every length, the lengths in turn: rolling it back, and its snapshot."""
    session, registry = planner.session, planner.registry
    starts = [planner.start(length) for length in lengths]
    taken: list[Capsule] = []

    def appended(start: Capsule) -> None:
        """On this history, a turn appended, and the caches as after a rollback."""
        while taken:
            registry.evict(taken.pop())
        session.restore(start)
        planner.wait()  # a processor that waited long is slow at first, at any length
        planner.grow()
        session.rollback(start)
        planner.grow()

    fixed = starts[0].layout.fixed_bytes
    whole = fixed + TURN * starts[0].layout.ropes[0].stride
    cases: list[tuple[Callable[[], object], Callable[[], object]]] = [
        (partial(appended, starts[0]), one_copy(planner.ctx, fixed)),
        (partial(appended, starts[0]), one_copy(planner.ctx, whole)),
    ]
    for start in starts:
        before = partial(appended, start)
        cases.append((before, partial(session.rollback, start)))
        cases.append((before, lambda: taken.append(session.snapshot('turn'))))
    wait = waiter(planner.ctx)
    times = report.interleaved(cases, wait, runs)
    floors = floor_of(times[0], fixed), floor_of(times[1], whole)
    rolled, snapped = [], []
    for index, length in enumerate(lengths):
        plain = FullCopy(planner.views(length))
        loaded, saved = report.interleaved(
            [(nothing, plain.load), (nothing, plain.save)], wait, runs, 0.1
        )
        back, forth = times[2 + 2 * index : 4 + 2 * index]
        rolled.append(row(f'rollback {label(length)}', back, loaded, floors[0]))
        snapped.append(row(f'snapshot turn {label(length)}', forth, saved, floors[1]))
    for capsule in (*taken, *starts):
        registry.evict(capsule)
    return [*rolled, replace(snapped[lengths.index(16384)], work='snapshot turn'), *snapped]


def forks(planner: Planner, length: int, count: int = 64) -> list[Row]:
    """Branches that each append one turn, beside as many deep copies."""
    session, sync = planner.session, planner.ctx.synchronize
    trunk = planner.start(length)
    used = planner.registry.usage('gpu').used
    branches = session.fork(trunk, count)
    tips: list[Capsule] = []

    def branch_out() -> None:
        for branch in branches:
            branch.restore(trunk)
            planner.grow()
            tips.append(branch.snapshot('tip'))

    def prune() -> None:
        while tips:
            planner.registry.evict(tips.pop())

    ours = report.timed(branch_out, sync, 5, before=prune)
    added = planner.registry.usage('gpu').used - used
    views = planner.views(length + TURN)
    copies: list[list[torch.Tensor]] = []
    few = 4 if planner.ctx.device.type == 'cpu' else 16
    plain = report.timed(
        lambda: copies.extend([view.clone() for view in views] for _ in range(few)),
        sync,
        1,
        warm=0,
    )
    made = Row('fork 64', round(ours.p50 / count, 2), 'us per branch', spread=ours.spread())
    made.peers['full-copy'] = round(plain.p50 / few, 2)
    sizes = Row('fork 64 bytes', round(added / count / 2**20, 3), 'MiB per branch')
    sizes.peers['full-copy'] = round(sum(view.nbytes for view in views) / 2**20, 3)
    tail = tips[0].layout.fixed_bytes + TURN * tips[0].layout.ropes[0].stride
    sizes.floor = {'value': round(tail / 2**20, 3), 'how': 'fixed part and one turn'}
    for branch in branches:
        branch.close()
    for capsule in (*tips, trunk):
        planner.registry.evict(capsule)
    return [made, sizes]


def host_rows(planner: Planner, length: int, runs: int) -> list[Row]:
    """The host tier: bandwidth down and up, and replays meanwhile."""
    registry, ctx = planner.registry, planner.ctx
    capsule = planner.start(length)
    nbytes = capsule.nbytes

    def up() -> None:
        registry.promote(capsule)
        registry.settle()

    def down() -> None:
        registry.demote(capsule, 'host', wait=True)

    for live in registry.lives:  # measure the whole capsule's way down
        live.let_go()
    demote = report.timed(down, ctx.synchronize, runs, before=up)
    promote = report.timed(up, ctx.synchronize, runs, before=down)
    pinned = ctx.backend.allocate_host(nbytes)
    flat = ctx.backend.reserve(nbytes)
    plain_down = report.timed(lambda: pinned.copy_(flat, non_blocking=True), ctx.synchronize, runs)
    plain_up = report.timed(lambda: flat.copy_(pinned, non_blocking=True), ctx.synchronize, runs)
    rows = []
    for work, ours, floor in (
        (f'demote {label(length)}', demote, plain_down),
        (f'promote {label(length)}', promote, plain_up),
    ):
        made = row(work, ours, None, (floor, f'one pinned copy of {nbytes} bytes, measured'))
        made.spread['of_pinned_bandwidth'] = round(floor.p50 / ours.p50, 4)
        rows.append(made)
    up()
    return [*rows, replay_row(planner, capsule)]


def replay_row(planner: Planner, capsule: Capsule) -> Row:
    """One decode-like replay, idle and while a demotion is under way."""
    ctx, registry = planner.ctx, planner.registry
    replays, size = (40, 256) if ctx.device.type == 'cpu' else (2000, 2048)
    weight = torch.randn(size, size, device=ctx.device) / size**0.5
    token = ctx.buffer('token', (16, size), torch.float32)
    token.tensor.normal_()
    graph = ctx.graph('decode', writes=(token,))

    def decode() -> None:
        value = token.tensor
        for _ in range(24):
            value = torch.tanh(value @ weight)
        token.tensor.copy_(value)

    graph.capture(ShapeKey(), decode)
    key = ShapeKey()

    def replay() -> None:
        graph.replay(key)

    wait = waiter(ctx)
    report.timed(replay, wait, replays // 10, warm=20)  # clocks
    busy: list[float] = []
    idle: list[float] = []
    while len(busy) < replays:
        # In turn: replays while the demotion is under way, and as many when it is done.
        registry.promote(capsule)
        registry.settle()
        registry.demote(capsule, 'host')
        under_way = True
        while under_way:
            busy += report.timed(replay, wait, 1, warm=0).samples
            under_way = registry.leaving > 0
        registry.promote(capsule)
        registry.settle()
        registry.demote(capsule, 'host', wait=True)
        while len(idle) < len(busy):
            idle += report.timed(replay, wait, 1, warm=0).samples
            under_way = registry.leaving > 0
    how = 'the same replay in turn with it, as many after a demotion that is done'
    return row('replay beside demotion', Times(tuple(busy)), None, (Times(tuple(idle)), how))


def measure(
    device: str = 'cpu', peers: Iterable[str] = PEERS, log: Callable[[str], None] = print
) -> list[Row]:
    """All rows of the benchmark."""
    cpu = device == 'cpu'
    rows = robot_rows(device, 30 if cpu else 500)
    lengths = [2048, 4096, 8192, 16384]
    longest = 16384 if cpu else 131072
    gib = 1 << 30
    planner = Planner(device, longest + 2 * TURN, 2 * gib if cpu else 8 * gib, gib)
    rows += restore_rows(planner, lengths, 5 if cpu else 100)
    points = [length for length in (*lengths, 32768, 65536, 131072) if length <= longest]
    rows += turn_rows(planner, points, 5 if cpu else 200)
    rows += forks(planner, 2048 if cpu else 16384)
    rows += host_rows(planner, 16384, 3 if cpu else 20)
    if 'full-copy' not in peers:
        for made in rows:
            made.peers.clear()
    return rows


if __name__ == '__main__':
    from flashrt_ros.cli import main

    raise SystemExit(main(['bench', 'capsule', *sys.argv[1:]]))
