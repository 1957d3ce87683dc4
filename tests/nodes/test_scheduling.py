"""Cores and priorities of a process, as its parameters say; and two arms side by side."""

from __future__ import annotations

import os
import re
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from harness import INSTRUCTION, LONG, becomes, moves, table, toy_environment

from flashrt_ros.nodes.lifecycle import Lifecycle
from flashrt_ros.nodes.operator import Operator
from flashrt_ros.nodes.runner import System, SystemDied, free_domain
from flashrt_ros.nodes.system import PROCESSES

pytestmark = pytest.mark.xdist_group('ros')
PAUSE = threading.Event()


def test_a_process_keeps_to_its_cores() -> None:
    """Every thread of the gate is on the core it was given, also the middleware's own."""
    core = min(os.sched_getaffinity(0))
    domain = free_domain()
    gate = {'cpus': f'[{core}]', 'realtime_priority': 5}
    with Operator(domain) as operator, System([PROCESSES[0]], {'gate': gate}, domain) as system:
        Lifecycle(operator.node, system.check).bring_up(['gate'], LONG)
        tasks = list(Path(f'/proc/{system.pid("gate")}/task').iterdir())
        assert len(tasks) > 1
        assert {frozenset(os.sched_getaffinity(int(t.name))) for t in tasks} == {frozenset({core})}
        policy = os.sched_getscheduler(system.pid('gate'))
        refused = any('is not permitted' in line for line in system.lines('gate'))
        assert policy == os.SCHED_FIFO or refused


def test_a_core_that_is_not_there() -> None:
    """The process ends, and its last words name the cores there are."""
    gate = replace(PROCESSES[0], respawn=False)
    with System([gate], {'gate': {'cpus': '[4096]'}}, free_domain()) as system:
        deadline = time.monotonic() + LONG
        with pytest.raises(SystemDied, match=re.escape('parameter cpus is [4096]')):
            while time.monotonic() < deadline:
                system.check()
                PAUSE.wait(0.05)


def test_two_arms_do_not_hear_each_other() -> None:
    """Two whole systems in one domain, by namespace: an interrupt of one is not the other's."""
    domain = free_domain()
    toy = {'sim': {'env': 'toy_world:Endless-v0'}, 'brain': {'subgoal_max_ticks': 0}}
    with (
        toy_environment(),
        System(table(), toy, domain, namespace='left') as one,
        System(table(), toy, domain, namespace='right') as two,
        Operator(domain, namespace='left', patience=LONG) as left,
        Operator(domain, namespace='right', patience=LONG) as right,
    ):
        for system, operator in ((one, left), (two, right)):
            lifecycle = Lifecycle(operator.node, system.check)
            lifecycle.bring_up([p.node for p in system.processes], LONG)
            operator.start(INSTRUCTION)
        for operator in (left, right):
            assert operator.until(operator.ticked(3), LONG)
        left.interrupt()
        assert moves(right)
        assert becomes(left, 'interrupted')
        assert left.episode is not None
        assert right.episode is not None
        assert (left.episode.state, right.episode.state) == ('interrupted', 'running')
        assert (left.episode.epoch, right.episode.epoch) == (2, 1)
