"""Peers of a benchmark, each in a process of its own.

A peer may fail, hang or change what it finds in a process, so it gets its own. It tells each
figure as soon as it has it, in a line of its own on standard output; what it could not measure
stands in the report with the reason.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence

MARK = '@peer '
Found = dict[str, 'float | str']


def tell(work: str, value: float | str) -> None:
    """Called by a peer: one figure in the unit of its row, or the reason why there is none."""
    print(MARK + json.dumps([work, value]), flush=True)


def one_line(text: object) -> str:
    """Return the text as one line of at most 120 characters."""
    return ' '.join(str(text).split())[:120]


def attempt(work: str, measure: Callable[[], float]) -> None:
    """Called by a peer: tell what `measure` returns, or how it failed."""
    try:
        tell(work, round(measure(), 3))
    except Exception as error:  # a peer fails in its own ways; its other figures may stand
        tell(work, f'{type(error).__name__}: {one_line(error)}')


def run(command: Sequence[str], timeout: float, env: Mapping[str, str] | None = None) -> Found:
    """Run a peer and return what it told.

    Args:
        command: the process.
        timeout: seconds after which it is ended, with every process that it has started; what
            it told until then counts.
        env: its environment; None for this one's.

    Returns:
        Work -> figure or reason. The key '' holds the reason why the rest is missing.
    """
    found: Found = {}
    with tempfile.TemporaryFile('w+') as errors:
        child = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=env,
            stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        late = threading.Event()

        def end() -> None:
            late.set()
            # Workers that it has left behind hold its output open, so all of them are ended.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)

        timer = threading.Timer(timeout, end)
        timer.start()
        assert child.stdout is not None
        with child.stdout as lines:
            for line in lines:
                if line.startswith(MARK):
                    with contextlib.suppress(ValueError):  # cut off in the middle
                        work, value = json.loads(line.removeprefix(MARK))
                        found[work] = value
        code = child.wait()
        timer.cancel()
        errors.seek(0)
        last = [line for line in errors.read().splitlines() if line.strip()][-1:]
    if late.is_set():
        found[''] = f'not reached within {timeout:.0f} s'
    elif code:
        found[''] = one_line(f'exit {code}: {last[0] if last else "it said nothing"}')
    else:
        found.setdefault('', 'not one of its works')
    return found
