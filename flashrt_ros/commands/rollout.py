"""`flashrt rollout`: how often does a policy reach its subgoals?"""

from __future__ import annotations

import argparse
import dataclasses
import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashrt_ros.control.types import DELAY, EXECUTE
from flashrt_ros.errors import FlashrtError

if TYPE_CHECKING:
    from flashrt_sim.rollout.evaluation import Task
    from flashrt_sim.rollout.run import Deployment


def add_parser(subparsers: Any) -> None:
    """Declare the arguments."""
    parser = subparsers.add_parser(
        'rollout',
        help='run a policy in simulation and report its success rate',
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument('--env', default='flashrt/Drawer-v0', help='environment')
    parser.add_argument(
        '--suite', metavar='NAME', help='many tasks instead: mt50, mt50-held-out, mt50-wrong, '
        'scenes, sequences, interrupts'
    )  # fmt: skip
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
    parser.add_argument('--policy', default='mt50', help='shipped name or checkpoint folder')
    parser.add_argument('--device', default='cpu', help='cpu, cuda or cuda:N')
    parser.add_argument('--episodes', type=int, default=50, help='for each subgoal')
    parser.add_argument('--limit', type=int, default=500, help='ticks for each subgoal')
    parser.add_argument('--seed', type=int, default=0, help='chooses the evaluation seeds')
    parser.add_argument('--execute', type=int, default=EXECUTE, help='ticks between two chunks')
    parser.add_argument(
        '--delay',
        type=int,
        default=None,
        help=f'ticks until a chunk takes effect; mt50 suites: 0, as the benchmark; else {DELAY}',
    )
    parser.add_argument(
        '--workers', type=int, default=os.cpu_count() or 1, help='parallel processes'
    )
    parser.add_argument(
        '--engine',
        default='local',
        choices=('local', 'ray'),
        help='who starts the processes; ray is an extra: pip install "flashrt_ros[ray]"',
    )
    parser.add_argument(
        '--address',
        metavar='ADDRESS',
        help='with --engine ray: a running cluster (auto or host:port); its size '
        'counts then, not --workers',
    )
    outputs = parser.add_argument_group('results', 'with a file, a stopped rollout goes on')
    outputs.add_argument('--json', type=Path, metavar='FILE', help='settings, summary, episodes')
    outputs.add_argument('--parquet', type=Path, metavar='FILE', help='a row for each episode')
    outputs.add_argument('--sheet', type=Path, metavar='PNG', help='how episodes ended, a picture')
    outputs.add_argument('--video', type=Path, metavar='DIR', help='one mp4 for each episode')
    outputs.add_argument(
        '--record',
        type=Path,
        metavar='DIR',
        help='what the policy saw and did, as `flashrt data generate` writes it, and in the '
        'LeRobot layout in DIR/lerobot',
    )


def run(args: argparse.Namespace) -> int:
    """Do the work; exit code 0 however often the policy succeeded."""
    from tqdm import tqdm

    from flashrt_sim.rollout import results as files
    from flashrt_sim.rollout.evaluation import summarise, table
    from flashrt_sim.rollout.progress import Progress
    from flashrt_sim.rollout.run import Outputs, roll_out
    from flashrt_sim.rollout.suite import group_table, groups

    tasks, deployment = chosen(args), _deployment(args)
    for option in ('json', 'parquet', 'sheet'):
        path = getattr(args, option)
        if path and not os.access(path.resolve().parent, os.W_OK):
            raise FlashrtError(f'--{option} {path}: name a file in a folder that can be written')
    progress = None
    if args.json or args.parquet:
        settings = {**asdict(deployment), 'seed': args.seed, 'limit': args.limit}
        progress = Progress(args.json or args.parquet, settings)
    results = progress.results_of(tasks, args.episodes) if progress else []
    ends = args.sheet.with_name(args.sheet.name + '.part') if args.sheet else None
    finished = roll_out(
        deployment,
        tasks,
        args.episodes,
        seed=args.seed,
        workers=args.workers,
        outputs=Outputs(args.video, ends, args.record),
        done={(result.key, result.episode) for result in results},
        engine=args.engine,
        address=args.address,
    )
    total = len(tasks) * args.episodes
    with tqdm(finished, total=total, initial=len(results), unit='episode') as bar:
        for result in bar:
            results.append(result)
            if progress:
                progress.add(result)
            won = sum(r.success for r in results)
            bar.set_postfix_str(f'{won}/{len(results)} succeeded', refresh=False)
    if ends is not None:
        from flashrt_sim.rollout.sheet import draw

        draw(ends, args.sheet)
    if args.record:
        _export(args.record, args.workers)
    if args.json:
        files.write_json(args.json, deployment, args.seed, tasks, results)
    if args.parquet:
        files.write_parquet(args.parquet, deployment, args.seed, tasks, results)
    if progress:
        progress.finish()
    if ends is not None:
        shutil.rmtree(ends)
    order = {task.key: index for index, task in enumerate(tasks)}
    rows = summarise(sorted(results, key=lambda result: order[result.key]))
    print(table(rows))
    if args.suite and args.suite.startswith('mt50'):
        print('\n' + group_table(groups(rows)))
    return 0


def _deployment(args: argparse.Namespace) -> Deployment:
    from flashrt_sim.rollout.run import Deployment

    delay = args.delay
    if delay is None:
        delay = 0 if (args.suite or '').startswith('mt50') else DELAY
    if args.execute < 1 or delay < 0:
        raise FlashrtError('--execute starts at 1 and --delay at 0')
    return Deployment(args.policy, args.device, args.execute, delay)


def _export(folder: Path, workers: int) -> None:
    from tqdm import tqdm

    from flashrt_sim.data import lerobot
    from flashrt_sim.data.dataset import open_all

    written = lerobot.write(open_all(folder), folder / 'lerobot', workers)
    for _ in tqdm(written, unit='file', desc='LeRobot layout'):
        pass


def chosen(args: argparse.Namespace) -> list[Task]:
    """The tasks that the arguments ask for.

    Raises:
        SimulationError: for an unknown name.
    """
    from flashrt_sim.envs.make import scene_class
    from flashrt_sim.rollout.evaluation import Goal, Task, find_goal
    from flashrt_sim.rollout.suite import suite_tasks

    if args.suite:
        return [dataclasses.replace(task, limit=args.limit) for task in suite_tasks(args.suite)]
    texts = args.subgoal or list(scene_class(args.env).SUBGOALS)
    goals = [find_goal(args.env, text) for text in texts]
    if args.told is not None:
        goals = [Goal(goal.subgoal, args.told, control=True) for goal in goals]
    sequences = [tuple(goals)] if args.sequence else [(goal,) for goal in goals]
    return [Task(args.env, sequence, args.start, args.limit) for sequence in sequences]
