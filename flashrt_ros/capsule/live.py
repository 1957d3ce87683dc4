"""Live: the closure's buffers as they are now, and how much of a rope they are known to hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from flashrt_ros.capsule import host_state
from flashrt_ros.capsule.arena import Block
from flashrt_ros.capsule.closure import Closure
from flashrt_ros.capsule.errors import ClosureError, HostStateError
from flashrt_ros.capsule.layout import Layout
from flashrt_ros.capsule.mover import Piece, choose
from flashrt_ros.capsule.segment import Node, Segment, Text
from flashrt_ros.contract.context import Context
from flashrt_ros.contract.stream import Stream

if TYPE_CHECKING:
    from flashrt_ros.capsule.registry import Registry

Growth = tuple[int, int, int]  # (rope, begin, end): positions that a snapshot copies
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
        strides = [rope.stride for rope in self.layout.ropes]
        self._rooms = tuple(zip(self._ropes, self.capacities, strides, strict=True))
        self._hosts = tuple(closure.host_entries.items())
        self._readers = [(name, entry.get) for name, entry in self._hosts]
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
            self.registry.gone(kept, {'gpu'}, None)

    def check(self) -> None:
        """Raise `ReboundError` when a buffer's memory was replaced."""
        if list(map(_data_ptr, self._tensors)) != self._addresses:
            for buffer in self._buffers:
                buffer.check()

    def survey(self) -> tuple[list[Text], list[Growth], list[int]]:
        """What a snapshot of now shares, what it copies, and how many bytes that is.

        A rope shares what the live buffers certainly still hold of the text that was saved or
        loaded last, as far as the device's memory has it. The bytes are those of the fixed part,
        then of every growth.
        """
        texts, growths, sizes = list(self.held), [], [self.layout.fixed_bytes]
        for index, (rope, room, stride) in enumerate(self._rooms):
            length = rope.length.read()
            if not 0 <= length <= room:
                raise ClosureError(
                    f'the length of append buffer {rope.entries[0].buffer.name!r} is {length}: '
                    f'use 0..{room}'
                )
            held = texts[index]
            text = held.cut(min(held.length, rope.length.intact(), length))
            while text.node is not None and not text.node.holders['gpu']:
                text = text.cut(text.node.begin)
            texts[index] = text
            if length > text.length:
                growths.append((index, text.length, length))
                sizes.append((length - text.length) * stride)
        return texts, growths, sizes

    def read_host(self) -> dict[str, Any]:
        """Deep copies of all host entries."""
        return {name: host_state.copy(read(), name) for name, read in self._readers}

    def write_host(self, state: dict[str, Any]) -> None:
        """Set all host entries, or none: when one refuses, those before it are put back.

        Raises:
            HostStateError: an entry refused; names it.
        """
        # Who refuses has changed nothing itself, so the last needs no copy of what it had.
        before = {name: host_state.copy(read(), name) for name, read in self._readers[:-1]}
        done: list[str] = []
        for name, entry in self._hosts:
            try:
                entry.set(host_state.again(state[name]))
            except Exception as error:
                for earlier in reversed(done):
                    self.closure.host_entries[earlier].set(before[earlier])
                raise HostStateError(
                    f'host entry {name!r} refused its state ({error}); nothing was restored: '
                    'its set must take whatever its get returned'
                ) from error
            done.append(name)

    def load(self, fixed: Block, texts: tuple[Text, ...]) -> None:
        """Put a fixed part and texts into the live buffers; copies only what differs."""
        pieces: list[Piece] = []
        for index, text in enumerate(texts):
            same = self.held[index].common(text)
            if same:
                same = min(same, self._ropes[index].length.intact())
            if same < text.length:
                pieces += [
                    (index, node.blocks['gpu'], node.begin, node.end, first, last)
                    for node, first, last in text.pieces(same)
                ]
        try:
            self.mover.load(fixed, pieces)
        finally:  # the device is at work; the books are kept meanwhile, also of half a load
            for buffer in self._buffers:
                buffer._touches += 1
        self.settle(texts, written=True)

    def save(self, blocks: Sequence[Block], growths: Sequence[Growth]) -> None:
        """Copy the fixed part and the growths into blocks of the sizes that `survey` named."""
        pieces: list[Piece] = []
        for index, begin, end in growths:
            pieces.append((index, blocks[1 + len(pieces)], begin, end, begin, end))
        self.mover.save(blocks[0], pieces)

    def saved(
        self, blocks: Sequence[Block], texts: list[Text], growths: Sequence[Growth]
    ) -> tuple[Segment, tuple[Text, ...]]:
        """The fixed part, and `texts` with their growths: what `save` put into the blocks."""
        fixed = Segment(blocks[0].nbytes)
        fixed.blocks['gpu'] = blocks[0]
        for number, (index, begin, end) in enumerate(growths, 1):
            node = Node(texts[index].node, begin, end, self.layout.ropes[index].stride, index)
            node.blocks['gpu'] = blocks[number]
            texts[index] = Text(node, end)
        whole = tuple(texts)
        if whole:
            self.settle(whole)
        return fixed, whole

    def settle(self, texts: tuple[Text, ...], written: bool = False) -> None:
        """The live buffers hold `texts`: just `written` there, or as they were surveyed."""
        for index, text in enumerate(texts):
            self.held[index] = text
            old = self._kept[index]
            if text.node is not old:
                if text.node is not None:
                    text.node.hold('gpu')
                if old is not None:
                    old.release('gpu')
                self._kept[index] = text.node
            self._ropes[index].length.settle(text.length, written)
