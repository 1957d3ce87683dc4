"""The fork engine: rounds of requests through a small family of captured flat graphs.

A round becomes one stream of rows. The smallest graph whose stream has room for it is replayed;
a round too large for any is split along its requests; a single request too large for any runs
the same code uncaptured, which `Statistics.uncaptured` counts. On the CPU nothing is captured:
the same code runs over the rows in use.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flashrt_policies.hybrid_lm.config import LMConfig
from flashrt_policies.hybrid_lm.fork import layers, plan
from flashrt_policies.hybrid_lm.fork.request import Answer, Checked, ForkError, Request, check
from flashrt_policies.hybrid_lm.fork.slots import Slots
from flashrt_policies.hybrid_lm.weights import Weights
from flashrt_policies.kernels import sources
from flashrt_policies.kernels.attention import inverse_frequencies
from flashrt_policies.kernels.fork.stream import Sizes, Tables, views
from flashrt_policies.kernels.gated_delta import CHUNK
from flashrt_ros.contract.graph import ShapeKey

if TYPE_CHECKING:
    from flashrt_policies.hybrid_lm.model import HybridLM
    from flashrt_ros.capsule.registry import Registry
    from flashrt_ros.contract.buffer import Buffer
    from flashrt_ros.contract.context import Context

KERNELS = 'fork/4'  # grows when other launches of the kernels change bits
Tail = Callable[[Tables, Tensor], None]
# Streams up to so many rows have a second graph, for rounds of few branches: in a short one the
# programs that find no branch take longer than the others.
SLIM_ROWS, SLIM_BRANCHES = 1536, 8


def family(largest: int) -> tuple[int, ...]:
    """Return stream capacities up to `largest` rows; most leave at most an eighth unused.

    Wide streams are bound by arithmetic, which padding costs, so they stand closer.
    """
    found, size = [], CHUNK
    while size < largest:
        found.append(size)
        size += CHUNK if size < 1024 else 128 if size < 4096 else 512
    return (*found, largest)


@dataclass
class Statistics:
    """What an engine has done.

    Attributes:
        rounds: calls of `ForkEngine.round`.
        passes: streams run; more than rounds where some were split.
        uncaptured: of these, requests too large for any graph.
        branches: questions answered.
        rows: tokens computed.
        resumed: tokens of states that checkpoints stood for.
        checkpoints: left in the registry.
        dropped: given up, or evicted to make room for newer ones.
    """

    rounds: int = 0
    passes: int = 0
    uncaptured: int = 0
    branches: int = 0
    rows: int = 0
    resumed: int = 0
    checkpoints: int = 0
    dropped: int = 0


class ForkEngine:
    """Answers many questions on one state, and several states, in one pass.

    Args:
        ctx: the device's context, not frozen yet; the graphs are captured here.
        config: dimensions of the model.
        weights: its parameters, on the context's device.
        registry: where states leave checkpoints for later requests; None keeps none.
        slots: requests that run in one pass.
        capacity: longest state, tokens.
        streams: rows of each graph's stream, ascending; None for `family(8192)`.
        deterministic: an answer keeps its bits alone, among other questions and requests, and
            after a resume.
        tail: called at the end of every pass, inside the graph, with the round's tables and the
            logits (float32, options of branch b from ``bounds[b]`` to ``bounds[b + 1]``): what
            must follow without the host.
        tail_writes: buffers that `tail` writes.
        name: first part of the names of buffers and graphs.
    """

    def __init__(
        self,
        ctx: Context,
        config: LMConfig,
        weights: Weights,
        registry: Registry | None = None,
        *,
        slots: int = 4,
        capacity: int = 4096,
        streams: Sequence[int] | None = None,
        deterministic: bool = False,
        tail: Tail | None = None,
        tail_writes: Sequence[Buffer] = (),
        name: str = 'fork',
    ) -> None:
        self.ctx, self.config, self.weights, self.name = ctx, config, weights, name
        self.capacity, self.deterministic, self._tail = capacity, deterministic, tail
        self.statistics = Statistics()
        self.streams = tuple(family(8192) if streams is None else streams)
        if not self.streams or list(self.streams) != sorted({*self.streams}):
            raise ForkError(f'streams {self.streams}; want ascending numbers of rows')
        slim = [room(x, slots, branches=SLIM_BRANCHES) for x in self.streams if x <= SLIM_ROWS]
        wide = [room(rows, slots) for rows in self.streams]
        self._rooms = sorted([*slim, *wide], key=lambda x: (x.rows, x.branches))
        self._keys = {x: ShapeKey(rows=x.rows, branches=x.branches) for x in self._rooms}
        deployment: dict[str, object] = {
            'weights': weights.digest,
            'architecture': config.describe(),
            'dtype': str(weights.embed.dtype),
            'kernels': f'{KERNELS} {sources.digest()[:16]}',
            'deterministic': str(deterministic),
        }
        dtype = weights.embed.dtype
        self.slots = Slots(ctx, config, slots, capacity, dtype, name, registry, deployment)
        scaling = config.rope_scaling
        freq = inverse_frequencies(config.rotary_dim, config.rope_theta, scaling).to(ctx.device)
        self._stage = layers.stage(config, weights, self.slots, freq, deterministic)
        most = self._rooms[-1]
        self.tables = ctx.buffer(f'{name}/tables', (most.words,), torch.int32)
        self.logits = ctx.buffer(f'{name}/logits', (most.options,), torch.float32)
        self._cuda = ctx.device.type == 'cuda'
        self._align = layers.STEADY_ROWS if deterministic and not self._cuda else 1
        self._staged = torch.zeros(most.words, dtype=torch.int32, pin_memory=self._cuda)
        self._read = torch.zeros(most.options, dtype=torch.float32, pin_memory=self._cuda)
        self._words, self._arrived = self._staged.numpy(), self._read.numpy()
        self._done = ctx.event(f'{name}/answered')
        self._slot_buffers = tuple(b for slot in self.slots.all for b in slot.buffers)
        if self._cuda:
            self._graph = ctx.graph(
                f'{name}/pass',
                reads=(self.tables,),
                writes=(*self._slot_buffers, self.logits, *tail_writes),
                bound=len(self._rooms),
                pool=name,
            )
            for sizes in reversed(self._rooms):
                tables = views(self.tables.tensor, sizes, deterministic)
                self._graph.capture(self._keys[sizes], partial(self._body, tables))

    @classmethod
    def of(cls, lm: HybridLM, registry: Registry | None = None, **options: object) -> ForkEngine:
        """Return an engine over the weights of a model that is loaded already."""
        return cls(lm.ctx, lm.config, lm.weights, registry, **options)  # type: ignore[arg-type]

    def _body(self, tables: Tables) -> None:
        logits = self.logits.tensor[: tables.sizes.options]
        self._compute(tables, logits)

    def _compute(self, tables: Tables, logits: Tensor) -> None:
        layers.run(self._stage, tables, logits)
        if self._tail is not None:
            self._tail(tables, logits)

    def round(self, requests: Sequence[Request]) -> list[list[Answer]]:
        """Answer every branch of every request.

        Args:
            requests: one or more.

        Returns:
            For each request one answer per branch.

        Raises:
            ForkError: a request is empty, too long or outside the vocabulary; nothing ran.
        """
        waiting = deque(check(x, self.config.vocab, self.capacity) for x in requests)
        answers: list[list[Answer]] = []
        self.statistics.rounds += 1
        while waiting:
            placed, sizes = self._gather(waiting)
            answers += self._pass(placed, sizes)
        return answers

    def _gather(self, waiting: deque[Checked]) -> tuple[list[plan.Placed], Sizes]:
        """Take as many requests as one stream has room for, one at least."""
        placed: list[plan.Placed] = []
        total: Sizes | None = None
        while waiting and len(placed) < len(self.slots.all):
            asked = waiting[0]
            resumed, capsule = self.slots.match(asked.state)
            own = plan.sizes_of(asked, resumed, self._align)
            sizes = own if total is None else plan.joined(total, own)
            if total is not None and not sizes.fits(self._rooms[-1]):
                break
            waiting.popleft()
            total = sizes
            slot = self.slots.take(capsule, [x.slot for x in placed])
            placed.append(plan.Placed(asked, slot, resumed))
        assert total is not None
        return placed, total

    def _pass(self, placed: list[plan.Placed], used: Sizes) -> list[list[Answer]]:
        fitting = next((x for x in self._rooms if used.rows <= x.rows and used.fits(x)), None)
        # On the CPU the work is cut to what is used; a graph's is cut by the kernels.
        sizes = fitting if self._cuda and fitting is not None else self._exact(used)
        read, bounds = self._launch(placed, sizes, fitting is not None)
        self._done.record(self.ctx.current_stream())
        # The device is at work from here on; the books are kept and answers made meanwhile.
        self._checkpoint(placed)
        done = self.statistics
        done.passes += 1
        done.uncaptured += fitting is None
        done.branches += used.branches
        done.rows += used.rows
        done.resumed += sum([x.resumed for x in placed])
        done.dropped = self.slots.dropped
        found = np.empty(bounds[-1], np.float32)
        parts = iter([Answer(found[a:b]) for a, b in zip(bounds, bounds[1:], strict=False)])
        answers = [[next(parts) for _ in x.asked.lengths] for x in placed]
        while not self._done.reached():  # the checkpoints' copies are not waited for
            pass
        found[:] = read[: bounds[-1]]
        return answers

    def _exact(self, used: Sizes) -> Sizes:
        """Return the room of a stream for this round alone."""
        if self._cuda:
            # Never a product of a single row: it has a kernel of its own, with bits of its own.
            return room(-(-used.rows // CHUNK) * CHUNK, len(self.slots.all), used)
        # torch rounds the last few elements of a tensor otherwise than whole vectors of them, so
        # no row that counts may be among them where bits matter.
        branches = used.branches + -used.branches % self._align
        return replace(used, branches=branches)

    def _launch(
        self, placed: list[plan.Placed], sizes: Sizes, fits: bool
    ) -> tuple[NDArray[np.float32], list[int]]:
        """Start a pass and the way of its logits to the host; returns where they arrive."""
        small = sizes.words <= self._staged.numel() and sizes.options <= self._read.numel()
        staged, read = self._staged, self._read
        if not small:
            staged = torch.zeros(sizes.words, dtype=torch.int32)
            read = torch.zeros(sizes.options, pin_memory=self._cuda)
        words = self._words if small else staged.numpy()
        bounds = plan.lay_out(placed, sizes, words[: sizes.words], self._align)
        marks = {x.slot: max(x.mark, 0) for x in placed}
        count = bounds[-1]
        if small:
            flat, logits = self.tables.tensor, self.logits.tensor
            flat[: sizes.words].copy_(staged[: sizes.words], non_blocking=True)
        else:
            flat = staged.to(self.ctx.device)
            logits = torch.empty(sizes.options, device=self.ctx.device)
        with self.slots.written(marks):
            if fits and self._cuda:
                self._graph.replay(self._keys[sizes])
            else:
                with torch.no_grad():
                    self._compute(views(flat, sizes, self.deterministic), logits[: sizes.options])
                for buffer in self._slot_buffers:
                    buffer.touch()
        read[:count].copy_(logits[:count], non_blocking=True)
        return self._arrived if small else read.numpy(), bounds

    def _checkpoint(self, placed: list[plan.Placed]) -> None:
        for x in placed:
            if x.mark > 0 and self.slots.keep(x.slot, x.asked.state) is not None:
                self.statistics.checkpoints += 1


def room(rows: int, slots: int, used: Sizes | None = None, branches: int | None = None) -> Sizes:
    """Return the room of a stream of `rows` rows.

    Args:
        rows: M.
        slots: requests in one pass.
        used: what it must hold at least; None for nothing in particular.
        branches: that it has room for; None for many.
    """
    branches = max(branches or max(64, rows // 32), used.branches if used else 0)
    options = max(32 * branches, used.options if used else 0)
    chunks = max(rows // CHUNK + slots + branches, used.chunks if used else 0)
    return Sizes(rows, slots, branches, chunks, options)
