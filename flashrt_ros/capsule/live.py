"""Live: the closure's buffers as they are now, and how much of a rope they are known to hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from flashrt_ros.capsule import host_state
from flashrt_ros.capsule.arena import Block
from flashrt_ros.capsule.closure import Closure
from flashrt_ros.capsule.errors import ClosureError, HostStateError
from flashrt_ros.capsule.layout import Layout
from flashrt_ros.capsule.mover import Piece, choose
from flashrt_ros.capsule.segment import Node, Text
from flashrt_ros.contract.context import Context
from flashrt_ros.contract.stream import Stream

if TYPE_CHECKING:
    from flashrt_ros.capsule.registry import Registry

_data_ptr = torch.Tensor.data_ptr


class Live:
    """One per closure, shared by all its sessions.

    `held` says, per rope, which text the live buffers hold; together with the lengths' `intact`
    it decides which bytes a snapshot or a restore may leave alone. What is held also stays in the
    gpu tier while there is room, even after its capsules moved down, so that the next snapshot
    still costs what changed.
    """

    def __init__(self, ctx: Context, closure: Closure, stream: Stream) -> None:
        closure.seal()
        for buffer in closure.buffers:
            if ctx.buffers.get(buffer.name) is not buffer:
                raise ClosureError(
                    f'closure {closure.name!r}: buffer {buffer.name!r} belongs to another '
                    'context; make one closure per context'
                )
        self.closure = closure
        self.layout = Layout(closure)
        self.mover = choose(self.layout, stream, ctx.device)
        self._ropes = closure.ropes
        self._buffers = closure.buffers
        self._tensors = [buffer.tensor for buffer in closure.buffers]
        self._addresses = [buffer.address for buffer in closure.buffers]
        self.capacities = [rope.capacity for rope in closure.ropes]
        self._rooms = tuple(zip(self._ropes, self.capacities, strict=True))
        self._hosts = tuple(closure.host_entries.items())
        self.registry: Registry | None = None
        self.held = [Text(None, 0) for _ in self._ropes]
        self._kept: list[Node | None] = [None for _ in self._ropes]  # counted in the gpu tier

    def use(self, registry: Registry) -> None:
        """Segments come from `registry` from now on; those of another one are not shared."""
        if self.registry is not registry:
            self.let_go()
            self.held = [Text(None, 0) for _ in self._ropes]
            self.registry = registry
            registry.lives.add(self)

    def let_go(self) -> bool:
        """Give the gpu tier back what only the live state holds there; False when nothing is."""
        kept = [node for node in self._kept if node is not None]
        for node in kept:
            node.release('gpu')
        self._kept = [None for _ in self._ropes]
        return bool(kept)

    def __del__(self) -> None:
        kept = tuple(node for node in getattr(self, '_kept', ()) if node is not None)
        if kept and self.registry is not None:
            self.registry.collect_later(kept, {'gpu'}, None)

    def check(self) -> None:
        """Raise `ReboundError` when a buffer's memory was replaced."""
        if list(map(_data_ptr, self._tensors)) != self._addresses:
            for buffer in self._buffers:
                buffer.check()

    def lengths(self) -> list[int]:
        """Valid positions of every rope now."""
        lengths = []
        for rope, room in self._rooms:
            length = rope.length.read()
            if not 0 <= length <= room:
                name = rope.entries[0].buffer.name
                raise ClosureError(
                    f'the length of append buffer {name!r} is {length}: use 0..{room}'
                )
            lengths.append(length)
        return lengths

    def known(self, rope: int) -> Text:
        """What the live buffers certainly hold of the text that was saved or loaded last."""
        held = self.held[rope]
        return Text(held.node, min(held.length, self._ropes[rope].length.intact()))

    def read_host(self) -> dict[str, Any]:
        """Deep copies of all host entries."""
        return {name: host_state.copy(entry.get(), name) for name, entry in self._hosts}

    def write_host(self, state: dict[str, Any]) -> None:
        """Set all host entries, or none: when one refuses, those before it are put back.

        Raises:
            HostStateError: an entry refused; names it.
        """
        before = self.read_host()
        done: list[str] = []
        for name, entry in self._hosts:
            try:
                entry.set(host_state.copy(state[name], name))
            except Exception as error:
                for earlier in (*reversed(done), name):
                    self.closure.host_entries[earlier].set(before[earlier])
                raise HostStateError(
                    f'host entry {name!r} refused its state ({error}); nothing was restored: '
                    'its set must take whatever its get returned'
                ) from error
            done.append(name)

    def load(self, fixed_block: Block, texts: tuple[Text, ...]) -> None:
        """Put a fixed part and texts into the live buffers; copies only what differs."""
        pieces: list[Piece] = []
        for index, text in enumerate(texts):
            same = self.known(index).common(text)
            if same < text.length:
                pieces += [
                    (index, node.blocks['gpu'], node.begin, node.end, first, last)
                    for node, first, last in text.pieces(same)
                ]
        self.mover.load(fixed_block, pieces)
        # The device is at work from here on; the books are kept meanwhile.
        for buffer in self._buffers:
            buffer._touches += 1
        self.settle(texts)

    def save(self, fixed_block: Block, new: list[Node]) -> None:
        """Copy the fixed part and the new nodes' positions out of the live buffers."""
        self.mover.save(
            fixed_block,
            [
                (node.rope, node.blocks['gpu'], node.begin, node.end, node.begin, node.end)
                for node in new
            ],
        )

    def settle(self, texts: tuple[Text, ...]) -> None:
        """The live buffers now hold `texts`."""
        for index, (rope, text) in enumerate(zip(self._ropes, texts, strict=True)):
            self.held[index] = text
            old = self._kept[index]
            if text.node is not old:
                if text.node is not None:
                    text.node.hold('gpu')
                if old is not None:
                    old.release('gpu')
                self._kept[index] = text.node
            rope.length.settle(text.length)
