"""`flashrt data generate`: demonstrations of the scripted experts, in parallel, resumable."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any


def add_parser(subparsers: Any) -> None:
    """Declare the arguments."""
    parser = subparsers.add_parser('data', help='generate demonstrations with scripted experts')
    actions = parser.add_subparsers(dest='action', metavar='ACTION', required=True)
    generate = actions.add_parser(
        'generate',
        help='record demonstrations; run it again to continue after a stop',
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    generate.add_argument('--env', default='flashrt/Drawer-v0', help='environment')
    generate.add_argument(
        '--suite', choices=('mt50',), help='all that the shipped policy learns, instead of --env'
    )
    generate.add_argument(
        '--episodes', type=int, default=130, help='of each environment, old ones included'
    )
    generate.add_argument(
        '--scene-episodes', type=int, default=160, help='with --suite: of each scene of subgoals'
    )
    generate.add_argument('--out', required=True, help='folder for the data')
    generate.add_argument(
        '--workers', type=int, default=os.cpu_count() or 1, help='processes that record'
    )
    generate.add_argument(
        '--lerobot',
        type=Path,
        metavar='DIR',
        help='where the LeRobot layout goes; OUT/lerobot if left out',
    )
    generate.add_argument(
        '--no-lerobot', action='store_true', help='what training here reads, and nothing else'
    )
    generate.add_argument('--seed', type=int, default=0, help='decides the whole data set')


def run(args: argparse.Namespace) -> int:
    """Do the work; exit code 0."""
    from tqdm import tqdm

    from flashrt_sim.data.demonstrations import Order, Recipe, generate_all, suite

    start, recorded, ticks = time.monotonic(), 0, 0
    if args.suite:
        orders = suite(args.out, args.episodes, args.scene_episodes)
    else:
        orders = [Order(args.env, args.episodes, Path(args.out), Recipe())]
    total = sum(order.episodes for order in orders)
    finished = generate_all(orders, workers=args.workers, seed=args.seed)
    for _, _, length in tqdm(finished, total=total, unit='episode', smoothing=0.05):
        recorded += length > 0
        ticks += length
    seconds = time.monotonic() - start
    print(
        f'{args.out}: {total} episodes, {recorded} of them recorded now '
        f'({ticks} ticks in {seconds:.0f} s)'
    )
    if not args.no_lerobot:
        from flashrt_sim.data import lerobot
        from flashrt_sim.data.dataset import open_all

        target = args.lerobot or Path(args.out) / 'lerobot'
        written = lerobot.write(open_all(args.out), target, args.workers)
        files = 0
        for _, files in tqdm(written, unit='file', desc='LeRobot layout'):  # noqa: B007
            pass
        print(f'{target}: LeRobot dataset {lerobot.VERSION}, {files} data files')
    return 0
