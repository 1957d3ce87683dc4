"""`flashrt demo`: one robot brain, end to end, on real ROS 2."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from flashrt_ros.errors import FlashrtError

INSTRUCTION = 'open the drawer, then close it'
ATTEMPTS = 3  # a machine that was busy with something else gets another one
DESCRIPTION = """\
Starts the simulated robot, the action gate, the brain (policy and planner) and the supervisor as
ROS 2 processes of their own, gives the instruction, interrupts the robot in the middle of the
second subgoal, lets it re-enter warm, resets it, and repeats the episode from the restored start.
Exit code 0 only if both subgoals were reached, the interrupt was acknowledged within one tick with
no old action after it, and the second episode repeated the first bit for bit up to the interrupt.
Where the machine was too busy to serve every tick in time, all of it is tried again, up to three
times; the figures are those of the last.
"""


def add_parser(subparsers: Any) -> None:
    """Declare the arguments."""
    parser = subparsers.add_parser(
        'demo',
        help='one robot brain, end to end: two subgoals, an interrupt, a reset, an exact replay',
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        '--out', type=Path, default=Path('runs/latest'), help='folder of the run (%(default)s)'
    )
    parser.add_argument(
        '--instruction', default=INSTRUCTION, help='what to do, in words (%(default)s)'
    )
    parser.add_argument('--seed', type=int, default=0, help='scene and noise (%(default)s)')
    parser.add_argument('--policy', default='drawer', help='weights: a name or a folder')
    parser.add_argument(
        '--planner', default='shipped', help='checkpoint of a language model, shipped, or rules'
    )
    parser.add_argument(
        '--record', action='store_true', help='an MCAP file and a report page per episode'
    )
    parser.add_argument(
        '--lockstep', action='store_true', help='the world waits for the brain: for slow machines'
    )
    parser.add_argument('--no-video', action='store_true', help='leave the video out')


def run(args: argparse.Namespace) -> int:
    """Run the demo; return 0 if all of it held, 1 if not."""
    plan = understand(args.instruction, args.policy, args.planner)
    if args.seed < 0 or args.seed >= 2**31:
        raise FlashrtError(f'--seed is {args.seed}; it must be from 0 to {2**31 - 1}')
    prepare()
    try:
        import rclpy  # noqa: F401

        from flashrt_interfaces.msg import RobotState  # noqa: F401
    except ImportError as error:
        raise FlashrtError(
            f'ROS 2 is not here ({error}); run `make setup`, or source a ROS 2 and build '
            'interfaces/ with colcon'
        ) from None
    from flashrt_ros.nodes.demo.output import run_folder

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends like Ctrl-C: in order
    with run_folder(args.out) as folder:
        summary, wrong = _perform(args, plan, folder)
    _report(summary, wrong, args.out)
    return 1 if wrong else 0


def understand(instruction: str, policy: str, planner: str) -> list[str]:
    """Return the plan, before anything is started.

    Raises:
        FlashrtError: The weights are missing or the instruction cannot be carried out.
    """
    from flashrt_ros.control.planner import PlannerError
    from flashrt_ros.nodes.judging import make_planner

    plan = list(make_planner(planner, offered(policy)).start(instruction))
    if len(plan) < 2:
        raise PlannerError(
            f'the demo interrupts the second subgoal, and "{instruction}" has one; '
            f'say for example "{INSTRUCTION}"'
        )
    return plan


def offered(policy: str) -> list[str]:
    """Return what a policy can do in the demo's scene; everything where it names none of that."""
    from flashrt_policies import registry

    skills = registry.spec(policy).skills
    return [skill for skill in registry.SKILLS['drawer'] if skill in skills] or list(skills)


def prepare() -> None:
    """Set what ROS from wheels needs to know, and stay on this machine."""
    from flashrt_ros.nodes.ros_environment import settle

    settle(local=True)


