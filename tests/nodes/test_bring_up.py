"""Starting what cannot start: one line says why; and what is started ends with its runner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from harness import HERE, LONG

from flashrt_ros.nodes.lifecycle import Lifecycle, LifecycleError
from flashrt_ros.nodes.operator import Operator
from flashrt_ros.nodes.runner import System, SystemDied, free_domain
from flashrt_ros.nodes.system import PROCESSES

pytestmark = pytest.mark.xdist_group('ros')
PAUSE = threading.Event()


def test_unknown_world_and_missing_weights() -> None:
    """Neither node configures; each logs one line with what is wrong and what there is."""
    wanted = [p for p in PROCESSES if p.node in ('sim', 'brain')]
    overrides = {'sim': {'env': 'flashrt/Drawr-v0'}, 'brain': {'policy': '/no/such/weights'}}
    number = free_domain()
    with System(wanted, overrides, number) as system, Operator(number) as operator:
        lifecycle = Lifecycle(operator.node, system.check)
        for node in ('sim', 'brain'):
            with pytest.raises(LifecycleError, match=f'{node} could not configure'):
                lifecycle.bring_up([node], timeout=LONG)
            assert lifecycle.state(node, LONG) == 'unconfigured'
        words = system.last_words()
    assert "environment 'flashrt/Drawr-v0' cannot be made" in words
    assert "'/no/such/weights' is no checkpoint folder" in words
    assert '\n' not in words


def test_a_parameter_out_of_range() -> None:
    """The node does not start, and its last words name the parameter, the value and the range."""
    gate = replace(PROCESSES[0], respawn=False)
    with System([gate], {'gate': {'max_age_ticks': 99}}, free_domain()) as system:
        deadline = time.monotonic() + LONG
        with pytest.raises(SystemDied) as caught:
            while time.monotonic() < deadline:
                system.check()
                PAUSE.wait(0.05)
    message = str(caught.value)
    assert 'gate died (exit code 2)' in message
    assert 'parameter max_age_ticks' in message
    assert 'from 0 to 20' in message


RUNNER = """
import sys, time
from flashrt_ros.nodes.runner import System
from flashrt_ros.nodes.system import PROCESSES
with System([PROCESSES[0]], domain={domain}) as system:
    while 'librcl.so' not in open(f'/proc/{{system.pid("gate")}}/maps').read():
        time.sleep(0.01)
    print(system.pid('gate'), flush=True)
    sys.stdin.read()
"""


def test_nothing_outlives_a_killed_runner() -> None:
    """Kill -9 of the runner: the kernel ends its processes."""
    code = RUNNER.format(domain=free_domain())
    runner = subprocess.Popen(
        [sys.executable, '-c', code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, 'PYTHONPATH': os.environ.get('PYTHONPATH', '')},
    )
    assert runner.stdout is not None
    pid = int(runner.stdout.readline())
    assert Path(f'/proc/{pid}').exists()
    runner.send_signal(signal.SIGKILL)
    runner.wait()
    deadline = time.monotonic() + LONG
    while _alive(pid) and time.monotonic() < deadline:
        PAUSE.wait(0.05)
    assert not _alive(pid)


def _alive(pid: int) -> bool:
    try:
        text = Path(f'/proc/{pid}/stat').read_text()
    except OSError:
        return False
    return text.rpartition(')')[2].split()[0] != 'Z'


def test_the_harness_is_where_it_says() -> None:
    """The toy brain that the node tests start is a file of this folder."""
    assert (HERE / 'toy_brain.py').is_file()


def test_a_domain_in_use_is_not_drawn() -> None:
    """While somebody takes part in a domain, it is never given to another system."""
    number = free_domain()
    with Operator(number):
        assert number not in {free_domain() for _ in range(300)}
