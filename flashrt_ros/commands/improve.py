"""`flashrt improve`: a policy learns from its own episodes on the tasks it is worst at."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from pathlib import Path
from typing import Any

from flashrt_ros.errors import FlashrtError


def add_parser(subparsers: Any) -> None:
    """Declare the arguments."""
    parser = subparsers.add_parser(
        'improve',
        help='make a flow policy better by its own episodes; run it again to go on after a stop',
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument('--policy', default='mt50', help='shipped name or checkpoint folder')
    parser.add_argument(
        '--tasks', default='worst:5', help='worst:N of the report, or names: soccer,lever-pull'
    )
    parser.add_argument(
        '--report',
        type=Path,
        metavar='FILE',
        help='of flashrt rollout --suite mt50 --json: which tasks there are, and how they go; '
        'docs/results/mt50.json if left out',
    )
    parser.add_argument('--out', type=Path, required=True, help='folder for all that is made')
    parser.add_argument(
        '--recipe', type=Path, metavar='FILE', help='config/improve_mt50.yaml if left out'
    )
    parser.add_argument('--episodes', type=int, help="collected of each task, not the recipe's")
    parser.add_argument('--rounds', type=int, help="not the recipe's")
    parser.add_argument('--seed', type=int, help="not the recipe's")
    parser.add_argument('--device', default='auto', help='to train on: cpu, cuda, cuda:N, or auto')
    parser.add_argument('--sim-device', default='cpu', help='for the policy in rollouts')
    parser.add_argument(
        '--workers', type=int, default=os.cpu_count() or 1, help='processes that simulate'
    )


def run(args: argparse.Namespace) -> int:
    """Improve; exit code 0 whatever came of it."""
    import torch

    from flashrt_policies import recipes
    from flashrt_ros import share
    from flashrt_sim.improve.choose import choose
    from flashrt_sim.improve.loop import Improver
    from flashrt_sim.improve.recipe import Improvement
    from flashrt_sim.improve.report import table

    recipe = recipes.load(args.recipe or share.config('improve_mt50.yaml'), Improvement)
    given = {name: getattr(args, name) for name in ('rounds', 'seed')}
    changed: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if args.episodes is not None:
        changed['collect'] = dataclasses.replace(recipe.collect, episodes=args.episodes)
    recipe = dataclasses.replace(recipe, **changed)
    device = args.device
    if device == 'auto':
        device = 'cuda' if torch.cuda.is_available() else 'cpu'
    if device.startswith('cuda') and not torch.cuda.is_available():
        raise FlashrtError(f'--device {device}: no CUDA device here; want cpu or auto')
    report = args.report or share.share() / 'docs' / 'results' / 'mt50.json'
    tasks, others = choose(args.tasks, report, recipe.evaluate.limit)
    names = ', '.join(task.environment for task in tasks)
    print(f'to be improved: {names}; {len(others)} others', file=sys.stderr)
    improver = Improver(
        args.out, recipe, args.policy, tasks, others, device=device, sim_device=args.sim_device,
        workers=args.workers, tell=lambda line: print(line, file=sys.stderr, flush=True),
    )  # fmt: skip
    print(table(improver.run()))
    return 0
