"""Every node may be taken down to unconfigured and brought up again, and works as before."""

from __future__ import annotations

from pathlib import Path

import pytest
from harness import INSTRUCTION, LONG, looked_for, moves, toy_system
from lifecycle_msgs.msg import Transition

pytestmark = pytest.mark.xdist_group('ros')


def test_down_and_up_again(tmp_path: Path) -> None:
    """Deactivate, clean up, configure, activate: services and topics are there once, not twice."""
    folder = {'recorder': {'folder': str(tmp_path)}}
    with toy_system(folder, recorder=True) as (system, operator, lifecycle):
        operator.start(INSTRUCTION, seed=3)
        assert operator.until(operator.ticked(5), LONG)
        nodes = [p.node for p in system.processes]
        for node in reversed(nodes):
            lifecycle.change(node, Transition.TRANSITION_DEACTIVATE, LONG)
            lifecycle.change(node, Transition.TRANSITION_CLEANUP, LONG)
            assert lifecycle.state(node, LONG) == 'unconfigured'
        lifecycle.bring_up(nodes, LONG)
        node = operator.node

        def readers() -> list[str]:
            found = node.get_subscriptions_info_by_topic('/robot/images/front')
            return sorted(p.node_name for p in found)

        for topic in ('/brain/command', '/gate/command', '/robot/state'):
            assert looked_for(operator, lambda t=topic: node.count_publishers(t) == 1)
        assert looked_for(operator, lambda: readers() == ['brain', 'recorder'])
        start = operator.start(INSTRUCTION, seed=3)
        assert moves(operator, start.epoch)
        chunks = [m.tick for _, m in operator.record.chunks if m.epoch == start.epoch]
        assert len(chunks) == len(set(chunks))
