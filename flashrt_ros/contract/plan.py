"""Plan: a DAG of replays over streams, ordered by explicit dependencies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flashrt_ros.contract.errors import DuplicateNameError, PlanError
from flashrt_ros.contract.graph import Graph, ShapeKey
from flashrt_ros.contract.stream import Event, Stream

if TYPE_CHECKING:
    from flashrt_ros.contract.context import Context


@dataclass(eq=False)
class _Node:
    name: str
    graph: Graph
    key: ShapeKey
    stream: Stream | None
    after: tuple[_Node, ...]
    done: Event
    before: set[str] = field(default_factory=set)  # every node that is finished when this starts

    @property
    def awaited(self) -> tuple[_Node, ...]:
        return tuple(node for node in self.after if node.stream is not self.stream)


class Plan:
    """Replays in the order they were added; nodes of one stream follow each other.

    To the caller a plan is one piece of work of the current stream: it starts after what that
    stream was given before, and what the stream is given next starts after it.

    Args:
        ctx: the context of its graphs.
        name: shown in errors.
    """

    def __init__(self, ctx: Context, name: str) -> None:
        self.name = name
        self._ctx = ctx
        self._nodes: dict[str, _Node] = {}
        self._start = ctx.event(f'{name}/start')

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names in the order of their launch."""
        return tuple(self._nodes)

    def add(
        self,
        name: str,
        graph: Graph,
        key: ShapeKey,
        stream: Stream | None = None,
        after: Sequence[str] = (),
    ) -> None:
        """Add a replay of `graph` at `key` on `stream` (default: the caller's), `after` others.

        Raises:
            DuplicateNameError: the name is taken.
            PlanError: a dependency is unknown, later, repeated or the node itself; or the node
                touches a buffer that an unordered node on another stream writes (a race).
            MissingVariantError: the graph has no variant for `key`.
        """
        if name in self._nodes:
            raise DuplicateNameError(f'plan {self.name!r} has a node {name!r}: use another name')
        if isinstance(after, str):
            raise PlanError(f'plan {self.name!r} node {name!r}: after={after!r}, use ({after!r},)')
        if len(set(after)) != len(after):
            raise PlanError(f'plan {self.name!r} node {name!r} names a dependency twice: {after}')
        for other in after:
            if other not in self._nodes:
                known = ', '.join(self._nodes) or 'none'
                raise PlanError(
                    f'plan {self.name!r} node {name!r} depends on {other!r}, which was not added '
                    f'before it; known nodes: {known}'
                )
        graph.require(key)
        parents = tuple(self._nodes[other] for other in after)
        node = _Node(name, graph, key, stream, parents, self._ctx.event(f'{self.name}/{name}'))
        for earlier in self._nodes.values():
            if earlier.stream is stream or earlier in parents:
                node.before |= {earlier.name} | earlier.before
        self._refuse_race(node)
        self._nodes[name] = node

    def _refuse_race(self, node: _Node) -> None:
        for other in self._nodes.values():
            if other.name in node.before:
                continue
            for mine, theirs, verb in (
                (node.graph.reads, other.graph.writes, 'reads'),
                (node.graph.writes, other.graph.reads, 'writes'),
                (node.graph.writes, other.graph.writes, 'writes'),
            ):
                names = {buffer.name for buffer in theirs.values()}
                for buffer in mine.values():
                    if buffer.name in names:
                        raise PlanError(
                            f'plan {self.name!r} node {node.name!r} {verb} buffer '
                            f'{buffer.name!r} while {other.name!r} uses it on another stream: '
                            f'add after=({other.name!r},)'
                        )

    def run(self) -> None:
        """Launch every node; does not wait for them. All variants are checked before the first.

        Raises:
            MissingVariantError, ReboundError, ThreadError: as `Graph.replay`; nothing ran.
        """
        self._ctx.require_thread(f'run of plan {self.name!r}')
        for node in self._nodes.values():
            node.graph.require(node.key)
            node.graph.check()
        caller = self._ctx.current_stream()
        self._start.record(caller)
        joined: set[int] = set()
        for node in self._nodes.values():
            if node.stream is not None and id(node.stream) not in joined:
                node.stream.wait(self._start)
                joined.add(id(node.stream))
            stream = node.stream or caller
            for other in node.awaited:
                stream.wait(other.done)
            node.graph.replay(node.key, stream=node.stream)
            node.done.record(stream)
        for last in {id(node.stream): node for node in self._nodes.values()}.values():
            if last.stream is not None:
                caller.wait(last.done)
