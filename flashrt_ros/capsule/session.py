"""Session: one line of history over a closure. Snapshot, restore, rollback, fork."""

from __future__ import annotations

import copy
from collections.abc import Callable

from flashrt_ros.capsule.capsule import Capsule, Lineage
from flashrt_ros.capsule.closure import Closure
from flashrt_ros.capsule.errors import CapsuleError, FingerprintError, LineageError
from flashrt_ros.capsule.fingerprint import Fingerprint
from flashrt_ros.capsule.live import Live
from flashrt_ros.capsule.registry import Registry
from flashrt_ros.capsule.store import Hold
from flashrt_ros.contract.context import Context
from flashrt_ros.contract.stream import Stream

# Room that a session without a registry takes.
_FIXED_PARTS = 16
_FULL_ROPES = 2


class Session:
    """Freezes the closure's live state into capsules and puts capsules back.

    Everything runs in the order of calls on `stream`, so it is ordered with replays there and
    nothing waits for the device (unless a length lives in a buffer).

    Args:
        ctx: the context of the closure's buffers.
        closure: what to keep. It is sealed.
        fingerprint: the deployment, checked by every restore.
        stream: the replays' stream (default: the one current now).
        registry: where capsules live. Without one, the session keeps capsules in the device's
            memory for as long as they are referenced.
    """

    def __init__(
        self,
        ctx: Context,
        closure: Closure,
        fingerprint: Fingerprint,
        stream: Stream | None = None,
        registry: Registry | None = None,
    ) -> None:
        self._ctx = ctx
        self._fingerprint = fingerprint
        self._stream = stream if stream is not None else ctx.current_stream()
        live = closure.live
        if live is None:
            live = closure.live = Live(ctx, closure, self._stream)
        self._live = live
        self.registry = registry if registry is not None else _private(ctx, live)
        self.registry.adopt(live.layout, fingerprint)
        self._head: Lineage | None = None
        self.holds: dict[Lineage, Hold | None] = {}  # files of pinned capsules

    @property
    def head(self) -> Capsule | None:
        """The capsule that the history stands on; None before the first, or when it is gone."""
        return self._head.capsule if self._head is not None else None

    @property
    def context(self) -> Context:
        """The context of the closure's buffers."""
        return self._ctx

    @property
    def fingerprint(self) -> Fingerprint:
        """The deployment."""
        return self._fingerprint

    @property
    def closure(self) -> Closure:
        """What is kept."""
        return self._live.closure

    def snapshot(
        self, boundary: str, position: int = 0, tier: str = 'gpu', pin: bool = False
    ) -> Capsule:
        """Freeze the live state; costs the fixed part and what was appended or rewritten.

        Args:
            boundary: the name of this moment, for instance 'episode-start'.
            position: the caller's count at this moment.
            tier: 'gpu', or 'host' or 'disk' to move it there behind the caller.
            pin: keep it in place while this session lives.

        Raises:
            BudgetError: no room; live state and capsules are as before.
            HostStateError: a host entry holds what a capsule cannot.
            ReboundError: a buffer's memory was replaced.
        """
        self._ctx.require_thread('snapshot')
        live, registry = self._live, self.registry
        live.check()
        with registry.lock:
            if registry.stream is not self._stream or live.registry is not registry:
                self._take_over()
            while True:
                texts, growths, sizes = live.survey()
                blocks = registry.take(sizes)
                if blocks is not None:
                    break
                registry.make_room(sum(sizes))
            try:
                live.save(blocks, growths)
                # The device is at work from here on; the books are kept meanwhile.
                host = live.read_host()
            except BaseException:
                registry.give(blocks)
                raise
            fixed, whole = live.saved(blocks, texts, growths)
            capsule = Capsule(
                registry,
                live.layout,
                self._fingerprint,
                boundary,
                position,
                host,
                fixed,
                whole,
                self._head,
                registry.stamp(),
            )
            registry.admit(capsule)
            registry.collect()
        self._head = capsule.lineage
        if tier != 'gpu':
            registry.demote(capsule, tier)
        if pin:
            capsule.pin(self)
        return capsule

    def restore(self, capsule: Capsule, suffix: Callable[[], None] | None = None) -> None:
        """Make the live state what it was at the capsule; all or nothing.

        A capsule in a lower tier is promoted first. Copies the fixed part, and of the ropes what
        the live buffers do not hold already.

        Args:
            capsule: of this session's registry.
            suffix: called afterwards, to replay what comes after the capsule.

        Raises:
            FingerprintError: another deployment; names each field that differs.
            EvictedError: the bytes are gone.
            HostStateError: a host entry refused its state.
            BudgetError, StoreError: it cannot be promoted.
        """
        self._ctx.require_thread('restore')
        live, registry = self._live, self.registry
        self.require_fits(capsule)
        live.check()
        with registry.lock:
            if registry.stream is not self._stream or live.registry is not registry:
                self._take_over()
            registry.ready(capsule, self._stream)
            if capsule.host:
                live.write_host(capsule.host)
            live.load(capsule.fixed.blocks['gpu'], capsule.texts)
            registry.used(capsule)
            registry.collect()
        self._head = capsule.lineage
        if suffix is not None:
            suffix()

    def rollback(self, capsule: Capsule) -> None:
        """Restore an ancestor of what the session stands on (or that itself).

        Raises:
            LineageError: it is no ancestor; `restore` would switch to its line of history.
        """
        place = self._head
        while place is not None and place is not capsule.lineage:
            place = place.parent
        if place is None:
            raise LineageError(
                f'{capsule!r} is no ancestor of {self.head!r}: use restore to leave this history'
            )
        self.restore(capsule)

    def fork(self, capsule: Capsule, count: int) -> list[Session]:
        """`count` sessions that stand on `capsule` and share its bytes; nothing is copied.

        The capsule is pinned until every branch is closed or gone. The branches take turns on the
        live buffers: restore one's `head`, go on, snapshot, restore the next one's.
        """
        self.require_fits(capsule)
        branches = []
        for _ in range(count):
            branch = copy.copy(self)
            branch._head, branch.holds = capsule.lineage, {}
            capsule.pin(branch)
            branches.append(branch)
        return branches

    def open(self, name: str) -> Capsule:
        """A capsule that the registry's store has got meanwhile, by its whole digest.

        Raises:
            StoreError: the file is not what it must be.
            FingerprintError: it belongs to another deployment.
        """
        return self.registry.open(name, self._live.layout, self._fingerprint)

    def close(self) -> None:
        """Release this session's pins; it can go on without them."""
        for capsule in self.registry.capsules:
            capsule.unpin(self)

    def _take_over(self) -> None:
        """Another stream or registry was at work here before."""
        self.registry.work_on(self._stream)
        self._live.use(self.registry)

    def require_fits(self, capsule: Capsule) -> None:
        """Raise what `restore` would raise for a capsule of another deployment, or a gone one."""
        live = self._live
        if capsule.layout is not live.layout or capsule.fingerprint is not self._fingerprint:
            capsule.fingerprint.require(self._fingerprint, repr(capsule))
            if capsule.layout.schema != live.layout.schema:
                raise FingerprintError(
                    f'{capsule!r} has the entries {sorted(capsule.layout.schema)}, this closure '
                    f'{sorted(live.layout.schema)}: restore it where it was made'
                )
        if capsule._registry is not self.registry:
            raise CapsuleError(f'{capsule!r} is in another registry: give both sessions the same')
        if not capsule.tiers:
            capsule.require_there()
        for index, text in enumerate(capsule.texts):
            if text.length > live.capacities[index]:
                raise CapsuleError(
                    f'{capsule!r} holds {text.length} positions, the buffers have room for '
                    f'{live.capacities[index]}: make them longer'
                )


def _private(ctx: Context, live: Live) -> Registry:
    ropes = sum(rope.stride * rope.rope.capacity for rope in live.layout.ropes)
    room = _FIXED_PARTS * live.layout.fixed_bytes + _FULL_ROPES * ropes
    # The CPU's memory is taken page by page as it is used, a GPU's at once.
    least = 1 << 30 if ctx.device.type == 'cpu' else 256 << 20
    return Registry(ctx, gpu_bytes=max(least, room), keep=False)
