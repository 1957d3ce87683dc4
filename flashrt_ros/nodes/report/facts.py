"""The figures of a recording, in the words and units of the page."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np

from flashrt_ros.control import episode
from flashrt_ros.nodes.demo.figures import control_rate
from flashrt_ros.nodes.demo.story import Told
from flashrt_ros.nodes.report.read import Recording


def told(recording: Recording) -> Told:
    """Return the recording as the demo's timeline takes it."""
    record = recording.record
    it = Told(record)
    marks = {episode.INTERRUPTED: 'interrupted_at', episode.RECOVERING: 'resumed_at'}
    numbers: list[int] = []
    for at, msg in record.episodes:
        it.instruction = msg.instruction or it.instruction
        if msg.episode not in numbers and msg.state == episode.RUNNING:
            numbers.append(msg.episode)
            it.epochs.append(msg.epoch)
        name = marks.get(msg.state)
        if name is not None and getattr(it, name) is None:
            setattr(it, name, at)
    return it


def summary(recording: Recording, it: Told) -> dict[str, Any]:
    """Return the figures."""
    record = recording.record
    rate, gaps = control_rate(it)
    last: dict[int, Any] = {}
    for _, msg in record.states:
        last[msg.episode] = msg
    ends = [msg for number, msg in last.items() if number]
    inference = np.array([m.inference_ms for _, m in record.chunks])
    done = [m.text for _, m in record.subgoals if m.status == 'done']
    outcome = next((m.outcome or m.state for _, m in reversed(record.episodes)), 'unknown')
    return {
        'instruction': it.instruction,
        'outcome': outcome,
        'reason': next((m.reason for _, m in reversed(record.episodes)), ''),
        'control_hz': rate,
        'tick_gap_p99_ms': _percentile(gaps * 1e3, 99),
        'ticks': sum(m.tick for m in ends),
        'missed_ticks': sum(m.missed_ticks for m in ends),
        'chunks': len(record.chunks),
        'late_chunks': sum(m.late for _, m in record.chunks),
        'inference_ms': {'p50': _percentile(inference, 50), 'p99': _percentile(inference, 99)},
        'reentry_ms': _apart(it.resumed_at, _moved(record, it.resumed_at)),
        'subgoals_done': done,
        'seconds': record.states[-1][0] - record.states[0][0],
    }


def holds(recording: Recording) -> list[tuple[str, int]]:
    """Return why the gate held, and for how many commands, most frequent first."""
    reasons = Counter(m.reason for _, m in recording.record.sent if m.held)
    return reasons.most_common(12)


def events(recording: Recording, zero: float) -> list[tuple[float, str, str]]:
    """Return what happened: seconds since ``zero``, what kind, in words."""
    found = [
        (at - zero, 'episode', f'{m.state} (epoch {m.epoch}): {m.reason}')
        for at, m in recording.record.episodes
    ]
    found += [
        (at - zero, 'subgoal', f'{m.status}: “{m.text}” (generation {m.generation})')
        for at, m in recording.record.subgoals
        if m.status != 'live'
    ]
    return sorted(found)


def nodes(recording: Recording) -> list[dict[str, Any]]:
    """Return the last statistics of each node."""
    last: dict[str, Any] = {}
    for _, msg in recording.stats:
        last[msg.node] = msg
    return [
        {
            'node': name,
            'rate_hz': msg.rate_hz,
            'lateness_p99_ms': _number(msg.lateness_p99_ms),
            'lateness_max_ms': _number(msg.lateness_max_ms),
            'inference_p99_ms': _number(msg.inference_p99_ms),
            'capsules': msg.capsules,
            'capsule_mib': msg.capsule_bytes / 2**20,
            'refused': ', '.join(
                f'{reason} {count}' for reason, count in zip(msg.reasons, msg.counts, strict=True)
            ),
        }
        for name, msg in sorted(last.items())
    ]


def _moved(record: Any, since: float | None) -> float | None:
    if since is None:
        return None
    return next((at for at, m in record.sent if at >= since and not m.held), None)


def _apart(begin: float | None, end: float | None) -> float | None:
    return None if begin is None or end is None else (end - begin) * 1e3


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _percentile(values: Any, q: float) -> float | None:
    return float(np.percentile(values, q)) if len(values) else None
