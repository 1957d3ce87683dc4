"""`flashrt rollout`: how often does a policy reach its subgoals?"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from flashrt_ros.control.types import DELAY, EXECUTE
from flashrt_ros.errors import FlashrtError


def add_parser(subparsers: Any) -> None:
    """Declare the arguments."""
    parser = subparsers.add_parser(
        'rollout',
        help='run a policy in simulation and report its success rate',
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument('--env', default='flashrt/Drawer-v0', help='environment')
    parser.add_argument(
        '--subgoal', action='append', metavar='TEXT', help='may be repeated; all if left out'
    )
    parser.add_argument(
        '--sequence', action='store_true', help='ask the subgoals one after the other'
    )
    parser.add_argument(
        '--start',
        default='standard',
        choices=('standard', 'after', 'random'),
        help="the skill's official start, right after another subgoal, or anywhere",
    )
    parser.add_argument(
        '--told',
        metavar='TEXT',
        help='tell the policy this instead; a control: success should then be rare',
    )
    parser.add_argument('--policy', default='drawer', help='shipped name or checkpoint folder')
    parser.add_argument('--device', default='cpu', help='cpu, cuda or cuda:N')
    parser.add_argument('--episodes', type=int, default=50, help='for each subgoal')
    parser.add_argument('--limit', type=int, default=500, help='ticks for each subgoal')
    parser.add_argument('--seed', type=int, default=0, help='chooses the evaluation seeds')
    parser.add_argument('--execute', type=int, default=EXECUTE, help='ticks between two chunks')
    parser.add_argument(
        '--delay', type=int, default=DELAY, help='ticks until a chunk takes effect'
    )
    parser.add_argument(
        '--workers', type=int, default=os.cpu_count() or 1, help='parallel processes'
    )
    parser.add_argument('--json', type=Path, metavar='FILE', help='write all results')
    parser.add_argument('--video', type=Path, metavar='DIR', help='one mp4 for each episode')


def run(args: argparse.Namespace) -> int:
    """Do the work; exit code 0 however often the policy succeeded."""
    from tqdm import tqdm

    from flashrt_sim.envs import scene_class
    from flashrt_sim.evaluation import Goal, Task, find_goal, summarise, table
    from flashrt_sim.rollout import Deployment, roll_out, write_report

    texts = args.subgoal or list(scene_class(args.env).SUBGOALS)
    goals = [find_goal(args.env, text) for text in texts]
    if args.told is not None:
        goals = [Goal(goal.subgoal, args.told, control=True) for goal in goals]
    groups = [tuple(goals)] if args.sequence else [(goal,) for goal in goals]
    tasks = [Task(args.env, group, args.start, args.limit) for group in groups]
    if args.json and not os.access(args.json.resolve().parent, os.W_OK):
        raise FlashrtError(f'--json {args.json}: name a file in a folder that can be written')
    if args.execute < 1 or args.delay < 0:
        raise FlashrtError('--execute starts at 1 and --delay at 0')
    deployment = Deployment(args.policy, args.device, args.execute, args.delay)
    results, successes = [], 0
    finished = roll_out(
        deployment,
        tasks,
        args.episodes,
        seed=args.seed,
        workers=args.workers,
        video=args.video,
    )
    with tqdm(finished, total=len(tasks) * args.episodes, unit='episode') as progress:
        for result in progress:
            results.append(result)
            successes += result.success
            progress.set_postfix_str(f'{successes}/{len(results)} succeeded', refresh=False)
    if args.json:
        write_report(args.json, deployment, args.seed, tasks, results)
    ordered = sorted(results, key=lambda r: [t.name for t in tasks].index(r.task))
    print(table(summarise(ordered)))
    return 0
