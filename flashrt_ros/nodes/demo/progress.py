"""Shows a running demo: one line that moves on a terminal, sentences elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any, TextIO

from flashrt_interfaces.msg import ActionChunk, EpisodeState, RobotState, Subgoal

_BAR = 24


class Progress:
    """Takes the operator's messages; prints at most ten times a second.

    Args:
        out: Where to.
    """

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._live = self._out.isatty()
        self._lock = threading.Lock()
        self._state = self._subgoal = ''
        self._tick = self._episode = self._missed = 0
        self._inference = 0.0
        self._drawn = 0.0
        self._began = time.monotonic()
        self._width = 0

    def __call__(self, msg: Any) -> None:
        """Take a message (on the operator's thread)."""
        if isinstance(msg, RobotState):
            self._tick, self._episode, self._missed = msg.tick, msg.episode, msg.missed_ticks
        elif isinstance(msg, EpisodeState):
            self._state = msg.state
        elif isinstance(msg, ActionChunk):
            self._inference = msg.inference_ms
        elif isinstance(msg, Subgoal):
            self._subgoal = msg.text
            if msg.status == Subgoal.STATUS_DONE:
                self.say(f'tick {msg.tick}: reached "{msg.text}"')
        now = time.monotonic()
        if self._live and now - self._drawn > 0.1:
            self._drawn = now
            self._draw()

    def say(self, text: str) -> None:
        """Print a sentence with the seconds since the start."""
        with self._lock:
            self._clear()
            print(f'  {time.monotonic() - self._began:6.1f} s  {text}', file=self._out, flush=True)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        """Take the moving line away; only sentences follow."""
        with self._lock:
            self._clear()
            self._live = False

    def _clear(self) -> None:
        if self._live and self._width:
            self._out.write('\r' + ' ' * self._width + '\r')
            self._out.flush()
            self._width = 0

    def _draw(self) -> None:
        bar = ('━' * (self._tick * _BAR // 240 % (_BAR + 1))).ljust(_BAR, '·')
        line = (
            f'  episode {self._episode} {bar} tick {self._tick:4d}  {self._state:<11} '
            f'{self._subgoal:<17} inference {self._inference:3.0f} ms  missed {self._missed}'
        )
        with self._lock:
            self._out.write('\r' + line.ljust(self._width))
            self._out.flush()
            self._width = len(line)
