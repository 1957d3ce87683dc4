"""`flashrt tree`: branch an episode, keep the best branch, go on; and is it worth its steps?"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashrt_ros.control.types import EXECUTE
from flashrt_ros.errors import FlashrtError

if TYPE_CHECKING:
    from flashrt_sim.rollout.evaluation import Task


def add_parser(subparsers: Any) -> None:
    """Declare the arguments."""
    parser = subparsers.add_parser(
        'tree',
        help='branch episodes, keep the best branches, compare with whole episodes',
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        '--tasks', default='worst:10', help='worst:N of the report, or names: soccer,lever-pull'
    )
    parser.add_argument(
        '--report',
        type=Path,
        metavar='FILE',
        help='of flashrt rollout --suite mt50 --json; docs/results/mt50.json if left out',
    )
    parser.add_argument('--env', metavar='NAME', help='an environment, instead of --tasks')
    parser.add_argument('--subgoal', metavar='TEXT', help='of --env; all if left out')
    parser.add_argument('--branches', type=int, default=4, help='at each boundary')
    parser.add_argument('--every', type=int, default=16, help='ticks between two boundaries')
    parser.add_argument(
        '--budget', type=int, default=0, help='simulator steps of a tree; 0: branches x limit'
    )
    parser.add_argument(
        '--judge',
        default='reward',
        metavar='NAME',
        help='reward, the folder round-N/value of flashrt improve, or module:function of your own',
    )
    parser.add_argument(
        '--no-compare',
        dest='compare',
        action='store_false',
        help='run no whole episodes beside the trees',
    )
    parser.add_argument('--policy', default='mt50', help='shipped name or checkpoint folder')
    parser.add_argument('--device', default='cpu', help='cpu, cuda or cuda:N')
    parser.add_argument('--episodes', type=int, default=20, help='starts of each task')
    parser.add_argument('--limit', type=int, default=500, help='ticks of an episode')
    parser.add_argument('--seed', type=int, default=0, help='chooses the evaluation seeds')
    parser.add_argument('--execute', type=int, default=EXECUTE, help='ticks between two chunks')
    parser.add_argument('--delay', type=int, default=0, help='ticks until a chunk takes effect')
    parser.add_argument(
        '--workers', type=int, default=os.cpu_count() or 1, help='parallel processes'
    )
    parser.add_argument(
        '--json', type=Path, metavar='FILE', help='write all results; a stopped run goes on'
    )
    parser.add_argument('--picture', type=Path, metavar='FILE', help='draw the first tree')


def run(args: argparse.Namespace) -> int:
    """Do the work; exit code 0 whatever the tree gains."""
    from dataclasses import asdict

    from tqdm import tqdm

    from flashrt_sim.rollout.progress import Progress
    from flashrt_sim.rollout.run import Deployment
    from flashrt_sim.tree.picture import draw
    from flashrt_sim.tree.report import summarise, table, write_report
    from flashrt_sim.tree.rollouts import as_result, check, grow_all
    from flashrt_sim.tree.search import Search

    tasks = chosen(args)
    for option, path in (('--json', args.json), ('--picture', args.picture)):
        if path and not os.access(path.resolve().parent, os.W_OK):
            raise FlashrtError(f'{option} {path}: name a file in a folder that can be written')
    if args.execute < 1 or args.delay < 0:
        raise FlashrtError('--execute starts at 1 and --delay at 0')
    deployment = Deployment(args.policy, args.device, args.execute, args.delay)
    search = Search(args.branches, args.every, args.budget, args.judge)
    check(deployment, tasks, search)  # before a file is begun that a right command would find
    progress = None
    if args.json:
        settings = {**asdict(deployment), **asdict(search), 'seed': args.seed}
        settings |= {'limit': args.limit, 'compare': args.compare}
        progress = Progress(args.json, settings, as_result)
    results = progress.results_of(tasks, args.episodes) if progress else []
    grown = grow_all(
        deployment,
        tasks,
        search,
        args.episodes,
        seed=args.seed,
        workers=args.workers,
        compare=args.compare,
        done={(result.key, result.episode) for result in results},
    )
    total = len(tasks) * args.episodes
    with tqdm(grown, total=total, initial=len(results), unit='tree') as bar:
        for result in bar:
            results.append(result)
            if progress:
                progress.add(result)
            won = sum(r.tree.success for r in results)
            bar.set_postfix_str(f'{won}/{len(results)} succeeded', refresh=False)
    if progress:
        write_report(args.json, deployment, search, args.seed, tasks, results)
        progress.finish()
    order = {task.key: index for index, task in enumerate(tasks)}
    results.sort(key=lambda r: (order[r.key], r.episode))
    if args.picture:
        draw(results[0], args.picture)
    print(table(summarise(results, search, args.limit)))
    return 0


def chosen(args: argparse.Namespace) -> list[Task]:
    """The tasks that the arguments ask for.

    Raises:
        SimulationError: for an unknown name.
    """
    from flashrt_ros import share
    from flashrt_sim.envs.make import scene_class
    from flashrt_sim.improve.choose import choose
    from flashrt_sim.rollout.evaluation import Task, find_goal

    if args.env is None:
        report = args.report or share.share() / 'docs' / 'results' / 'mt50.json'
        return choose(args.tasks, report, args.limit)[0]
    texts = [args.subgoal] if args.subgoal else list(scene_class(args.env).SUBGOALS)
    return [Task(args.env, (find_goal(args.env, text),), limit=args.limit) for text in texts]
