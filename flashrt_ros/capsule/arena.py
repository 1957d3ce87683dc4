"""Arena: one preallocated piece of memory per tier, handed out in blocks without allocating."""

from __future__ import annotations

from collections.abc import Callable

import torch

_WIDE = 256  # bytes; large blocks start aligned to whole memory transactions
_NARROW = 16  # bytes; the widest load of a thread: small blocks stand side by side
_SMALL = 4096  # bytes; blocks below are small


class Block:
    """A range of an arena."""

    __slots__ = ('address', 'arena', 'nbytes', 'offset', 'size')

    def __init__(self, arena: Arena, offset: int, nbytes: int, size: int) -> None:
        self.arena = arena
        self.offset = offset
        self.nbytes = nbytes  # asked for
        self.size = size  # taken, up to the alignment
        self.address = arena.address + offset

    @property
    def tensor(self) -> torch.Tensor:
        """uint8 [nbytes], a view."""
        return self.arena.memory[self.offset : self.offset + self.nbytes]


class Arena:
    """First fit over one tensor; freed neighbours join.

    Large blocks are taken from the front, small ones from the back, so that the many small ones
    of a long history are packed together and do not break up what large ones need.

    Args:
        nbytes: the budget, taken from `allocate` at once.
        allocate: returns uint8 [nbytes].
    """

    def __init__(self, nbytes: int, allocate: Callable[[int], torch.Tensor]) -> None:
        self.capacity = nbytes // _NARROW * _NARROW
        self.memory = allocate(self.capacity)
        self.address = self.memory.data_ptr()
        self.used = 0
        self._free: list[tuple[int, int]] = [(0, self.capacity)] if self.capacity else []

    def take(self, nbytes: int) -> Block | None:
        """A block of `nbytes`, or None when no free range is that long."""
        if nbytes < _SMALL:
            return self._take_small(nbytes)
        need = (nbytes + _WIDE - 1) & -_WIDE
        for index, (offset, size) in enumerate(self._free):
            start = (offset + _WIDE - 1) & -_WIDE
            left = offset + size - start - need
            if left >= 0:
                around = [(offset, start - offset)] if start > offset else []
                if left:
                    around.append((start + need, left))
                self._free[index : index + 1] = around
                self.used += need
                return Block(self, start, nbytes, need)
        return None

    def _take_small(self, nbytes: int) -> Block | None:
        need = (nbytes + _NARROW - 1) & -_NARROW or _NARROW
        for index in range(len(self._free) - 1, -1, -1):
            offset, size = self._free[index]
            if size >= need:
                if size == need:
                    del self._free[index]
                else:
                    self._free[index] = (offset, size - need)
                self.used += need
                return Block(self, offset + size - need, nbytes, need)
        return None

    def give(self, block: Block) -> None:
        """Take a block back; its bytes may be overwritten from now on."""
        start, end = block.offset, block.offset + block.size
        index = 0
        while index < len(self._free) and self._free[index][0] < start:
            index += 1
        if index < len(self._free) and self._free[index][0] == end:
            end += self._free.pop(index)[1]
        if index and sum(self._free[index - 1]) == start:
            index -= 1
            start = self._free.pop(index)[0]
        self._free.insert(index, (start, end - start))
        self.used -= block.size
