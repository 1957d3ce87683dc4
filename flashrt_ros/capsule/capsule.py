"""Capsule: what a robot brain was at one moment. Immutable; made by `Session.snapshot`."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from flashrt_ros.capsule.errors import EvictedError
from flashrt_ros.capsule.fingerprint import Fingerprint
from flashrt_ros.capsule.layout import Layout
from flashrt_ros.capsule.segment import TIERS, Segment, Text

if TYPE_CHECKING:
    from flashrt_ros.capsule.registry import Registry
    from flashrt_ros.capsule.session import Session


class Lineage:
    """A place in the family tree; it outlives the capsule's bytes, and holds no others' alive."""

    __slots__ = ('_capsule', 'parent')

    def __init__(self, capsule: Capsule, parent: Lineage | None) -> None:
        self._capsule: weakref.ref[Capsule] | None = weakref.ref(capsule)
        self.parent = parent

    @property
    def capsule(self) -> Capsule | None:
        """The capsule, None when it was evicted."""
        return self._capsule() if self._capsule is not None else None

    def nearest(self) -> Lineage | None:
        """This place or the nearest above it whose capsule is there."""
        place: Lineage | None = self
        while place is not None and place.capsule is None:
            place = place.parent
        return place

    def end(self) -> None:
        """The capsule is gone: link past the places above that are gone too."""
        self._capsule = None
        if self.parent is not None and self.parent._capsule is None:
            self.parent = self.parent.nearest()


class Capsule:
    """Bytes and descriptor of one moment.

    Attributes:
        boundary: the name of the moment, given at the snapshot.
        position: the caller's count at the moment (a tick, a token).
        fingerprint: the deployment it belongs to.
        created: seconds since the epoch.
    """

    __slots__ = (
        '__weakref__',
        '_digest',
        '_pins',
        '_registry',
        'boundary',
        'created',
        'file',
        'fingerprint',
        'fixed',
        'host',
        'layout',
        'lineage',
        'position',
        'texts',
        'tiers',
        'tips',
    )

    def __init__(
        self,
        registry: Registry,
        layout: Layout,
        fingerprint: Fingerprint,
        boundary: str,
        position: int,
        host: dict[str, Any],
        fixed: Segment,
        texts: tuple[Text, ...],
        parent: Lineage | None,
        created: float,
    ) -> None:
        self.boundary = boundary
        self.position = position
        self.fingerprint = fingerprint
        self.created = created
        self.layout = layout
        self.host = host
        self.fixed = fixed
        self.texts = texts
        # What it ends in: the fixed part and the newest node of every rope.
        self.tips: tuple[Segment, ...] = (fixed,)
        if texts:
            self.tips += tuple([text.node for text in texts if text.node is not None])
        self.tiers: set[str] = set()
        self.file: str | None = None  # name on disk, once it has one
        self.lineage = Lineage(self, parent)
        self._registry = registry
        self._digest: str | None = None
        self._pins: weakref.WeakSet[Session] | None = None

    @property
    def tier(self) -> str | None:
        """The fastest tier that has all its bytes; None when it was evicted."""
        return next((tier for tier in TIERS if tier in self.tiers), None)

    @property
    def parent(self) -> Capsule | None:
        """The nearest ancestor that is still there."""
        above = self.lineage.parent.nearest() if self.lineage.parent is not None else None
        return above.capsule if above is not None else None

    @property
    def lengths(self) -> tuple[int, ...]:
        """Valid positions of every rope."""
        return tuple(text.length for text in self.texts)

    @property
    def nbytes(self) -> int:
        """Bytes that a full copy moves (shared segments included)."""
        ropes = zip(self.layout.ropes, self.texts, strict=True)
        return self.layout.fixed_bytes + sum(rope.stride * text.length for rope, text in ropes)

    @property
    def digest(self) -> str:
        """sha256 of the whole state and its fingerprint, hexadecimal; not of its history.

        Computed when first asked for, which waits for the device and reads what no ancestor's
        digest has covered yet.

        Raises:
            EvictedError: the bytes are gone and it was never asked for before.
        """
        if self._digest is None:
            self._digest = self._registry.digest(self)
        return self._digest

    @property
    def pinned(self) -> bool:
        """True while a living session holds it in place."""
        return bool(self._pins)

    def pin(self, session: Session) -> None:
        """Neither demote nor evict it while `session` lives."""
        if self._pins is None:
            self._pins = weakref.WeakSet()
        self._pins.add(session)
        self.renew_holds()

    def renew_holds(self) -> None:
        """Let every session that pins it hold its file too, against other processes."""
        for session in self._pins or ():
            session.holds[self.lineage] = self._registry.hold(self)

    def unpin(self, session: Session) -> None:
        """Undo `pin`."""
        if self._pins is not None:
            self._pins.discard(session)
            session.holds.pop(self.lineage, None)

    def host_state(self) -> Mapping[str, Any]:
        """Host entries by name; treat as read-only."""
        return MappingProxyType(self.host)

    def require_there(self) -> None:
        """Raise `EvictedError` when the bytes are gone."""
        if not self.tiers:
            raise EvictedError(
                f'{self!r} was evicted: its bytes are gone; pin it, give the registry more '
                'memory, or keep it on disk'
            )

    def __del__(self) -> None:
        if getattr(self, 'tiers', None):
            self._registry.gone(self.tips, self.tiers, self.lineage)

    def __repr__(self) -> str:
        return f'Capsule({self.boundary!r}, position={self.position}, tier={self.tier!r})'
