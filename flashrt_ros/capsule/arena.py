"""Arena: one preallocated piece of memory per tier, handed out in blocks without allocating."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
    """First fit over one tensor; freed neighbours join when no range is long enough.

    Large blocks are taken from the front, small ones from the back, so that the many small ones
    of a long history are packed together and do not break up what large ones need. A freed block
    is first kept as it is: most of what a session takes has one of a few sizes.

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
        self._freed: dict[int, list[Block]] = {}  # by the bytes that were asked for

    def take(self, nbytes: int) -> Block | None:
        """A block of `nbytes`, or None when no free range is that long."""
        freed = self._freed.get(nbytes)
        if freed:
            block: Block | None = freed.pop()
        else:
            block = self._carve(nbytes)
            if block is None and self._join():
                block = self._carve(nbytes)
        if block is not None:
            self.used += block.size
        return block

    def take_all(self, sizes: Sequence[int]) -> list[Block] | None:
        """Blocks of these sizes in bytes, or None when there is not room for all as it is."""
        blocks: list[Block] = []
        for nbytes in sizes:
            block = self.take(nbytes)
            if block is None:
                for taken in blocks:
                    self.give(taken)
                return None
            blocks.append(block)
        return blocks

    def give(self, block: Block) -> None:
        """Take a block back; its bytes may be overwritten from now on."""
        self.used -= block.size
        freed = self._freed.get(block.nbytes)
        if freed is None:
            self._freed[block.nbytes] = [block]
        else:
            freed.append(block)

    def _carve(self, nbytes: int) -> Block | None:
        """A new block out of the first free range that is long enough."""
        small = nbytes < _SMALL
        step = _NARROW if small else _WIDE
        need = (nbytes + step - 1) & -step or step
        order = range(len(self._free))
        for index in reversed(order) if small else order:
            offset, size = self._free[index]
            start = offset + size - need if small else (offset + step - 1) & -step
            if offset <= start and start + need <= offset + size:
                around = ((offset, start - offset), (start + need, offset + size - start - need))
                self._free[index : index + 1] = [(at, left) for at, left in around if left]
                return Block(self, start, nbytes, need)
        return None

    def _join(self) -> bool:
        """Make ranges of the freed blocks; False when there are none."""
        blocks = [block for freed in self._freed.values() for block in freed]
        self._freed.clear()
        ranges = sorted([*self._free, *((block.offset, block.size) for block in blocks)])
        joined: list[tuple[int, int]] = []
        for offset, size in ranges:
            if joined and sum(joined[-1]) == offset:
                offset, size = joined[-1][0], joined.pop()[1] + size
            joined.append((offset, size))
        self._free = joined
        return bool(blocks)
