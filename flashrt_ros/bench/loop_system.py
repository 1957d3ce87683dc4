"""A whole robot for `flashrt bench loop`: started, driven, loaded, interrupted, killed."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from flashrt_ros.errors import FlashrtError
from flashrt_ros.nodes.convert import key
from flashrt_ros.nodes.judging import RULES
from flashrt_ros.nodes.lifecycle import Lifecycle
from flashrt_ros.nodes.operator import Operator
from flashrt_ros.nodes.runner import System, free_domain
from flashrt_ros.nodes.system import processes

HZ = 50.0
GRACE_S = 0.002  # a command that is late makes no later tick late
# Ticks from an observation to its chunk: 160 ms, for a chunk of 100 ms on one core; 40 ms where a
# GPU takes a tenth of that.
DELAY = {'cpu': 8, 'cuda': 2}
WORLD = 'flashrt_ros.bench.loop_world:Loop-v0'
INSTRUCTION = 'open the drawer, then close it'
ENDLESS = 10**7  # ticks


class Robot:
    """A robot at `HZ` whose episode never ends by itself."""

    def __init__(self, system: System, operator: Operator, lifecycle: Lifecycle) -> None:
        self.system, self.operator, self.lifecycle = system, operator, lifecycle

    def start(self) -> None:
        """Begin an episode and wait for its first action."""
        epoch = self.operator.start(INSTRUCTION).epoch
        self.moves(epoch)

    def moves(self, epoch: int, timeout: float = 60.0) -> None:
        """Wait until an action of ``epoch`` has gone through the gate."""
        record = self.operator.record
        if not self.operator.until(
            lambda: any(m.epoch == epoch and not m.held for _, m in record.sent[-5:]), timeout
        ):
            raise FlashrtError(f'no action of epoch {epoch} within {timeout:.0f} s')

    def forget(self) -> None:
        """Drop what was recorded, so that ten minutes fit into memory."""
        record = self.operator.record
        for heard in (record.states, record.sent, record.chunks, record.subgoals):
            del heard[:-100]

    def run(self, seconds: float) -> tuple[int, int, list[bool]]:
        """Let it run; return the ticks passed and missed, and of each chunk: was it late."""
        state = self.operator.state
        assert state is not None
        tick, missed = state.tick, state.missed_ticks
        chunks, late = self.operator.record.chunks, []
        chunks.clear()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.operator.until(lambda: False, min(1.0, max(0.0, end - time.monotonic())))
            self.system.check()
            late += [m.late for _, m in chunks]
            chunks.clear()
            self.forget()
        state = self.operator.state or state
        return state.tick - tick, state.missed_ticks - missed, late


@contextmanager
def robot(device: str, lateness: Path | None = None) -> Iterator[Robot]:
    """Run the demo's processes over `loop_world`; the lateness of every tick goes to a file.

    Raises:
        FlashrtError: What went wrong, and the last error of every node.
    """
    domain = free_domain()
    overrides: dict[str, dict[str, Any]] = {
        'gate': {'realtime_priority': 30},
        'sim': {
            'env': WORLD,
            'control_hz': HZ,
            'grace_s': GRACE_S,
            'publish_state': False,
            'realtime_priority': 20,
        },
        'brain': {
            'device': device,
            'delay': DELAY[device.partition(':')[0]],
            'planner': RULES,  # the planner has a benchmark of its own
            'subgoal_max_ticks': 0,
            'realtime_priority': 10,
        },
        'supervisor': {'episode_max_ticks': ENDLESS, 'realtime_priority': 15},
    }
    if lateness is not None:
        overrides['sim']['lateness_file'] = str(lateness)
    with System(processes(), overrides, domain) as system, Operator(domain) as operator:
        lifecycle = Lifecycle(operator.node, system.check)
        try:
            lifecycle.bring_up([p.node for p in system.processes])
            yield Robot(system, operator, lifecycle)
        except FlashrtError as error:
            raise FlashrtError(f'{error}; {system.last_words() or "no node says why"}') from error


@contextmanager
def one_core_loaded() -> Iterator[None]:
    """Keep one core busy with a process of ordinary priority."""
    core = max(os.sched_getaffinity(0))
    code = f'import os; os.sched_setaffinity(0, {{{core}}})\nwhile True: pass'
    busy = subprocess.Popen([sys.executable, '-c', code])
    try:
        yield
    finally:
        busy.kill()
        busy.wait()


def lateness(device: str, seconds: float, loaded: bool) -> tuple[np.ndarray, int, list[bool]]:
    """Return each tick's lateness in ms, the ticks missed, and of each chunk: was it late."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / 'lateness.npy'
        with robot(device, file) as it:
            it.start()
            first = it.operator.state
            assert first is not None
            with one_core_loaded() if loaded else nullcontext():
                ticks, missed, late = it.run(seconds)
        return np.load(file)[-ticks:], missed, late


def interrupts(it: Robot, count: int, log: Callable[[str], None], seed: int = 0) -> dict:
    """Interrupt at random phases, and re-enter; return what was counted."""
    rng = random.Random(seed)
    operator, record = it.operator, it.operator.record
    found: dict = {'old': 0, 'ack_ticks': [], 'ack_ms': [], 'reentry_ms': []}
    for number in range(count):
        operator.until(lambda: False, rng.uniform(0.0, 2.0 / HZ))
        began = time.monotonic()
        answer = operator.interrupt('bench')
        at = time.time_ns()
        found['ack_ms'].append((time.monotonic() - began) * 1e3)
        found['ack_ticks'].append(answer.ack_ticks)
        seen = len(record.states) + 2
        operator.until(partial(_more_than, record.states, seen), 5.0)
        # By their own stamps: when a message reached this process says nothing of the robot.
        sent = [m for _, m in record.sent if key(m.header.stamp) > at]
        states = [m for _, m in record.states if key(m.header.stamp) > at]
        found['old'] += sum(m.epoch < answer.epoch and not m.held for m in sent)
        found['old'] += sum(m.applied_epoch < answer.epoch for m in states)
        found['reentry_ms'].append(operator.resume().reentry_ms)
        it.system.check()
        it.forget()
        if number % 100 == 99:
            log(f'{number + 1} interrupts')
    return found


def _more_than(heard: list, count: int) -> bool:
    return len(heard) > count


def cold_restart(it: Robot) -> float:
    """Kill the brain, start it again, and return the ms from there to its first action."""
    it.system.kill('brain')
    began = time.monotonic()
    it.system.restart('brain')
    it.lifecycle.bring_up(['brain'])
    it.operator.until(
        lambda: it.operator.episode is not None and it.operator.episode.state == 'fault', 10.0
    )
    it.moves(it.operator.start(INSTRUCTION).epoch)
    return (time.monotonic() - began) * 1e3


def gate_start() -> float:
    """Return the ms from the start of the gate's process to the gate on guard."""
    domain = free_domain()
    gate = [p for p in processes() if p.node == 'gate']
    with Operator(domain) as operator:
        lifecycle = Lifecycle(operator.node, patience=0.1)  # an answer to a stranger can be lost
        began = time.monotonic()
        with System(gate, domain=domain):
            while lifecycle.state('gate') != 'active':
                pass
            return (time.monotonic() - began) * 1e3
