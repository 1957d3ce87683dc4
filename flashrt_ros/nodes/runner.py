"""Starts the processes of the table where `ros2 launch` is absent, watches and ends them.

Each is started as launch would: ``<exe> --ros-args -r __node:=NAME --params-file FILE``. The
runner needs no rclpy itself; who brings the nodes up is `lifecycle`.
"""

from __future__ import annotations

import collections
import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flashrt_ros.errors import FlashrtError
from flashrt_ros.nodes.ros_environment import settle
from flashrt_ros.nodes.system import PACKAGE, Process
from flashrt_ros.share import config

NICENESS = -10  # of a robot's processes, where it may be raised
LAST_LINES = 30  # of a process that died, in the message
KEPT_LINES = 5000
PARTICIPANTS = 32  # of one domain on one machine that are looked for
_LAST = 119  # the highest participant of a domain; whoever draws a domain holds its port
_drawn: collections.deque[socket.socket] = collections.deque(maxlen=20)
PARENT = 'FLASHRT_PARENT'  # the same word as in `spin`, which this must not import


class SystemDied(FlashrtError):
    """A process of the system ended by itself."""


def executable(name: str) -> list[str]:
    """Return the command that starts executable ``name`` of this package.

    That is ``lib/flashrt_ros/NAME`` where colcon installed it, a file by path, else the module.
    """
    if os.sep in name:
        return [sys.executable, name]
    for prefix in os.environ.get('AMENT_PREFIX_PATH', '').split(os.pathsep):
        path = Path(prefix) / 'lib' / PACKAGE / name
        if prefix and os.access(path, os.X_OK):
            return [str(path)]
    return [sys.executable, '-m', f'{PACKAGE}.nodes.{name}']


def arguments(
    process: Process, overrides: Mapping[str, Any] | None = None, namespace: str = ''
) -> list[str]:
    """Return the ROS arguments that launch would give ``process``."""
    words = ['--ros-args', '-r', f'__node:={process.node}']
    words += ['-r', f'__ns:=/{namespace.strip("/")}'] if namespace else []
    for file in process.config:
        words += ['--params-file', str(config(file))]
    for name, value in {**dict(process.params), **(overrides or {})}.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        words += ['-p', f'{name}:={text}']
    return words


def environment(domain: int | None = None) -> dict[str, str]:
    """Return the environment of the processes: own domain, this machine only, no screen."""
    settle(local=True)
    env = dict(os.environ)
    if domain is not None:
        env['ROS_DOMAIN_ID'] = str(domain)
    env.setdefault('RCUTILS_COLORIZED_OUTPUT', '0')
    env.setdefault('PYTHONUNBUFFERED', '1')
    env[PARENT] = str(os.getpid())
    return env


def free_domain() -> int:
    """Return a domain id from 1 to 100 in which nobody on this machine takes part.

    Participant n of a domain listens on UDP port 7410 + 250 x domain + 2 n (RTPS specification,
    9.6.1); where all of these can be bound, there is none. The port of the last one is kept, so
    that no other process draws the domain before somebody takes part in it.
    """
    for domain in random.SystemRandom().sample(range(1, 101), 100):
        first = 7410 + 250 * domain
        mine = _bound(first + 2 * _LAST)
        if mine is None:
            continue
        probes = [_bound(port) for port in range(first, first + 2 * PARTICIPANTS, 2)]
        for probe in filter(None, probes):
            probe.close()
        if all(probes):
            if len(_drawn) == _drawn.maxlen:
                _drawn.popleft().close()
            _drawn.append(mine)
            return domain
        mine.close()
    raise FlashrtError('every ROS domain from 1 to 100 is taken on this machine; end some of them')


def _bound(port: int) -> socket.socket | None:
    probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        probe.bind(('', port))
    except OSError:
        probe.close()
        return None
    return probe


