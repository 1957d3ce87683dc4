"""Arena: one preallocated piece of memory per tier, handed out in blocks without allocating."""

from __future__ import annotations

from collections.abc import Callable

import torch

_ALIGN = 256  # bytes; wide loads of any width start aligned


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

    Args:
        nbytes: the budget, taken from `allocate` at once.
        allocate: returns uint8 [nbytes].
    """

    def __init__(self, nbytes: int, allocate: Callable[[int], torch.Tensor]) -> None:
        self.capacity = nbytes // _ALIGN * _ALIGN
        self.memory = allocate(self.capacity)
        self.address = self.memory.data_ptr()
        self.used = 0
        self._free: list[tuple[int, int]] = [(0, self.capacity)] if self.capacity else []

    def take(self, nbytes: int) -> Block | None:
        """A block of `nbytes`, or None when no free range is that long."""
        need = max(_ALIGN, -(-nbytes // _ALIGN) * _ALIGN)
        for index, (offset, size) in enumerate(self._free):
            if size >= need:
                if size == need:
                    del self._free[index]
                else:
                    self._free[index] = (offset + need, size - need)
                self.used += need
                return Block(self, offset, nbytes, need)
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
