"""`flashrt report FILE.mcap`: one HTML page with pictures from a recording."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from flashrt_ros.errors import FlashrtError

DESCRIPTION = """\
Reads an MCAP recording of an episode and writes one HTML file: timeline, latencies, what the
cameras saw as a film and as a strip, what happened, why the gate held, what each node said of
itself. Everything is in the file; it needs no network and runs no script.
"""


def add_parser(subparsers: Any) -> None:
    """Declare the arguments."""
    parser = subparsers.add_parser(
        'report', help='one HTML page with pictures from a recording', description=DESCRIPTION
    )
    parser.add_argument('file', type=Path, metavar='FILE.mcap', help='a recording of an episode')
    parser.add_argument('--out', type=Path, metavar='FILE', help='where to (FILE.html beside it)')


def run(args: argparse.Namespace) -> int:
    """Write the page; return 0.

    Raises:
        FlashrtError: There is no such file, or it is no recording.
    """
    if not args.file.is_file():
        raise FlashrtError(f'there is no file {args.file}: give the MCAP file of an episode')
    target = args.out or args.file.with_suffix('.html')
    if target.is_dir():
        raise FlashrtError(f'--out {target} is a folder: name a file')
    try:
        from flashrt_ros.nodes.report.page import write
    except ImportError as error:
        raise FlashrtError(
            f'a report needs ROS 2 and mcap ({error}); run `make setup`, or '
            '`pip install mcap mcap-ros2-support` beside a sourced ROS 2'
        ) from None
    recording = write(args.file, target)
    size = target.stat().st_size / 2**20
    print(f'{target}: {sum(recording.topics.values())} messages, {size:.1f} MiB')
    return 0