def prefer(pid: int, niceness: int) -> None:
    """Give a process priority over others, where we may; a robot's ticks do not wait well."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, niceness)
    with contextlib.suppress(OSError):  # sessions share the processor as groups, on most desktops
        Path(f'/proc/{pid}/autogroup').write_text(str(niceness))


class _Child:
    """One running process and the last lines it wrote."""

    def __init__(self, process: Process, command: Sequence[str], env: Mapping[str, str]) -> None:
        self.process = process
        self.lines: collections.deque[str] = collections.deque(maxlen=KEPT_LINES)
        self.popen = subprocess.Popen(
            command,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors='replace',
            start_new_session=True,  # Ctrl-C reaches us, and we end them in order
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.log: Any = None

    def _read(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            self.lines.append(line.rstrip())
            if self.log is not None:
                self.log.write(line)
                self.log.flush()

    def drained(self) -> list[str]:
        """Return the last lines, once the process has ended and they are all there."""
        self._reader.join(timeout=2.0)
        return list(self.lines)


class System:
    """The processes of a table, from start to end. A context manager.

    Args:
        processes: What to start.
        overrides: Node -> parameters that differ from its file.
        domain: ROS domain id of its own; None = the environment's.
        logs: Folder for one log file per node; None keeps only the last lines.
        niceness: Priority of the processes, where we may raise it; -20 is the highest.
        namespace: Of every node, topic and service; one per arm.
    """

    def __init__(
        self,
        processes: Sequence[Process],
        overrides: Mapping[str, Mapping[str, Any]] | None = None,
        domain: int | None = None,
        logs: Path | None = None,
        niceness: int = NICENESS,
        namespace: str = '',
    ) -> None:
        self._niceness, self._namespace = niceness, namespace
        self.processes = tuple(processes)
        self._overrides = dict(overrides or {})
        self._env = environment(domain)
        self._logs = logs
        self._children: dict[str, _Child] = {}
        self._ending = False

    def __enter__(self) -> System:
        try:
            for process in self.processes:
                self.start(process)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self, process: Process) -> None:
        """Start one process. Call it from the main thread: the kernel ends it with that."""
        command = [
            *executable(process.executable),
            *arguments(process, self._overrides.get(process.node), self._namespace),
        ]
        child = _Child(process, command, self._env)
        prefer(child.popen.pid, self._niceness)
        if self._logs is not None:
            self._logs.mkdir(parents=True, exist_ok=True)
            child.log = (self._logs / f'{process.node}.log').open('a')
        self._children[process.node] = child

    def pid(self, node: str) -> int:
        """Return the process id of ``node``."""
        return self._children[node].popen.pid

    def lines(self, node: str) -> list[str]:
        """Return the last lines ``node`` wrote."""
        return list(self._children[node].lines)

    def restart(self, node: str) -> None:
        """Start ``node`` again, after it has ended."""
        self.start(self._children[node].process)

    def alive(self, node: str) -> bool:
        """Whether ``node`` runs."""
        return self._children[node].popen.poll() is None

    def kill(self, node: str) -> None:
        """Kill ``node`` outright (tests)."""
        child = self._children[node]
        child.popen.kill()
        child.popen.wait()

    def check(self) -> None:
        """Raise if a process has ended; one that respawns is started again.

        Raises:
            SystemDied: It names the node, how it ended and its last words.
        """
        for node, child in list(self._children.items()):
            code = child.popen.poll()
            if code is None or self._ending:
                continue
            if child.process.respawn:
                self.start(child.process)
                continue
            how = signal.Signals(-code).name if code < 0 else f'exit code {code}'
            last = [line for line in child.drained() if line.strip()][-LAST_LINES:]
            raise SystemDied(f'{node} died ({how}); its last lines:\n  ' + '\n  '.join(last))

    def last_words(self) -> str:
        """Return the newest error line of every node, for a message."""
        found = []
        for node, child in self._children.items():
            errors = [x for x in child.lines if '[ERROR]' in x or '[FATAL]' in x]
            found += [f'{node}: {errors[-1].split("]: ", 1)[-1]}'] if errors else []
        return '; '.join(found)

    def stop(self, patience: float = 5.0) -> None:
        """End every process, last started first: SIGINT, after ``patience`` seconds SIGKILL."""
        self._ending = True
        running = [c for c in reversed(self._children.values()) if c.popen.poll() is None]
        for child in running:
            child.popen.send_signal(signal.SIGINT)
        deadline = time.monotonic() + patience
        for child in running:
            try:
                child.popen.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.popen.kill()
                child.popen.wait()
        for child in self._children.values():
            child.drained()
            if child.log is not None:
                child.log.close()
                child.log = None
