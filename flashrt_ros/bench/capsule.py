"""`flashrt bench capsule`: what freezing, restoring, rolling back and forking cost.

The closures are in `closures`; `full-copy` is the plain way, a copy per buffer of everything.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch

from flashrt_ros.bench import report
from flashrt_ros.bench.closures import TURN, Planner, Robot
from flashrt_ros.bench.report import Row, Times
from flashrt_ros.capsule.capsule import Capsule
from flashrt_ros.contract.context import Context
from flashrt_ros.contract.graph import ShapeKey

PEERS = ('full-copy',)


def row(
    work: str, ours: Times, peer: Times | str | None = None, floor: tuple[float, str] | None = None
) -> Row:
    """Times in microseconds."""
    made = Row(work, round(ours.p50, 2), 'us', spread=ours.spread())
    if peer is not None:
        made.peers['full-copy'] = peer if isinstance(peer, str) else round(peer.p50, 2)
    if floor is not None:
        made.floor = {'value': round(floor[0], 2), 'how': floor[1]}
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


def one_copy(ctx: Context, nbytes: int, runs: int) -> Times:
    """The floor: one contiguous copy of as many bytes."""
    source = torch.empty(nbytes, dtype=torch.uint8, device=ctx.device).random_()
    target = torch.empty_like(source)
    return report.timed(lambda: target.copy_(source), ctx.synchronize, runs)


def robot_rows(device: str, runs: int) -> list[Row]:
    """Snapshot and restore of a small closure."""
    robot = Robot(device)
    session, sync = robot.session, robot.ctx.synchronize
    capsule = session.snapshot('start')
    floor = one_copy(robot.ctx, capsule.nbytes, runs)
    how = (floor.p50, f'one copy of {capsule.nbytes} bytes, measured')
    kept: list[Capsule] = []
    plain = FullCopy([buffer.tensor for buffer in robot.buffers])

    def snapshot() -> None:
        kept.append(session.snapshot('tick'))

    def restore() -> None:
        session.restore(capsule)

    saving = report.timed(snapshot, sync, runs, before=kept.clear)
    loading = report.timed(restore, sync, runs)
    return [
        row('robot snapshot', saving, report.timed(plain.save, sync, runs), how),
        row('robot restore', loading, report.timed(plain.load, sync, runs), how),
    ]


def label(tokens: int) -> str:
    """2048 is 2k."""
    return f'{tokens // 1024}k'


def full_restore(planner: Planner, length: int, runs: int) -> Row:
    """Restores between histories that share nothing: every byte moves."""
    sync = planner.ctx.synchronize
    capsules = [planner.start(length), planner.start(length)]

    def swap() -> None:
        capsules.reverse()
        planner.session.restore(capsules[0])

    ours = report.timed(swap, sync, runs)
    plain = report.timed(FullCopy(planner.views(length)).load, sync, runs)
    nbytes = capsules[0].nbytes
    floor = one_copy(planner.ctx, nbytes, runs)
    how = (floor.p50, f'one copy of {nbytes} bytes, measured')
    made = row(f'planner restore {label(length)}', ours, plain, how)
    made.spread['of_copy_bandwidth'] = round(floor.p50 / ours.p50, 4)
    for capsule in capsules:
        planner.registry.evict(capsule)
    return made


def turn(planner: Planner, length: int, runs: int) -> tuple[Row, Row]:
    """A 64-token turn: rolling it back, and its snapshot."""
    sync, session = planner.ctx.synchronize, planner.session
    start = planner.start(length)
    fixed, tail = start.layout.fixed_bytes, TURN * start.layout.ropes[0].stride
    last: list[Capsule] = []

    def rollback() -> None:
        session.rollback(start)

    def snapshot() -> None:
        last.append(session.snapshot('turn'))

    def back() -> None:
        while last:
            planner.registry.evict(last.pop())
        session.rollback(start)
        planner.grow()

    rolled = report.timed(rollback, sync, runs, before=planner.grow)
    taken = report.timed(snapshot, sync, runs, before=back)
    copies = FullCopy(planner.views(length))
    loaded, saved = (report.timed(way, sync, runs) for way in (copies.load, copies.save))
    floors = [
        (one_copy(planner.ctx, nbytes, runs).p50, f'one copy of {nbytes} bytes, measured')
        for nbytes in (fixed, fixed + tail)
    ]
    back()
    planner.registry.evict(start)
    return (
        row(f'rollback {label(length)}', rolled, loaded, floors[0]),
        row(f'snapshot turn {label(length)}', taken, saved, floors[1]),
    )


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

    ours = report.timed(branch_out, sync, 1, warm=0)
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
        made = row(work, ours, None, (floor.p50, f'one pinned copy of {nbytes} bytes, measured'))
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

    queue = ctx.current_stream()
    idle = report.timed(replay, queue.synchronize, replays)
    samples: list[float] = []
    while len(samples) < replays:
        registry.promote(capsule)
        registry.settle()
        registry.demote(capsule, 'host')
        samples += report.timed(replay, queue.synchronize, 1, warm=0).samples
        while registry.leaving and len(samples) < replays:
            samples += report.timed(replay, queue.synchronize, 1, warm=0).samples
    busy = Times(tuple(samples))
    made = row('replay beside demotion', busy, None, (idle.p50, 'the same replay, idle'))
    made.spread['idle_p99'] = idle.spread()['p99']
    return made


def measure(device: str = 'cpu', peers: Iterable[str] = PEERS) -> list[Row]:
    """All rows of the benchmark."""
    cpu = device == 'cpu'
    rows = robot_rows(device, 30 if cpu else 500)
    lengths = (2048, 4096, 8192, 16384)
    longest = 16384 if cpu else 131072
    gib = 1 << 30
    planner = Planner(device, longest + 2 * TURN, 2 * gib if cpu else 8 * gib, gib)
    rows += [full_restore(planner, length, 3 if cpu else 100) for length in lengths]
    points = [length for length in (*lengths, 32768, 65536, 131072) if length <= longest]
    both = [turn(planner, length, 3 if cpu else 200) for length in points]
    snapshots = [made for _, made in both]
    rows += [made for made, _ in both]
    rows.append(replace(snapshots[points.index(16384)], work='snapshot turn'))
    rows += snapshots
    rows += forks(planner, 2048 if cpu else 16384)
    rows += host_rows(planner, 16384, 3 if cpu else 20)
    if 'full-copy' not in peers:
        for made in rows:
            made.peers.clear()
    return rows


def main(argv: list[str] | None = None) -> int:
    """Run it by itself: python -m flashrt_ros.bench.capsule --device cuda --json FILE."""
    parser = argparse.ArgumentParser(description='Measure capsules.')
    parser.add_argument('--device', default='cpu')
    parser.add_argument('--json', type=Path)
    args = parser.parse_args(argv)
    report.write(report.build('capsule', args.device, measure(args.device)), args.json)
    return 0


if __name__ == '__main__':
    raise SystemExit(main())
