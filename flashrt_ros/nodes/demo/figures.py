"""The demo's figures, from what the operator recorded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from flashrt_ros.nodes.convert import key
from flashrt_ros.nodes.demo.story import Told, done


@dataclass(frozen=True)
class Moment:
    """One tick of an episode, as bytes: the command for it and the world before it."""

    command: bytes
    world: bytes


def moments(told: Told, number: int) -> dict[int, Moment]:
    """Return the ticks of episode ``number`` in its first epoch (up to an interrupt)."""
    if len(told.epochs) < number:
        return {}
    epoch = told.epochs[number - 1]
    commands: dict[int, bytes] = {}
    for _, m in told.record.sent:
        if m.episode == number and m.epoch == epoch and m.tick >= 0:
            words = f'|{m.generation}|{m.held}|{m.reason}'.encode()
            commands.setdefault(m.tick, np.array(m.action, np.float32).tobytes() + words)
    worlds = {
        m.tick: bytes(m.simulator_state) + np.array(m.proprioception, np.float32).tobytes()
        for _, m in told.record.states
        if m.episode == number and m.epoch == epoch
    }
    return {t: Moment(commands[t], worlds[t]) for t in commands if t in worlds}


def compare(told: Told) -> dict[str, Any]:
    """Compare commands and worlds of both episodes, byte for byte, up to the interrupt."""
    end = hold_tick(told)
    if end is None or len(told.epochs) < 2:
        return {'compared_ticks': 0, 'identical': False, 'first_difference': None}
    one, two = moments(told, 1), moments(told, 2)
    differing = [t for t in range(end) if t not in one or one[t] != two.get(t)]
    return {
        'compared_ticks': end,
        'identical': end > 0 and not differing,
        'first_difference': differing[0] if differing else None,
    }


def disturbed(told: Told) -> str:
    """Return in words what this machine did not do in time; empty when it kept up."""
    missed = sum(m.missed_ticks for m in last_states(told))
    late = sum(m.late for _, m in told.record.chunks)
    found = [f'{missed} ticks missed'] if missed else []
    if told.acknowledged_at is None and any(m.outcome for _, m in told.record.episodes):
        found.append('the interrupt came after the end')
    found += [f'{late} chunks late'] if late else []
    return ', '.join(found)


def hold_tick(told: Told) -> int | None:
    """Return the tick at which the robot applied the interrupt's hold; None without one."""
    if told.ack_ticks is None:
        return None
    for _, m in told.record.states:
        if m.episode == 1 and m.applied_epoch >= told.interrupt_epoch:
            return int(m.applied_tick)
    return None


def old_actions(told: Told) -> int | None:
    """Count what was sent or applied of an epoch before the interrupt's, after the answer."""
    if told.acknowledged_ns is None:
        return None
    # By their own stamps: when a message reached this process says nothing of the robot.
    after = told.acknowledged_ns
    sent = [m for _, m in told.record.sent if key(m.header.stamp) > after]
    applied = [m for _, m in told.record.states if key(m.header.stamp) > after]
    return sum(m.epoch < told.interrupt_epoch and not m.held for m in sent) + sum(
        m.applied_epoch < told.interrupt_epoch for m in applied
    )


def control_rate(told: Told) -> tuple[float, np.ndarray]:
    """Return ticks per second, and the seconds between ticks, over all ticks carried out."""
    gaps: list[float] = []
    before: Any = None
    for _, m in told.record.states:
        if (
            before is not None
            and m.episode == before.episode > 0
            and m.tick == before.tick + 1
            and m.tick > 1
        ):
            gaps.append((key(m.header.stamp) - key(before.header.stamp)) * 1e-9)
        before = m
    values = np.array(gaps)
    return (float(len(gaps) / values.sum()) if gaps else 0.0), values


def last_states(told: Told) -> list[Any]:
    """Return the last state of each episode."""
    last: dict[int, Any] = {}
    for _, m in told.record.states:
        if m.episode:
            last[m.episode] = m
    return [last[n] for n in sorted(last)]


def percentile(values: Any, q: float) -> float | None:
    """Return a percentile, rounded to microseconds; None of nothing."""
    return round(float(np.percentile(values, q)), 3) if len(values) else None


def summarise(told: Told) -> dict[str, Any]:
    """Return ``summary.json``."""
    rate, gaps = control_rate(told)
    ends = last_states(told)
    inference = [m.inference_ms for _, m in told.record.chunks]
    second = told.epochs[1] if len(told.epochs) > 1 else 1 << 62
    epochs = {m.epoch for _, m in told.record.subgoals}
    first = {e for e in epochs if e < second}
    replay = compare(told)
    lateness = np.abs(gaps - np.median(gaps)) * 1e3 if len(gaps) else gaps

    def judged(within: set[int]) -> list[dict[str, Any]]:
        return [
            {'text': text, 'success': done(told.record, within, text, index)}
            for index, text in enumerate(told.plan)
        ]

    return {
        'instruction': told.instruction,
        'control_hz': round(rate, 3),
        'ticks': int(sum(m.tick for m in ends)),
        'missed_ticks': int(sum(m.missed_ticks for m in ends)),
        'inference_ms': {'p50': percentile(inference, 50), 'p99': percentile(inference, 99)},
        'late_chunks': int(sum(m.late for _, m in told.record.chunks)),
        'tick_jitter_ms': {'p50': percentile(lateness, 50), 'p99': percentile(lateness, 99)},
        'subgoals': judged(first),
        'interrupt': {
            'tick': hold_tick(told),
            'ack_ticks': told.ack_ticks,
            'ack_ms': _span(told.interrupted_at, told.acknowledged_at),
            'old_actions_after_ack': old_actions(told),
        },
        'reentry_ms': _rounded(told.reentry_ms),
        'reset_ms': _rounded(told.reset_ms),
        'replay': replay,
        'second_episode': {'subgoals': judged(epochs - first), 'ticks': _ticks(ends, 2)},
        'outcomes': told.outcomes,
        'trouble': told.trouble,
    }


def verdict(summary: dict[str, Any]) -> list[str]:
    """Return what did not hold; empty when the demo is a success."""
    wrong = list(summary['trouble'])
    for goal in summary['subgoals']:
        if not goal['success']:
            wrong.append(f'episode 1 did not reach "{goal["text"]}"')
    stop = summary['interrupt']
    if stop['ack_ticks'] is None or stop['ack_ticks'] > 1:
        wrong.append(f'the interrupt took {stop["ack_ticks"]} ticks; it must take at most 1')
    if stop['old_actions_after_ack'] != 0:
        wrong.append(f'{stop["old_actions_after_ack"]} old actions after the acknowledgement')
    replay = summary['replay']
    if not replay['identical']:
        at = replay['first_difference']
        missed = (
            f' ({summary["missed_ticks"]} ticks were missed)' if summary['missed_ticks'] else ''
        )
        wrong.append(
            f'episode 2 differs from episode 1 at tick {at}{missed}'
            if at is not None
            else 'the episodes could not be compared'
        )
    return wrong


def _span(begin: float | None, end: float | None) -> float | None:
    return None if begin is None or end is None else round((end - begin) * 1e3, 3)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(float(value), 3)


def _ticks(ends: list[Any], number: int) -> int | None:
    return next((int(m.tick) for m in ends if m.episode == number), None)
