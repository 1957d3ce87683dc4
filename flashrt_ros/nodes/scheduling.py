"""Which cores a node's process runs on, and with what priority: for machines that do other work.

The executor's thread gets the priority, and so do the middleware's, which bring it the messages;
the replay thread does not: an inference must never keep a tick from being answered.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import Any

from flashrt_ros.nodes.params import Param, ParameterError

PROCESS_PARAMS = (
    Param('cpus', [-1], 'cores this process may use, counted from 0; -1 = any'),
    Param('realtime_priority', 0, 'SCHED_FIFO from 1 to 99; 0 = ordinary', 0, 99),
)


def apply(node: Any) -> None:
    """Do what the parameters of ``node`` ask for; called on its executor's thread, once.

    What the system does not permit is one line in the log, and the node goes on without.

    Raises:
        ParameterError: There is no such core.
    """
    cpus = [cpu for cpu in node.p.cpus if cpu >= 0]
    there = os.sched_getaffinity(0)
    if not set(cpus) <= there:
        known = ', '.join(map(str, sorted(there)))
        raise ParameterError(
            f'{node.get_name()}: parameter cpus is {cpus}; this process may use {known}'
        )
    if cpus:
        for task in _tasks():  # also the middleware's threads
            os.sched_setaffinity(task, cpus)
    python = {thread.native_id for thread in threading.enumerate()}
    prioritise(node, *(task for task in _tasks() if task not in python))


def _tasks() -> list[int]:
    return [int(task.name) for task in Path('/proc/self/task').iterdir()]


def prioritise(node: Any, *others: int) -> None:
    """Give the calling thread, and ``others``, the priority that the parameters ask for."""
    priority = node.p.realtime_priority
    if priority:
        try:
            for task in (0, *others):
                with contextlib.suppress(ProcessLookupError):  # one that has ended meanwhile
                    os.sched_setscheduler(task, os.SCHED_FIFO, os.sched_param(priority))
        except PermissionError:
            node.log.warning(
                f'realtime_priority {priority} is not permitted: allow it with `rtprio` in '
                '/etc/security/limits.conf or LimitRTPRIO of the service; going on without'
            )
