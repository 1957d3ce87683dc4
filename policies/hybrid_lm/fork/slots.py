"""Slots: where the states of a round's requests stand, and the checkpoints they leave.

A slot is one text's state in static buffers: keys and values of its trunk, and for the linear
layers the recurrent state and window at an aligned position. All slots have one schema, so a
checkpoint taken in one is restored in any; checkpoints are capsules in the engine's registry,
found by the tokens they have consumed.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flashrt_policies.hybrid_lm.config import LMConfig
from flashrt_policies.hybrid_lm.prefix import TextRegistry
from flashrt_policies.kernels.gated_delta import CHUNK
from flashrt_ros.capsule.closure import Closure
from flashrt_ros.capsule.cursor import Cursor
from flashrt_ros.capsule.errors import BudgetError
from flashrt_ros.capsule.fingerprint import Fingerprint
from flashrt_ros.capsule.session import Session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flashrt_ros.capsule.capsule import Capsule, Lineage
    from flashrt_ros.capsule.registry import Registry
    from flashrt_ros.contract.buffer import Buffer
    from flashrt_ros.contract.context import Context


class Slot:
    """One text's state, in buffers named ``NAME/INDEX/...``.

    Attributes:
        kv: keys and values of the full layers [F * 2 * KV, T, D], or None without any.
        recurrent: float32 [L, HV, K, V], states of the linear layers, or None.
        window: [L, W - 1, C], last inputs of their convolutions, or None.
        history: int32 [1, T], tokens of the trunk.
        cursor: how many positions are part of the state.
        holds: the place in history that the buffers hold, None for none.
        seen: the buffers' `changes` when that was known to be so.
    """

    def __init__(
        self, ctx: Context, config: LMConfig, capacity: int, dtype: torch.dtype, name: str
    ) -> None:
        c = config
        self.kv: Buffer | None = None
        self.recurrent: Buffer | None = None
        self.window: Buffer | None = None
        if c.full_layers:
            shape = (c.full_layers * 2 * c.kv_heads, capacity, c.head_dim)
            self.kv = ctx.buffer(f'{name}kv', shape, dtype)
        if c.linear_layers:
            matrix = (c.linear_layers, c.lin_v_heads, c.lin_k_dim, c.lin_v_dim)
            self.recurrent = ctx.buffer(f'{name}recurrent', matrix, torch.float32)
            series = (c.linear_layers, c.conv_width - 1, c.conv_dim)
            self.window = ctx.buffer(f'{name}window', series, dtype)
        self.history = ctx.buffer(f'{name}history', (1, capacity), torch.int32)
        self.cursor = Cursor(f'{name}length')
        self.closure = Closure('fork', prefix=name)
        self.closure.fixed(*(b for b in (self.recurrent, self.window) if b is not None))
        for grown in (self.kv, self.history):
            if grown is not None:
                self.closure.append(grown, dim=1, length=self.cursor)
        self.holds: Lineage | None = None
        self.seen = -1
        self._buffers = self.closure.buffers

    def changes(self) -> int:
        """A number that is the same exactly when no buffer was written."""
        return sum([buffer.version for buffer in self._buffers])

    @property
    def intact(self) -> bool:
        """Whether nobody wrote what `holds` speaks of since that was known."""
        return self.holds is not None and self.seen == self.changes()

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """All buffers."""
        return self._buffers


class Slots:
    """All slots of an engine and their checkpoints.

    Args:
        ctx: where the buffers live.
        config: the model's dimensions.
        count: how many slots.
        capacity: T, longest state in tokens.
        dtype: of keys, values and windows.
        name: first part of the buffers' names.
        registry: where checkpoints are kept; None keeps none. Those of a `TextRegistry` are also
            found by its `match`, and so by other engines over the same model.
        deployment: fields of the fingerprint.
    """

    def __init__(
        self,
        ctx: Context,
        config: LMConfig,
        count: int,
        capacity: int,
        dtype: torch.dtype,
        name: str,
        registry: Registry | None,
        deployment: dict[str, object],
    ) -> None:
        self.all = [Slot(ctx, config, capacity, dtype, f'{name}/{i}/') for i in range(count)]
        self.registry = registry
        self._order = list(range(count))  # least recently used first
        # Length and last tokens -> checkpoints with all of theirs.
        self._index: dict[int, dict[bytes, list[tuple[NDArray[np.int32], Capsule]]]] = {}
        self._count = 0  # of checkpoints that can be found
        self._sessions: list[Session] = []
        if registry is not None:
            self._made = Fingerprint.of(self.all[0].closure, ctx.device, **deployment)
            self._sessions = [
                Session(ctx, slot.closure, self._made, registry=registry) for slot in self.all
            ]
        self.dropped = 0

    def match(self, state: NDArray[np.int32]) -> tuple[int, Capsule | None]:
        """Return the longest checkpoint that `state` starts with, and its length."""
        length, capsule = self._match(state)
        shared = self.registry
        if isinstance(shared, TextRegistry) and len(shared.texts) > self._count:
            entry = shared.match(state.tolist(), self._made)
            if entry is not None and len(entry.tokens) > length:
                return len(entry.tokens), entry.capsule
        return length, capsule

    def _match(self, state: NDArray[np.int32]) -> tuple[int, Capsule | None]:
        for length in sorted((x for x in self._index if x <= len(state)), reverse=True):
            for tokens, capsule in self._index[length].get(_last(state[:length]), ()):
                if np.array_equal(tokens, state[:length]):
                    if capsule.tier is not None:
                        return length, capsule
                    self._forget(capsule)
                    break
        return 0, None

    def _forget(self, capsule: Capsule) -> None:
        """It can no longer be found."""
        for length, found in tuple(self._index.items()):
            for last, entries in tuple(found.items()):
                found[last] = [x for x in entries if x[1] is not capsule]
                self._count -= len(entries) - len(found[last])
                if not found[last]:
                    del found[last]
            if not found:
                del self._index[length]

    def take(self, capsule: Capsule | None, busy: Sequence[int]) -> int:
        """Make a free slot hold a checkpoint, or nothing; return its index.

        Nothing is copied where a slot holds the checkpoint still.

        Args:
            capsule: what it shall hold.
            busy: slots that are taken already.
        """
        free = [i for i in self._order if i not in busy]
        lineage = None if capsule is None else capsule.lineage
        index = next((i for i in free if lineage and self.all[i].holds is lineage), free[0])
        slot = self.all[index]
        if capsule is None:
            slot.cursor.truncate(0)
        elif lineage is slot.holds and slot.intact and slot.cursor.length == capsule.position:
            assert self.registry is not None
            with self.registry.lock:
                self.registry.used(capsule)
        else:
            self._sessions[index].restore(capsule)
            slot.seen = slot.changes()
        slot.holds = lineage
        self._order.remove(index)
        self._order.append(index)
        return index

    @contextmanager
    def written(self, marks: dict[int, int]) -> Iterator[None]:
        """Around a pass that leaves `marks`: slot -> positions that become part of its state."""
        holding = [slot for slot in self.all if slot.intact]
        with ExitStack() as stack:
            for index, slot in enumerate(self.all):
                stack.enter_context(slot.cursor.appending(marks.get(index, 0)))
            yield
        # Below its length a slot is written by a pass that leaves a mark alone.
        for index, mark in marks.items():
            if mark:
                self.all[index].holds = None
        for slot in holding:
            slot.seen = slot.changes()

    def keep(self, index: int, state: NDArray[np.int32]) -> Capsule | None:
        """Freeze what the slot holds and make it findable; None where there is no room."""
        if self.registry is None:
            return None
        length = self.all[index].cursor.length
        capsule = self._frozen(index, length)
        if capsule is not None:
            self.all[index].holds = capsule.lineage
            self.all[index].seen = self.all[index].changes()
            tokens = state[:length].copy()
            self._index.setdefault(length, {}).setdefault(_last(tokens), []).append(
                (tokens, capsule)
            )
            self._count += 1
            if isinstance(self.registry, TextRegistry):
                self.registry.texts.add(capsule, state[:length].tolist())
        return capsule

    def _frozen(self, index: int, length: int) -> Capsule | None:
        assert self.registry is not None
        while True:
            try:
                return self._sessions[index].snapshot('fork', length)
            except BudgetError:
                if not self._drop_oldest():
                    self.dropped += 1
                    return None

    def _drop_oldest(self) -> bool:
        """Evict the checkpoint that was used least recently; False where there is none."""
        assert self.registry is not None
        found = [entries for last in self._index.values() for entries in last.values()]
        mine = {id(capsule) for entries in found for _, capsule in entries}
        for capsule in self.registry.capsules:
            if id(capsule) in mine and not capsule.pinned:
                self.registry.evict(capsule)
                self._forget(capsule)
                self.dropped += 1
                return True
        return False

    def keys_values(self, layer: int, kv_heads: int) -> tuple[list[Tensor], list[Tensor]]:
        """Return per slot keys and values [KV, T, D] of the layer-th full layer."""
        low = 2 * kv_heads * layer
        keys, values = [], []
        for slot in self.all:
            assert slot.kv is not None
            keys.append(slot.kv.tensor[low : low + kv_heads])
            values.append(slot.kv.tensor[low + kv_heads : low + 2 * kv_heads])
        return keys, values


def _last(tokens: NDArray[np.int32]) -> bytes:
    """Return what checkpoints of one length are told apart by at first."""
    return tokens[-CHUNK:].tobytes()
