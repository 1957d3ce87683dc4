"""Guards at run time: no allocation, one replay thread, streams and events in order."""

from __future__ import annotations

import threading

import pytest
import torch

from flashrt_ros.contract.context import Context
from flashrt_ros.contract.errors import AllocationError, CaptureError, ThreadError
from flashrt_ros.contract.graph import Graph, ShapeKey

KEY = ShapeKey(n=1)


def busy(ctx: Context) -> Graph:
    """A graph with scratch memory of its own."""
    out = ctx.buffer('out', (64,), torch.float32)
    graph = ctx.graph('busy', writes=(out,))
    graph.capture(KEY, lambda: out.tensor.add_(torch.ones_like(out.tensor)))
    return graph


def test_replays_allocate_nothing(ctx: Context) -> None:
    """A replay's scratch is no allocation: it was set aside at the capture."""
    graph = busy(ctx)
    with ctx.guard_allocations():
        for _ in range(3):
            graph.replay(KEY)
    assert ctx.buffers['out'].tensor[0].item() == 3


def test_an_allocation_between_replays_is_caught(ctx: Context) -> None:
    """Planted fault: new memory on the way, on each backend."""
    graph = busy(ctx)
    with pytest.raises(AllocationError, match='only replays are allowed'), ctx.guard_allocations():
        graph.replay(KEY)
        torch.zeros(10_000, device=ctx.device)


def test_in_place_work_is_no_allocation(ctx: Context) -> None:
    """The guard does not cry wolf: writes and views pass."""
    graph = busy(ctx)
    value = torch.ones(64, device=ctx.device)
    with ctx.guard_allocations():
        ctx.buffers['out'].write(value)
        ctx.buffers['out'].tensor[3:].zero_()
        graph.replay(KEY)


def test_a_buffer_made_inside_a_replay_is_refused() -> None:
    """Planted fault on the CPU, where a replay runs Python: the callable changes its mind."""
    ctx = Context('cpu')
    out = ctx.buffer('out', (4,), torch.float32)
    late = []

    def fn() -> None:
        out.tensor.add_(1)
        if late:
            ctx.buffer('late', (1,), torch.int32)

    graph = ctx.graph('g', writes=(out,))
    graph.capture(KEY, fn)
    late.append(1)
    with pytest.raises(CaptureError, match="make buffer 'late' inside replay"):
        graph.replay(KEY)
    late.clear()
    graph.replay(KEY)


def in_thread(call: object) -> list[BaseException]:
    """Run `call` in another thread and return what it raised."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, name='intruder')
    thread.start()
    thread.join()
    return raised


def test_a_bound_context_refuses_replays_from_another_thread(ctx: Context) -> None:
    """Planted fault: an intruder; the error names both threads. Unbound, anybody may replay."""
    graph = busy(ctx)
    assert in_thread(lambda: graph.replay(KEY)) == []
    ctx.bind_thread()
    graph.replay(KEY)
    (error,) = in_thread(lambda: graph.replay(KEY))
    assert isinstance(error, ThreadError)
    assert 'intruder' in str(error)
    assert threading.current_thread().name in str(error)
    ctx.synchronize()
    assert ctx.buffers['out'].tensor[0].item() == 2


def test_the_binding_can_move(ctx: Context) -> None:
    """The thread that calls bind_thread last is the one."""
    graph = busy(ctx)
    ctx.bind_thread()

    def take_over() -> None:
        ctx.bind_thread()
        graph.replay(KEY)

    assert in_thread(take_over) == []
    with pytest.raises(ThreadError, match='intruder'):
        graph.replay(KEY)


def test_streams_wait_for_events_and_writes_follow_their_stream(ctx: Context) -> None:
    """A write on one stream is seen by a copy on another that waits for its event."""
    source = ctx.buffer('source', (1 << 20,), torch.float32)
    target = ctx.buffer('target', (1 << 20,), torch.float32)
    one, two, written = ctx.stream('one'), ctx.stream('two', priority=-1), ctx.event('written')
    value = torch.full((1 << 20,), 3.0, device=ctx.device)
    ctx.synchronize()
    source.write(value, stream=one)
    written.record(one)
    two.wait(written)
    target.write(source.tensor, stream=two)
    two.synchronize()
    assert written.reached()
    assert bool((target.tensor == 3).all())
