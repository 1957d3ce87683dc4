"""The folder of a run: the previous one is replaced only when the new one is complete."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from flashrt_ros.errors import FlashrtError

MARK = 'summary.json'  # what makes a folder a run's


class OutputError(FlashrtError):
    """The folder of a run cannot be written, or is something else."""


def check(out: Path) -> None:
    """Refuse a folder that holds something other than a run.

    Raises:
        OutputError: It says what is there and what would be right.
    """
    if out.is_file():
        raise OutputError(f'{out} is a file; give --out a folder')
    if out.is_dir() and any(out.iterdir()) and not (out / MARK).is_file():
        raise OutputError(
            f'{out} holds something that is no run (no {MARK}); choose another --out'
        )


@contextlib.contextmanager
def run_folder(out: Path) -> Iterator[Path]:
    """Give a folder to write into; it becomes ``out`` when the block ends without an error.

    Raises:
        OutputError: ``out`` is no run's folder, or cannot be written.
    """
    check(out)
    part = out.with_name(f'.{out.name}.part-{os.getpid()}')
    old = out.with_name(f'.{out.name}.old-{os.getpid()}')
    for left in out.parent.glob(f'.{out.name}.part-*'):  # of runs that were killed
        if not Path(f'/proc/{left.name.rpartition("-")[2]}').exists():
            shutil.rmtree(left, ignore_errors=True)
    try:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
    except OSError as error:
        raise OutputError(
            f'{out} cannot be written: {error.strerror}; choose another --out'
        ) from error
    try:
        yield part
        if out.exists() or out.is_symlink():
            out.rename(old)
        part.rename(out)
    finally:
        shutil.rmtree(part, ignore_errors=True)
        if old.is_symlink():
            old.unlink()
        shutil.rmtree(old, ignore_errors=True)
