"""Who publishes on a topic: a robot must never be told two things at once."""

from __future__ import annotations

import time
from typing import Any

UNKNOWN = '_NODE_NAME_UNKNOWN_'  # what rclpy calls a publisher without a node
GHOST_S = 12.0  # a killed process is still listed for as long as its lease, `config/fastdds.xml`


class Rivals:
    """Looks for a second publisher of a topic.

    Args:
        node: Who looks.
        topic: As the node names it.
        ghost_s: Seconds for which a second publisher of the same name, or of none, passes for
            what is left of a killed process.
    """

    def __init__(self, node: Any, topic: str, ghost_s: float = 0.0) -> None:
        self._node, self._topic, self._ghost_s = node, topic, ghost_s
        self._since: float | None = None  # when there began to be more than one

    def look(self) -> str:
        """Return what is wrong, in a sentence; '' if nothing is."""
        if self._node.count_publishers(self._topic) < 2:
            self._since = None
            return ''
        found = self._node.get_publishers_info_by_topic(self._node.resolve_topic_name(self._topic))
        who = sorted(f'{p.node_namespace.rstrip("/")}/{p.node_name}' for p in found)
        known = [name for name in who if UNKNOWN not in name]
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        ghost = len(set(known)) < 2 and now - self._since < self._ghost_s
        if len(who) < 2 or ghost:
            return ''
        names = known + ['one without a node'] * (len(who) - len(known))
        return f'{self._topic} has {len(names)} publishers ({", ".join(names)}); it must have one'
