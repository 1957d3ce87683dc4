"""Every node may be taken down to unconfigured and brought up again, and works as before."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import INSTRUCTION, toy_system
from lifecycle_msgs.msg import Transition

pytestmark = pytest.mark.xdist_group('ros')


def test_down_and_up_again(tmp_path: Path) -> None:
    """Deactivate, clean up, configure, activate: services and topics are there once, not twice."""
    folder = {'recorder': {'folder': str(tmp_path)}}
    with toy_system(folder, recorder=True) as (system, operator, lifecycle):
        operator.start(INSTRUCTION, seed=3)
        assert operator.until(operator.ticked(5), 20.0)
        nodes = [p.node for p in system.processes]
        for node in reversed(nodes):
            lifecycle.change(node, Transition.TRANSITION_DEACTIVATE, 20.0)
            lifecycle.change(node, Transition.TRANSITION_CLEANUP, 20.0)
            assert lifecycle.state(node) == 'unconfigured'
        lifecycle.bring_up(nodes)
        node = operator.node
        assert operator.until(lambda: operator.episode is not None, 20.0)
        for topic in ('/brain/command', '/gate/command', '/robot/state'):
            assert node.count_publishers(topic) == 1
        readers = [
            p.node_name for p in node.get_subscriptions_info_by_topic('/robot/images/front')
        ]
        assert sorted(readers) == ['brain', 'recorder']
        start = operator.start(INSTRUCTION, seed=3)
        assert operator.until(
            lambda: any(
                m.epoch == start.epoch and not m.held for _, m in operator.record.sent[-20:]
            ),
            30.0,
        )
        chunks = [m.tick for _, m in operator.record.chunks if m.epoch == start.epoch]
        assert len(chunks) == len(set(chunks))
