"""How each node's loop is doing: once a second, as LoopStats and on /diagnostics.

Every node says the same things in the same words, so one Foxglove panel or one `rqt_robot_monitor`
shows a whole robot.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue

from flashrt_interfaces.msg import LoopStats
from flashrt_ros.nodes import names, qos

PERIOD = 1.0  # seconds
HIDDEN = {'header', 'node', 'reasons', 'counts'}  # fields of LoopStats that are no figures
UNMEASURED = (
    'lateness_p50_ms', 'lateness_p99_ms', 'lateness_max_ms', 'inference_p50_ms',
    'inference_p99_ms',
)  # fmt: skip


class Telemetry:
    """Publishes what a node's `figures` fills in.

    Args:
        node: A `Managed` node.
    """

    def __init__(self, node: Any) -> None:
        self._node = node
        self._before = (time.monotonic(), 0)  # when the last figures went out, ticks by then
        self._warned = 0  # what had been missed or refused by then
        self._stats = node.create_publisher(LoopStats, names.STATS, qos.TELEMETRY)
        self._diagnostics = node.create_publisher(DiagnosticArray, names.DIAGNOSTICS, qos.STATE)
        node.create_timer(PERIOD, self.tell)

    def tell(self) -> None:
        """Publish the figures of now."""
        node = self._node
        msg = LoopStats(node=node.get_name())
        for name in UNMEASURED:
            setattr(msg, name, math.nan)
        msg.header.stamp = node.get_clock().now().to_msg()
        msg.episode, msg.epoch = node.stamp()
        trouble = node.figures(msg) if node.ready else ''
        now = time.monotonic()
        then, ticks = self._before
        msg.window_s = now - then
        msg.rate_hz = max(0, msg.ticks - ticks) / max(msg.window_s, 1e-9)
        self._before = (now, msg.ticks)
        self._stats.publish(msg)
        self._diagnostics.publish(self._words(msg, trouble))

    def _words(self, msg: LoopStats, trouble: str) -> DiagnosticArray:
        bad = msg.missed_ticks + sum(msg.counts)
        fresh, self._warned = bad > self._warned, bad
        status = DiagnosticStatus(
            level=DiagnosticStatus.OK,
            name=f'{self._node.get_fully_qualified_name()}: loop',
            message='well' if self._node.active else 'not active',
            hardware_id=self._node.get_namespace(),
            values=[KeyValue(key=k, value=v) for k, v in figures(msg).items()],
        )
        if not self._node.active or fresh:
            status.level = DiagnosticStatus.WARN
        if fresh:
            status.message = 'ticks missed, or something refused, in the last second'
        if trouble:
            status.level, status.message = DiagnosticStatus.ERROR, trouble
        array = DiagnosticArray(status=[status])
        array.header.stamp = msg.header.stamp
        return array


def figures(msg: LoopStats) -> Mapping[str, str]:
    """Return the figures of a message in words; what was not measured is left out."""
    found = {}
    for name in msg.get_fields_and_field_types():
        value = getattr(msg, name)
        if name not in HIDDEN and not (isinstance(value, float) and math.isnan(value)):
            found[name] = f'{value:.2f}' if isinstance(value, float) else str(value)
    for reason, count in zip(msg.reasons, msg.counts, strict=True):
        found[f'refused: {reason}'] = str(count)
    return found


def tell_counts(msg: LoopStats, counts: Mapping[str, int]) -> None:
    """Put counters into ``msg``; those that are zero are left out."""
    kept = {reason: count for reason, count in counts.items() if count}
    msg.reasons, msg.counts = list(kept), list(kept.values())
