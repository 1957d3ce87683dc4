"""Who publishes on a topic: a robot must never be told two things at once."""

from __future__ import annotations

from typing import Any


def rivals(node: Any, topic: str) -> str:
    """Return what is wrong when more than one node publishes on ``topic``; '' if nothing is."""
    if node.count_publishers(topic) < 2:
        return ''
    name = node.resolve_topic_name(topic)
    found = node.get_publishers_info_by_topic(name)
    who = sorted(f'{p.node_namespace.rstrip("/")}/{p.node_name}' for p in found)
    if len(who) < 2:
        return ''
    return f'{topic} has {len(who)} publishers ({", ".join(who)}); it must have one'
