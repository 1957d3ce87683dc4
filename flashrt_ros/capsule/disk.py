"""Disk: capsules to files and back. What a file says is compared with the live closure."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from flashrt_ros.capsule import envelope, host_state
from flashrt_ros.capsule.capsule import Capsule
from flashrt_ros.capsule.digest import Fetch
from flashrt_ros.capsule.errors import (
    CapsuleError,
    FingerprintError,
    HostStateError,
    StoreError,
)
from flashrt_ros.capsule.fingerprint import Fingerprint
from flashrt_ros.capsule.layout import Layout
from flashrt_ros.capsule.segment import Node, Segment, Text
from flashrt_ros.capsule.store import DiskStore

if TYPE_CHECKING:
    from flashrt_ros.capsule.registry import Registry

Expected = dict[str, tuple[torch.dtype, tuple[int, ...]]]


class Disk:
    """The disk tier of one registry.

    Args:
        store: the folder.
    """

    def __init__(self, store: DiskStore) -> None:
        self.store = store
        # Nodes read from disk, by parent and file: capsules of one lineage share them again.
        self._nodes: weakref.WeakValueDictionary[tuple[int, str], Node] = (
            weakref.WeakValueDictionary()
        )

    def write(self, capsule: Capsule, digest: str, fetch: Fetch) -> None:
        """Commit a capsule and those of its segments that are not there yet."""
        files: dict[str, envelope.Parts] = {}
        ropes: list[list[list[Any]]] = []
        for index, text in enumerate(capsule.texts):
            rows: list[list[Any]] = []
            for node, _, last in text.pieces():
                if node.file is None or not self.store.has(node.file, 'segment'):
                    views = capsule.layout.ropes[index].views(fetch(node))
                    node.file, data = envelope.pack(
                        'segment', {'begin': node.begin}, views, self.store.key
                    )
                    files[node.file] = data
                rows.append([node.file, node.begin, node.end, last])
            ropes.append(rows)
        header = {
            'digest': digest,
            'boundary': capsule.boundary,
            'position': capsule.position,
            'created': capsule.created,
            'parent': _stored_parent(capsule),
            'fingerprint': capsule.fingerprint.fields,
            'schema': capsule.layout.schema,
            'lengths': list(capsule.lengths),
            'ropes': ropes,
            'host': host_state.encode(capsule.host),
            'nbytes': capsule.nbytes,
        }
        fixed = capsule.layout.fixed_views(fetch(capsule.fixed))
        _, data = envelope.pack('capsule', header, fixed, self.store.key)
        self.store.commit(files, digest, data)
        capsule.file = digest

    def open_all(
        self,
        known: Mapping[str, Capsule],
        registry: Registry,
        layout: Layout,
        fingerprint: Fingerprint,
    ) -> tuple[list[Capsule], dict[str, str]]:
        """Every stored capsule that is not among `known`, and why others could not be opened."""
        found, above, refused = dict(known), {}, {}
        for name in self.store.names('capsule'):
            if name not in known:
                try:
                    found[name], above[name] = self.open(name, registry, layout, fingerprint)
                except (StoreError, FingerprintError) as error:
                    refused[name] = str(error)
        for name, parent in above.items():
            if parent is not None and parent in found:
                found[name].lineage.parent = found[parent].lineage
        return [found[name] for name in above], refused

    def open(
        self, name: str, registry: Registry, layout: Layout, fingerprint: Fingerprint
    ) -> tuple[Capsule, str | None]:
        """A capsule from the header of its file, and the stored ancestor that it names.

        Its bytes stay on disk; they are checked when they are read.

        Raises:
            StoreError: the file is not what it must be.
            FingerprintError: it belongs to another deployment.
        """
        header = self.store.header(name, 'capsule')
        try:
            Fingerprint(header['fingerprint']).require(fingerprint, f'capsule {name[:12]}')
            if header['schema'] != layout.schema:
                raise StoreError('names other entries than the closure')
            texts = tuple(
                self._text(index, rows, length, layout)
                for index, (rows, length) in enumerate(
                    zip(header['ropes'], header['lengths'], strict=True)
                )
            )
            if len(texts) != len(layout.ropes):
                raise StoreError(f'has {len(texts)} ropes, the closure {len(layout.ropes)}')
            capsule = Capsule(
                registry,
                layout,
                fingerprint,
                str(header['boundary']),
                int(header['position']),
                host_state.decode(header['host']),
                Segment(layout.fixed_bytes),
                texts,
                None,
                float(header['created']),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise StoreError(
                f'{self.store.path / name}.capsule has an unreadable header ({error}); remove it'
            ) from error
        except (StoreError, HostStateError) as error:
            raise StoreError(f'{self.store.path / name}.capsule {error}') from None
        capsule.file = name
        capsule._digest = name
        parent = header.get('parent')
        return capsule, parent if isinstance(parent, str) else None

    def _text(self, rope: int, rows: list[list[Any]], length: int, layout: Layout) -> Text:
        node: Node | None = None
        reached = 0
        for file, begin, end, last in rows:
            if not (begin == reached < last <= end and all(type(n) is int for n in (end, last))):
                raise StoreError('names segments that do not fit together')
            reached = last
            key = (id(node), str(file))  # a node keeps its parent, so the id stays its own
            known = self._nodes.get(key)
            if known is None or (known.begin, known.end) != (begin, end):
                known = Node(node, begin, end, layout.ropes[rope].stride, rope)
                known.file = str(file)
                self._nodes[key] = known
            node = known
        if reached != length:
            raise StoreError(f'has segments for {reached} of {length} positions')
        return Text(node, length)

    def load(self, capsule: Capsule, segment: Segment) -> dict[str, torch.Tensor]:
        """A segment's tensors from its file, by name, checked against the live closure.

        Raises:
            StoreError: the file is not what it must be.
        """
        layout = capsule.layout
        if segment is capsule.fixed and capsule.file is not None:
            file, kind = capsule.file, 'capsule'
            views = layout.fixed
            expected: Expected = {layout.label(b): (b.dtype, b.shape) for b, _ in views}
        elif isinstance(segment, Node) and segment.file is not None:
            file, kind = segment.file, 'segment'
            expected = {}
            for row in layout.ropes[segment.rope].rows:
                shape = list(row.entry.buffer.shape)
                shape[row.entry.dim] = segment.end - segment.begin
                expected[row.entry.name] = (row.entry.buffer.dtype, tuple(shape))
        else:
            raise CapsuleError(f'{capsule!r} has a segment that is nowhere')
        _, payload = self.store.read(file, kind)
        try:
            tensors: dict[str, torch.Tensor] = envelope.tensors(payload, expected)
        except StoreError as error:
            raise StoreError(f'{self.store.path / file}.{kind} {error}') from None
        return tensors


def _stored_parent(capsule: Capsule) -> str | None:
    place = capsule.lineage.parent
    while place is not None:
        above = place.capsule
        if above is not None and above.file is not None:
            return above.file
        place = place.parent
    return None
