"""Watching a callable run: which memory it reads, writes and makes, and what no graph can hold.

Only operations that pass torch's dispatcher are seen. A Triton or CUDA kernel launched on raw
pointers is not; `Graph.capture` compares bytes to find what such a kernel writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor))


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _mutated(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> set[int]:
    """Storages that the operation's schema says it writes."""
    written: set[int] = set()
    for index, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[index] if index < len(args) else kwargs.get(argument.name)
        written.update(_storage(tensor) for tensor in _tensors(value))
    return written


def _fresh(out: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """Tensors that the operation made: their storage belongs to none of its inputs."""
    known = {_storage(tensor) for tensor in _tensors((args, kwargs))}
    return [tensor for tensor in _tensors(out) if _storage(tensor) not in known]


class Observer(TorchDispatchMode):
    """Records the storages that a callable reads and writes, and what no graph can hold.

    Attributes:
        reads: storages read.
        writes: storages written.
        unsafe: operations that read a value back to the host, whose output shape depends on
            data, or that draw from torch's own random generator (whose state no buffer holds).
    """

    def __init__(self) -> None:
        super().__init__()
        self.reads: set[int] = set()
        self.writes: set[int] = set()
        self.unsafe: list[str] = []
        self._made: list[tuple[str, StorageWeakRef]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        written = _mutated(func, args, kwargs)
        self.writes |= written
        self.reads |= {_storage(tensor) for tensor in _tensors((args, kwargs))} - written
        if _unsafe(func):
            self.unsafe.append(str(func))
        out = func(*args, **kwargs)
        for tensor in _fresh(out, args, kwargs):
            self._made.append((str(func), StorageWeakRef(tensor.untyped_storage())))
        return out

    def escaped(self) -> list[str]:
        """Operations whose result is still alive: it left the callable other than by a buffer."""
        return [name for name, reference in self._made if not reference.expired()]


def _unsafe(func: Any) -> bool:
    tags = func.tags
    if torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags:
        return True
    # Attention carries the tag for its dropout, which is off at inference.
    return torch.Tag.nondeterministic_seeded in tags and 'attention' not in str(func)


class AllocationObserver(TorchDispatchMode):
    """Records the operations that make new memory while no replay is running."""

    def __init__(self, replaying: Callable[[], bool]) -> None:
        super().__init__()
        self.seen: list[str] = []
        self._replaying = replaying

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if not self._replaying() and _fresh(out, args, kwargs):
            self.seen.append(f'{func} made new memory')
        return out
