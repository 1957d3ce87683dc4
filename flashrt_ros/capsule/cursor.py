"""How far append buffers are valid, and from where on they may have been rewritten.

A snapshot copies only what changed since the last one. What changed is decided here, and the
decision does not rest on anybody's word: every buffer counts the writes that the contract can
see (`Buffer.version`), and a write that nobody placed at a position makes the whole buffer count
as rewritten. A `Cursor` is the way to place writes: what happens inside `appending` is known to
touch nothing below the length at its start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import torch

from flashrt_ros.capsule.errors import ClosureError
from flashrt_ros.contract.buffer import Buffer


class Length(Protocol):
    """Where the valid part of some append buffers ends."""

    def attach(self, buffer: Buffer, dim: int) -> None:
        """One more buffer ends here, along `dim`."""

    def read(self) -> int:
        """The length now."""

    def intact(self) -> int:
        """Positions below it hold what they held at the last `settle`."""

    def settle(self, length: int, written: bool) -> None:
        """From now on measure changes anew; the valid length is `length`.

        With `written` what the buffers hold now counts, otherwise what they held when `intact`
        was asked last.
        """


class _Attached:
    """The buffers of one length, and the sum of their versions at the last settling."""

    def __init__(self) -> None:
        self.buffers: list[Buffer] = []
        self.dims: list[int] = []
        self.capacity = 0
        self.known = -1
        self.seen = -1  # versions when `intact` was asked last

    def attach(self, buffer: Buffer, dim: int) -> None:
        """One more buffer ends here, along `dim`."""
        capacity = buffer.shape[dim]
        self.dims.append(dim)
        self.capacity = min(self.capacity or capacity, capacity)
        self.buffers.append(buffer)
        self.known = -1

    def versions(self) -> int:
        """A number that is the same exactly when no buffer was written."""
        # Versions only grow, so the sum is unchanged exactly when each of them is.
        return sum([buffer._touches + buffer._tensor._version for buffer in self.buffers])


class Cursor(_Attached):
    """The host's own count of valid positions, which also places the writes.

    Args:
        name: shown in errors.
        audit: compare, after every `appending`, what stands below with what stood there. As
            costly as a full copy; for tests.
    """

    def __init__(self, name: str, audit: bool = False) -> None:
        super().__init__()
        self.name = name
        self.audit = audit
        self._length = 0
        self._intact = 0
        self._owner: int | None = None

    def belong_to(self, closure: str, identity: int) -> None:
        """Raise `ClosureError` when another closure measures changes with this cursor."""
        if self._owner not in (None, identity):
            raise ClosureError(
                f'cursor {self.name!r} belongs to another closure than {closure!r}: '
                'make one cursor per closure'
            )
        self._owner = identity

    @property
    def length(self) -> int:
        """Valid positions."""
        return self._length

    @contextmanager
    def appending(self, count: int) -> Iterator[None]:
        """Replay, within the block, what writes `count` positions from `length` on.

        The block may write at and above `length` only. The length grows when it ends well; if it
        raises, the length stays and what stands above it is not valid.

        Raises:
            ClosureError: the buffers have no room for `count` more; or, under audit, a position
                below was written.
        """
        start = self._length
        if count < 0 or start + count > self.capacity:
            raise ClosureError(
                f'cursor {self.name!r}: {count} positions from {start} do not fit the capacity '
                f'{self.capacity}; truncate or restore first'
            )
        self._intact = min(self.intact(), start)
        before = [valid.clone() for valid in self._below(start)] if self.audit else []
        try:
            yield
            self._compare(before, start)
            self._length = start + count
        finally:
            self.known = self.versions()

    def _below(self, length: int) -> list[torch.Tensor]:
        pairs = zip(self.buffers, self.dims, strict=True)
        return [buffer.tensor.narrow(dim, 0, length) for buffer, dim in pairs]

    def _compare(self, before: list[torch.Tensor], start: int) -> None:
        for buffer, dim, old in zip(self.buffers, self.dims, before, strict=False):
            now = buffer.tensor.narrow(dim, 0, start).contiguous().view(torch.uint8)
            if not torch.equal(now, old.contiguous().view(torch.uint8)):
                self._intact = 0
                raise ClosureError(
                    f'cursor {self.name!r}: {buffer.name!r} was written below position {start} '
                    'within appending: truncate to the lowest position written first'
                )

    def truncate(self, length: int) -> None:
        """Positions from `length` on are no longer valid."""
        if not 0 <= length <= self._length:
            raise ClosureError(f'cursor {self.name!r}: {length} is not within 0..{self._length}')
        self._length = length

    def read(self) -> int:
        """The length now."""
        return self._length

    def intact(self) -> int:
        """The lowest position written since the last `settle`; 0 after an unplaced write."""
        self.seen = seen = self.versions()
        return self._intact if seen == self.known else 0

    def settle(self, length: int, written: bool) -> None:
        """Take `length` and measure changes anew."""
        self._length = self._intact = length
        self.known = self.versions() if written else self.seen


class Polled(_Attached):
    """A length that somebody else keeps: a function, or an integer buffer (read by the host).

    Writes are not placed, so any write makes all positions count as rewritten: always exact,
    and as costly as a full copy. Use a `Cursor` to pay for what changed alone.
    """

    def __init__(self, source: Callable[[], int] | Buffer) -> None:
        super().__init__()
        self._source = source
        self._settled = 0

    def read(self) -> int:
        """Ask for the length; a buffer's is copied to the host, which waits for it."""
        if isinstance(self._source, Buffer):
            return int(self._source.tensor.item())
        return int(self._source())

    def intact(self) -> int:
        """All settled positions while nothing was written, none afterwards."""
        self.seen = seen = self.versions()
        return self._settled if seen == self.known else 0

    def settle(self, length: int, written: bool) -> None:
        """Measure changes anew."""
        self._settled = length
        self.known = self.versions() if written else self.seen
