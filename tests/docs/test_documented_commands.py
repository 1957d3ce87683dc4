"""Promise: every command and every Python example in README and docs works as printed.

Each `flashrt ...` line of a ```bash block must be accepted by the real argument parser. Blocks
fenced as ```bash run or ```python run are executed as well, in an empty folder.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flashrt_ros.cli import build_parser

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r'^```(?P<info>[^\n]*)\n(?P<body>.*?)^```', re.MULTILINE | re.DOTALL)


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """Yield (info string, body) of every fenced block."""
    for match in FENCE.finditer(text):
        yield match['info'].strip(), match['body']


def flashrt_lines(body: str) -> list[list[str]]:
    """Return the `flashrt` commands of a shell block as argument lists, comments dropped."""
    joined = body.replace('\\\n', ' ')
    lines = [shlex.split(line, comments=True) for line in joined.splitlines()]
    return [line[1:] for line in lines if line[:1] == ['flashrt']]


def accepted(argv: list[str]) -> bool:
    """Return whether the real parser takes these arguments."""
    command = next((word for word in argv if not word.startswith('-')), None)
    try:
        build_parser(command).parse_args(argv)
    except SystemExit as exit_:
        return exit_.code == 0  # --help and --version leave with 0
    return True


PAGES = [ROOT / 'README.md', *sorted((ROOT / 'docs').rglob('*.md'))]
COMMANDS = [
    pytest.param(argv, id=f'{page.name}: {" ".join(argv)}')
    for page in PAGES
    for info, body in blocks(page.read_text())
    if info.split()[:1] == ['bash']
    for argv in flashrt_lines(body)
]
RUNNABLE = [
    pytest.param(info, body, id=f'{page.name}#{index}')
    for page in PAGES
    for index, (info, body) in enumerate(blocks(page.read_text()))
    if info.split()[1:] == ['run']
]


@pytest.mark.parametrize('argv', COMMANDS)
def test_documented_command_is_accepted(argv: list[str]) -> None:
    """The parser takes every documented `flashrt` command."""
    assert accepted(argv)


@pytest.mark.timeout(900)  # an example may be a rollout with its video
@pytest.mark.parametrize(('info', 'body'), RUNNABLE)
def test_documented_example_runs(info: str, body: str, tmp_path: Path) -> None:
    """Blocks marked `run` do what the page says, with exit code 0."""
    language = info.split()[0]
    argv = {'python': [sys.executable, '-c', body], 'bash': ['bash', '-euc', body]}[language]
    path = f'{Path(sys.executable).parent}{os.pathsep}{os.environ["PATH"]}'
    done = subprocess.run(
        argv, cwd=tmp_path, env={**os.environ, 'PATH': path}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_command_that_does_not_exist_is_caught() -> None:
    """Negative control: wrong commands and wrong options in a page would fail the test above."""
    page = '```bash\nflashrt capsule melt  # no such verb\nflashrt rollout --no-such-option\n```\n'
    found = [argv for _, body in blocks(page) for argv in flashrt_lines(body)]
    assert len(found) == 2
    assert not any(accepted(argv) for argv in found)
