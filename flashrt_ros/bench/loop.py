"""`flashrt bench loop`: gate, brain with the shipped policy, and supervisor at 50 Hz over ROS 2.

The robot is a stand-in that costs nothing to simulate (`loop_world`); everything else is real.
Gate, robot, supervisor and the brain's executor ask for real-time priority, and go on without it.
Missed ticks and lateness, idle and with one core loaded; hand-offs of subgoals; interrupts at
random phases; warm re-entry, of the robot and of the brain alone, beside a cold restart; how fast
the gate is on guard.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import numpy as np

from flashrt_ros.bench import loop_brain, loop_handoff
from flashrt_ros.bench.report import Keep, Row

PEERS = ('cold-restart',)
OPTIONS = ('seconds', 'keep')
FULL_S = 600.0  # seconds for which the figures are meant
HANDOFFS = 10_000
INTERRUPTS = 1000  # of a full run; a shorter one has fewer in proportion
GATES = 5
BRAIN_RUNS = 30


def measure(
    device: str,
    peers: Sequence[str],
    log: Callable[[str], None],
    seconds: float = 60.0,
    keep: Keep = lambda rows: None,
) -> list[Row]:
    """Measure everything; ``seconds`` is how long the robot runs idle (a sixth of it loaded).

    ``keep`` is given the rows whenever there are more. Where there is no ROS 2 only what needs
    none is measured: hand-offs, and the brain's own way back.
    """
    rows: list[Row] = []

    def more(found: Sequence[Row]) -> None:
        rows.extend(found)
        keep(rows)

    more(handoff_rows(device, log))
    more(brain_rows(device, peers, log))
    try:
        from flashrt_ros.bench import loop_system
    except ImportError as error:
        log(f'no ROS 2 here ({error}): the rest is left out')
        return rows
    more([timing('gate on guard', [loop_system.gate_start() for _ in range(GATES)])])
    for loaded in (False, True):
        span = seconds / 6 if loaded else seconds
        name = 'loaded' if loaded else 'idle'
        log(f'control at {loop_system.HZ:.0f} Hz, {name}, {span:.0f} s')
        more(lateness_rows(name, *loop_system.lateness(device, span, loaded)))
    count = max(5, min(INTERRUPTS, round(INTERRUPTS * seconds / FULL_S)))
    with loop_system.robot(device) as robot:
        robot.start()
        log(f'{count} interrupts')
        more(interrupt_rows(loop_system.interrupts(robot, count, log)))
        if 'cold-restart' in peers:
            log('cold restart of the brain')
            rows[-1].peers['cold-restart'] = round(loop_system.cold_restart(robot), 1)
    return rows


def handoff_rows(device: str, log: Callable[[str], None]) -> list[Row]:
    """Hand-offs torn and lost."""
    log(f'{HANDOFFS} hand-offs')
    found = loop_handoff.run(device, HANDOFFS)
    spread: dict[str, float] = {'runs': found.posted, 'replays': found.replays}
    return [
        Row('handoff torn', found.torn, 'count', spread=spread),
        Row('handoff lost', found.lost, 'count', spread=spread),
    ]


def brain_rows(device: str, peers: Sequence[str], log: Callable[[str], None]) -> list[Row]:
    """Back to a capsule and on to the next chunk, beside a start from nothing."""
    log(f'{BRAIN_RUNS} re-entries of the brain alone')
    row = timing('re-entry of the brain', loop_brain.warm(device, BRAIN_RUNS))
    if 'cold-restart' in peers:
        row.peers['cold-restart'] = round(statistics.median(loop_brain.cold(device)), 1)
    return [row]


def lateness_rows(name: str, lateness: np.ndarray, missed: int, late: Sequence[bool]) -> list[Row]:
    """Missed ticks, late chunks, and percentiles of the lateness [ticks] in ms."""
    ticks = len(lateness)
    rows = [
        Row(f'missed ticks {name}', missed, 'count', spread={'runs': ticks}),
        Row(f'late chunks {name}', sum(late), 'count', spread={'runs': len(late)}),
    ]
    for word, percent in (('p50', 50), ('p99', 99), ('p99.9', 99.9), ('max', 100)):
        value = round(float(np.percentile(lateness, percent)), 3)
        rows.append(Row(f'lateness {word} {name}', value, 'ms', spread={'runs': ticks}))
    return rows


def interrupt_rows(found: dict) -> list[Row]:
    """Old actions after the acknowledgement, ticks to it, and the way back."""
    runs: dict[str, float] = {'runs': len(found['ack_ticks'])}
    return [
        Row('interrupt old actions', found['old'], 'count', spread=runs),
        Row('interrupt ticks to the answer', max(found['ack_ticks']), 'ticks', spread=runs),
        timing('interrupt answered', found['ack_ms']),
        timing('re-entry to first action', found['reentry_ms']),
    ]


def timing(work: str, samples: Sequence[float]) -> Row:
    """The median of samples in ms, with p99 and the maximum."""
    spread = {
        'p50': round(statistics.median(samples), 2),
        'p99': round(float(np.percentile(samples, 99)), 2),
        'max': round(max(samples), 2),
        'runs': len(samples),
    }
    return Row(work, spread['p50'], 'ms', spread=spread)
