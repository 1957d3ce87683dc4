"""Buffer: a named tensor whose address never changes. The only state there is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from flashrt_ros.contract.errors import ReboundError, WriteError

if TYPE_CHECKING:
    from flashrt_ros.contract.stream import Stream


class Buffer:
    """A named, contiguous tensor at a static address, made by `Context.buffer`.

    `version` grows with every change the contract can see: `write`, a replay of a graph that
    has the buffer among its writes, and any eager in-place operation of torch on `tensor` or on
    a view of it. A kernel launched on the raw pointer, outside a graph, calls `touch`.
    """

    __slots__ = ('_address', '_name', '_shape', '_tensor', '_touches')

    def __init__(self, name: str, tensor: torch.Tensor) -> None:
        self._name = name
        self._tensor = tensor
        self._shape = tensor.shape
        self._address = tensor.data_ptr()
        self._touches = 0

    @property
    def name(self) -> str:
        """The name, unique in its context."""
        return self._name

    @property
    def tensor(self) -> torch.Tensor:
        """The tensor itself; it can be changed in place, never replaced."""
        return self._tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape it was made with."""
        return tuple(self._shape)

    @property
    def dtype(self) -> torch.dtype:
        """The element type."""
        return self._tensor.dtype

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self._tensor.element_size() * self._shape.numel()

    @property
    def address(self) -> int:
        """The address it was made at."""
        return self._address

    @property
    def version(self) -> int:
        """A number that grows with every change that the contract can see."""
        return self._touches + self._tensor._version

    def touch(self) -> None:
        """Report a write that neither torch nor a graph's ports can show."""
        self._touches += 1

    def check(self) -> None:
        """Raise `ReboundError` when the memory is no longer the one the buffer was made with."""
        tensor = self._tensor
        if tensor.data_ptr() != self._address or tensor.shape != self._shape:
            raise ReboundError(
                f'buffer {self._name!r} was rebound: it is {tuple(tensor.shape)} at '
                f'{tensor.data_ptr():#x}, it was made as {self.shape} at {self._address:#x}; '
                'write into it in place (copy_, write), never set_, resize_ or .data ='
            )

    def write(self, value: torch.Tensor | np.ndarray, stream: Stream | None = None) -> None:
        """Copy `value` into the buffer, in place, on `stream` (default: the current one).

        Args:
            value: tensor or array of exactly the buffer's shape and dtype, contiguous.
            stream: the stream that orders the copy with replays.

        Raises:
            WriteError: shape, dtype or memory layout differ, or it is no tensor; the buffer
                is unchanged.
            ReboundError: the buffer's memory was replaced.
        """
        source = self._accept(value)
        self.check()
        self._touches += 1
        with torch.no_grad():
            if stream is None:
                self._tensor.copy_(source)
            else:
                with stream.use():
                    self._tensor.copy_(source)

    def _accept(self, value: torch.Tensor | np.ndarray) -> torch.Tensor:
        where = f'buffer {self._name!r} takes {self.dtype} {self.shape}'
        if isinstance(value, np.ndarray):
            if not value.flags.c_contiguous:
                raise WriteError(f'{where}, contiguous: pass numpy.ascontiguousarray(value)')
            try:
                value = torch.from_numpy(value if value.flags.writeable else value.copy())
            except TypeError as error:
                raise WriteError(f'{where}: an array of {value.dtype} does not fit') from error
        if not isinstance(value, torch.Tensor):
            raise WriteError(f'{where}: pass a tensor or an array, not {type(value).__name__}')
        if tuple(value.shape) != self.shape:
            raise WriteError(f'{where}: a value of shape {tuple(value.shape)} does not fit')
        if value.dtype != self.dtype:
            raise WriteError(f'{where}: a value of {value.dtype} does not fit; cast it first')
        if not value.is_contiguous():
            raise WriteError(f'{where}, contiguous: pass value.contiguous()')
        return value

    def __repr__(self) -> str:
        return f'Buffer({self._name!r}, {self.shape}, {self.dtype}, {self._tensor.device})'
