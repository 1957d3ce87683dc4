"""The digest of a state: the same for the same bytes, however they were cut into segments.

Ropes are hashed in chunks at fixed positions. A node remembers the digests of the complete
chunks before its end, so the digest of a descendant hashes only what came after.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import torch

from flashrt_ros.capsule import host_state
from flashrt_ros.capsule.capsule import Capsule
from flashrt_ros.capsule.envelope import raw
from flashrt_ros.capsule.layout import RopeLayout
from flashrt_ros.capsule.segment import Node, Segment, Text

CHUNK = 256  # positions per digest
Fetch = Callable[[Segment], torch.Tensor]  # a segment's bytes in host memory, uint8 [nbytes]


def state_digest(capsule: Capsule, fetch: Fetch) -> str:
    """sha256 over boundary, position, fingerprint, host state and every valid byte."""
    hasher = hashlib.sha256()
    head = [capsule.boundary, capsule.position, capsule.fingerprint.digest(), capsule.host]
    hasher.update(host_state.canonical(head))
    for name, view in capsule.layout.fixed_views(fetch(capsule.fixed)).items():
        hasher.update(name.encode())
        hasher.update(raw(view))
    for layout, text in zip(capsule.layout.ropes, capsule.texts, strict=True):
        hasher.update(str(text.length).encode())
        for chunk in _chunks(layout, text, fetch):
            hasher.update(chunk)
    return hasher.hexdigest()


def read(layout: RopeLayout, text: Text, start: int, fetch: Fetch) -> dict[str, torch.Tensor]:
    """Positions [start, length) of every row of a text, by name, shaped like the buffers."""
    parts: dict[str, list[torch.Tensor]] = {row.entry.name: [] for row in layout.rows}
    for node, first, last in text.pieces(start):
        views = layout.views(fetch(node))
        for row in layout.rows:
            name = row.entry.name
            parts[name].append(views[name].narrow(row.entry.dim, first - node.begin, last - first))
    return {
        row.entry.name: torch.cat(parts[row.entry.name], dim=row.entry.dim)
        for row in layout.rows
        if parts[row.entry.name]
    }


def _chunks(layout: RopeLayout, text: Text, fetch: Fetch) -> list[bytes]:
    known = _complete(layout, text.node, fetch)[: text.length // CHUNK] if text.node else []
    return known + _hash(layout, text, len(known) * CHUNK, fetch)


def _complete(layout: RopeLayout, tip: Node, fetch: Fetch) -> list[bytes]:
    """Digests of the complete chunks of [0, tip.end)."""
    chain: list[Node] = []
    node: Segment | None = tip
    while isinstance(node, Node) and node.chunks is None:
        chain.append(node)
        node = node.parent
    for each in reversed(chain):
        parent = each.parent
        before = parent.chunks if isinstance(parent, Node) and parent.chunks is not None else []
        known = before[: each.begin // CHUNK]
        whole = Text(each, each.end // CHUNK * CHUNK).cut(each.end // CHUNK * CHUNK)
        each.chunks = known + _hash(layout, whole, len(known) * CHUNK, fetch)
    assert tip.chunks is not None
    return tip.chunks


def _hash(layout: RopeLayout, text: Text, start: int, fetch: Fetch) -> list[bytes]:
    if text.length <= start:
        return []
    tensors = read(layout, text, start, fetch)
    digests = []
    for first in range(0, text.length - start, CHUNK):
        hasher = hashlib.sha256()
        for row in layout.rows:
            name, dim = row.entry.name, row.entry.dim
            count = min(CHUNK, text.length - start - first)
            hasher.update(name.encode())
            hasher.update(raw(tensors[name].narrow(dim, first, count)))
        digests.append(hasher.digest())
    return digests
