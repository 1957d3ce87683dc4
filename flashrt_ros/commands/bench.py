"""`flashrt bench NAME`: measure, print a table, write the figures as JSON.

A benchmark is a module of `flashrt_ros.bench` with `PEERS`, the names it can compare with, and
`measure(device, peers, log) -> list[Row]`; `OPTIONS` names what more it takes: `seconds`, and
`keep`, which is given the rows as they come. It is imported only when it is asked for.
"""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path
from typing import Any

from flashrt_ros.errors import FlashrtError

BENCHES: dict[str, str] = {
    'capsule': 'snapshot, restore, rollback, fork and tiers of capsules',
    'policy': 'a chunk of actions of π0, π0.5 and SmolVLA, and the start of a policy',
    'planner': 'a prompt, a resumed prompt and a token of the language model',
    'decide': 'many questions on one state in one pass',
    'loop': 'the robot at 50 Hz: missed ticks, lateness, hand-offs, interrupts, re-entry',
    'reset': 'resets by capsule, forks, and environments by the second',
}


def add_parser(subparsers: Any) -> None:
    """Declare the arguments."""
    summary = 'measure, and write the figures as JSON'
    lines = [f'{name}: {text}' for name, text in BENCHES.items()]
    parser = subparsers.add_parser('bench', help=summary, description=summary,
                                   epilog='; '.join(lines))  # fmt: skip
    parser.add_argument('name', metavar='NAME', help=f'one of {", ".join(BENCHES)}')
    parser.add_argument('--device', default='cpu', help='cpu (default), cuda or cuda:N')
    parser.add_argument('--peer', action='append', metavar='NAME', help='compare with it alone')
    parser.add_argument('--seconds', type=float, help='how long the robot runs (loop alone)')
    parser.add_argument('--json', type=Path, metavar='FILE', help='write the report there')


def run(args: argparse.Namespace) -> int:
    """0 when it was measured.

    Raises:
        FlashrtError: there is no such benchmark, peer, device or folder.
    """
    if args.name not in BENCHES:
        raise FlashrtError(f'there is no benchmark {args.name!r}: name {", ".join(BENCHES)}')
    if args.json is not None and args.json.is_dir():
        raise FlashrtError(f'--json {args.json} is a folder: name a file')
    from flashrt_ros.bench import report
    from flashrt_ros.contract.backend import choose

    choose(args.device)  # an unknown device is told before anything is built
    bench = importlib.import_module(f'flashrt_ros.bench.{args.name}')
    peers = tuple(args.peer or bench.PEERS)
    for peer in peers:
        if peer not in bench.PEERS:
            known = ', '.join(bench.PEERS)
            raise FlashrtError(f'{args.name} has no peer {peer!r}: name {known}')
    options: dict[str, Any] = {}
    if 'keep' in getattr(bench, 'OPTIONS', ()):
        options['keep'] = report.keeper(args.name, args.device, args.json)
    if args.seconds is not None:
        if 'seconds' not in getattr(bench, 'OPTIONS', ()) or not 1 <= args.seconds <= 86400:
            raise FlashrtError(f'--seconds {args.seconds:g}: loop alone takes it, from 1 to 86400')
        options['seconds'] = args.seconds
    rows = bench.measure(args.device, peers, print, **options)
    report.write(report.build(args.name, args.device, rows), args.json)
    return 0
