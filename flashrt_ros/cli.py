"""The `flashrt` command: one table of subcommands, each a module of `flashrt_ros.commands`.

A command module has two functions: `add_parser(subparsers)` declares its arguments and
`run(args) -> int` does the work. Modules are imported only when their command is asked for, so
`flashrt --help` answers at once and a machine without ROS or without a simulator can still run
the commands that need neither.

Exit codes: 0 it worked, 1 it ran and the result is a failure, 2 the input was wrong (one line on
standard error says what, and what would be right), 130 interrupted with Ctrl-C.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from flashrt_ros import __version__
from flashrt_ros.errors import FlashrtError

COMMANDS: dict[str, str] = {
    'demo': 'one robot brain, end to end: two subgoals, an interrupt, a reset, an exact replay',
    'rollout': 'run a policy in a simulated environment and report its success rate',
    'tree': 'branch episodes in the middle, keep the best branches, go on',
    'data': 'generate demonstrations with the scripted experts',
    'train': 'train a policy on demonstrations, or a planner',
    'improve': 'make a flow policy better by its own episodes',
    'lm': 'try a language model: continue a text, or chat',
    'decide': 'put questions to a state, and see how likely every answer is',
    'capsule': 'list, show, verify and remove stored capsules',
    'report': 'one HTML page with pictures from a recording',
    'bench': 'measure, and write the figures as JSON',
}


def build_parser(only: str | None = None) -> argparse.ArgumentParser:
    """Return the parser; `only` names the one command whose module is imported."""
    parser = argparse.ArgumentParser(
        prog='flashrt',
        description='Robot brains that can be frozen, restored, forked and rolled back.',
        epilog='flashrt COMMAND --help explains a command.',
    )
    parser.add_argument('--version', action='version', version=f'flashrt_ros {__version__}')
    subparsers = parser.add_subparsers(dest='command', metavar='COMMAND', required=True)
    for name, summary in COMMANDS.items():
        if name == only:
            importlib.import_module(f'flashrt_ros.commands.{name}').add_parser(subparsers)
        else:
            subparsers.add_parser(name, help=summary, add_help=False)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    only = next((word for word in argv if word in COMMANDS), None)
    args = build_parser(only).parse_args(argv)
    command = importlib.import_module(f'flashrt_ros.commands.{args.command}')
    try:
        return int(command.run(args))
    except BrokenPipeError:
        # The reader of our output went away (`flashrt ... | head`): nothing is wrong with us.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except FlashrtError as error:
        print(f'flashrt {args.command}: {error}', file=sys.stderr)
        return 2
    except OSError as error:
        # A folder that is missing, read-only or full; anything without a file is a defect.
        if error.filename is None:
            raise
        print(f'flashrt {args.command}: {error.filename}: {error.strerror}', file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f'flashrt {args.command}: interrupted', file=sys.stderr)
        return 130


if __name__ == '__main__':
    sys.exit(main())