def _perform(
    args: argparse.Namespace, plan: list[str], folder: Path
) -> tuple[dict[str, Any], list[str]]:
    from flashrt_ros.nodes.demo.figures import disturbed, summarise, verdict
    from flashrt_ros.nodes.demo.progress import Progress
    from flashrt_ros.nodes.demo.timeline import draw

    with Progress() as progress:
        for attempt in range(1, ATTEMPTS + 1):
            told = _attempt(args, plan, folder, progress)
            summary = summarise(told)
            wrong = verdict(summary)
            trouble = disturbed(told)
            if not wrong or not trouble or attempt == ATTEMPTS:
                break
            progress.say(f'this machine was busy: {trouble}; all of it again')
        summary.update(attempts=attempt, passed=not wrong)
        (folder / 'summary.json').write_text(json.dumps(summary, indent=2) + '\n')
        draw(told, summary, folder / 'timeline.png')
        if not args.no_video:
            _video(told, folder, progress.say)
        if args.record:
            _reports(folder, progress.say)
    return summary, wrong


def _attempt(args: argparse.Namespace, plan: list[str], folder: Path, progress: Any) -> Any:
    """Bring a system up, run the story in it, take it down."""
    from flashrt_ros.nodes.demo.story import Story
    from flashrt_ros.nodes.lifecycle import Lifecycle, LifecycleError
    from flashrt_ros.nodes.operator import Operator
    from flashrt_ros.nodes.runner import NICENESS, System, free_domain, prefer
    from flashrt_ros.nodes.system import processes

    domain = free_domain()
    prefer(os.getpid(), NICENESS)  # who interrupts a robot must not come too late
    table = processes(recorder=args.record, lockstep=args.lockstep)
    skills = str(offered(args.policy))
    overrides = {'brain': {'policy': args.policy, 'planner': args.planner, 'skills': skills}}
    if args.record:
        for old in folder.glob('*.mcap'):  # of an attempt before
            old.unlink()
        overrides['recorder'] = {'folder': str(folder.absolute())}
    progress.say('starting gate, simulator, brain and supervisor')
    with (
        System(table, overrides, domain, folder / 'logs') as system,
        Operator(domain, progress) as operator,
    ):
        lifecycle = Lifecycle(operator.node, system.check)
        try:
            lifecycle.bring_up([p.node for p in system.processes])
        except LifecycleError as error:
            raise FlashrtError(system.last_words() or str(error)) from None
        progress.say(f'all active (domain {domain})')
        return Story(operator, progress.say, system.check).run(args.instruction, plan, args.seed)


def _video(told: Any, folder: Path, say: Any) -> None:
    """Draw the recorded worlds; a machine that cannot still has its figures."""
    from flashrt_ros.nodes.demo.film import film

    say('drawing the video')
    try:
        film(told, folder / 'video.mp4')
    except (ImportError, OSError, RuntimeError) as error:
        say(f'no video: {error}')


def _reports(folder: Path, say: Any) -> None:
    """Write a page for each recording."""
    from flashrt_ros.nodes.report.page import write

    for number, file in enumerate(sorted(folder.glob('*.mcap')), 1):
        say(f'writing the report of episode {number}')
        named = file.rename(folder / f'episode-{number}.mcap')
        write(named, named.with_suffix('.html'))


def _report(summary: dict[str, Any], wrong: list[str], out: Path) -> None:
    stop, replay, inference = summary['interrupt'], summary['replay'], summary['inference_ms']
    reached = ', '.join(
        f'{g["text"]}: {"reached" if g["success"] else "not reached"}' for g in summary['subgoals']
    )
    rows = [
        ('subgoals', reached),
        (
            'control',
            f'{summary["control_hz"]:.2f} Hz, {summary["ticks"]} ticks, '
            f'{summary["missed_ticks"]} missed',
        ),
        ('inference', f'{_ms(inference["p50"])} median, {_ms(inference["p99"])} p99'),
        (
            'interrupt',
            f'{stop["ack_ticks"]} ticks carried out before the hold, answered in '
            f'{_ms(stop["ack_ms"])}, {stop["old_actions_after_ack"]} old actions after that',
        ),
        ('re-entry', f'{_ms(summary["reentry_ms"])} to the first action'),
        ('reset', _ms(summary['reset_ms'])),
        (
            'replay',
            f'{replay["compared_ticks"]} ticks compared, '
            + ('identical to the byte' if replay['identical'] else 'NOT identical'),
        ),
    ]
    print()
    for name, text in rows:
        print(f'  {name:<10} {text}')
    print(f'\n  {out}: {", ".join(sorted(p.name for p in out.iterdir()))}')
    for sentence in wrong:
        print(f'flashrt demo: {sentence}', file=sys.stderr)


def _ms(value: float | None) -> str:
    return '-' if value is None else f'{value:.1f} ms'
