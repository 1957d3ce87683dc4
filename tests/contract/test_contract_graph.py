"""Graphs: exact keys, static ports, and captures that leave no trace."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from flashrt_ros.contract.buffer import Buffer
from flashrt_ros.contract.context import Context
from flashrt_ros.contract.errors import (
    CaptureError,
    DuplicateNameError,
    FrozenError,
    MissingVariantError,
    ReboundError,
)
from flashrt_ros.contract.graph import Graph, ShapeKey

KEY = ShapeKey(n=1)


def counter(ctx: Context) -> tuple[Graph, Buffer, Buffer]:
    """A graph that adds `step` to `count`, captured at KEY."""
    count = ctx.buffer('count', (1,), torch.int64)
    step = ctx.buffer('step', (1,), torch.int64)
    step.write(torch.tensor([2], device=ctx.device))
    graph = ctx.graph('counter', reads={'step': step}, writes={'count': count})
    graph.capture(KEY, lambda: count.tensor.add_(step.tensor))
    return graph, count, step


def test_replay_does_what_was_captured_with_the_values_of_now(ctx: Context) -> None:
    """What changes at run time is read from buffers, never baked in."""
    graph, count, step = counter(ctx)
    graph.replay(KEY)
    step.write(torch.tensor([40], device=ctx.device))
    graph.replay(KEY)
    assert count.tensor.item() == 42


def test_capture_changes_no_byte_of_any_buffer(ctx: Context) -> None:
    """Warm-ups run the callable, and their traces are wiped, NaN payloads included."""
    state = ctx.buffer('state', (4,), torch.float32)
    other = ctx.buffer('other', (4,), torch.float32)
    bits = torch.tensor([0x7FC00001, 0x3F800000, 1, -1], dtype=torch.int32, device=ctx.device)
    state.tensor.view(torch.int32).copy_(bits)
    runs = []

    def fn() -> None:
        runs.append(1)
        state.tensor.mul_(2).add_(1)

    ctx.graph('g', writes=(state,)).capture(KEY, fn)
    assert runs, 'the callable was never run: nothing was tested'
    assert torch.equal(state.tensor.view(torch.int32), bits)
    assert not other.tensor.any()


def test_a_capture_that_fails_leaves_no_trace_and_no_variant(ctx: Context) -> None:
    """Planted fault: a callable that raises half way."""
    state = ctx.buffer('state', (4,), torch.float32)
    graph = ctx.graph('g', writes=(state,))

    def fn() -> None:
        state.tensor.add_(1)
        raise ZeroDivisionError('planted')

    with pytest.raises(ZeroDivisionError, match='planted'):
        graph.capture(KEY, fn)
    assert not state.tensor.any()
    assert graph.keys == ()
    ctx.buffer('still', (1,), torch.int32)  # the context is usable again


def test_a_missing_variant_names_graph_key_and_the_keys_there_are(ctx: Context) -> None:
    """Planted fault: a key that was never captured; the error is a KeyError too."""
    graph, _, _ = counter(ctx)
    with pytest.raises(MissingVariantError) as caught:
        graph.replay(ShapeKey(n=2))
    assert isinstance(caught.value, KeyError)
    for part in ("'counter'", 'ShapeKey(n=2)', 'ShapeKey(n=1)'):
        assert part in str(caught.value)


def test_keys_are_exact() -> None:
    """Order does not matter, every size does; only int and str are sizes."""
    assert ShapeKey(a=1, b='x') == ShapeKey(b='x', a=1)
    assert hash(ShapeKey(a=1, b='x')) == hash(ShapeKey(b='x', a=1))
    assert ShapeKey(a=1) != ShapeKey(a=2)
    assert ShapeKey(a=1) != ShapeKey(a=1, b=1)
    with pytest.raises(TypeError, match='use int or str'):
        ShapeKey(a=True)
    with pytest.raises(TypeError, match='use int or str'):
        ShapeKey(a=1.0)


def test_the_table_is_bounded_and_drops_the_least_recently_replayed(ctx: Context) -> None:
    """A replay counts as use; dropping happens at a capture, never at a replay."""
    out = ctx.buffer('out', (1,), torch.int64)
    graph = ctx.graph('g', writes=(out,), bound=2)
    for n in (1, 2):
        graph.capture(ShapeKey(n=n), lambda n=n: out.tensor.fill_(n))
    graph.replay(ShapeKey(n=1))
    graph.capture(ShapeKey(n=3), lambda: out.tensor.fill_(3))
    assert set(graph.keys) == {ShapeKey(n=1), ShapeKey(n=3)}
    with pytest.raises(MissingVariantError):
        graph.replay(ShapeKey(n=2))
    graph.replay(ShapeKey(n=1))
    assert out.tensor.item() == 1


def test_a_port_rebound_after_capture_is_named(ctx: Context) -> None:
    """Planted fault: a write to a rebound address. The graph would still use the old memory."""
    graph, count, _ = counter(ctx)
    old = count.tensor.clone()  # keeps the new memory away from the old address
    count.tensor.set_(old)
    with pytest.raises(ReboundError, match="'counter' port 'count'"):
        graph.replay(KEY)


def unsafe(ctx: Context) -> dict[str, tuple[Callable[[], object], str]]:
    """Callables that no CUDA graph can hold, and what the error must say."""
    a, b, c = (ctx.buffer(name, (8,), torch.float32) for name in 'abc')
    kept: list[torch.Tensor] = []
    return {
        'reads back': (lambda: a.tensor.sum().item(), 'reads back to the host'),
        'data-dependent shape': (lambda: a.tensor[a.tensor > 0], 'depends'),
        'torch random numbers': (lambda: a.tensor.normal_(), 'generator'),
        'result escapes': (lambda: kept.append(a.tensor * 2), 'outlives'),
        'undeclared write': (lambda: b.tensor.fill_(1), "writes buffer 'b'"),
        'undeclared write, nothing changes': (lambda: b.tensor.mul_(1), "writes buffer 'b'"),
        'undeclared read': (lambda: a.tensor.copy_(c.tensor), "reads buffer 'c'"),
        'new buffer': (lambda: ctx.buffer('d', (1,), torch.int32), "make buffer 'd' inside"),
    }


@pytest.mark.parametrize('fault', list(unsafe(Context('cpu'))))
def test_a_callable_unfit_for_a_graph_is_refused_on_every_backend(
    ctx: Context, fault: str
) -> None:
    """Planted faults, one by one: what would fail on CUDA fails on the CPU as well."""
    fn, says = unsafe(ctx)[fault]
    graph = ctx.graph('g', writes=(ctx.buffers['a'],))
    with pytest.raises(CaptureError, match=says):
        graph.capture(KEY, fn)
    assert graph.keys == ()
    assert not any(buffer.tensor.any() for buffer in ctx.buffers.values())


def test_a_write_past_the_dispatcher_is_found_by_its_bytes(ctx: Context) -> None:
    """Planted fault: a raw kernel (here: plain memory access) writes a buffer that is no port."""
    if ctx.device.type != 'cpu':
        pytest.skip('raw memory access by the host: CPU only')
    a, b = ctx.buffer('a', (8,), torch.float32), ctx.buffer('b', (8,), torch.float32)
    raw = b.tensor.numpy()

    def fn() -> None:
        raw[3] = 1

    with pytest.raises(CaptureError, match="writes buffer 'b'"):
        ctx.graph('g', writes=(a,)).capture(KEY, fn)
    assert not b.tensor.any()


def test_capture_inside_a_replay_or_a_capture_is_refused(ctx: Context) -> None:
    """Planted fault: a callable that captures."""
    graph, count, _ = counter(ctx)
    other = ctx.graph('other', writes=(count,))

    def fn() -> None:
        graph.capture(ShapeKey(n=9), lambda: None)

    with pytest.raises(CaptureError, match='inside capture of graph'):
        other.capture(KEY, fn)


def test_names_ports_and_bounds_are_checked(ctx: Context) -> None:
    """Planted faults: a name twice, a port of another context, a bound of 0."""
    mine = ctx.buffer('a', (1,), torch.int32)
    ctx.graph('g', writes=(mine,))
    with pytest.raises(DuplicateNameError, match="'g' exists"):
        ctx.graph('g', writes=(mine,))
    foreign = Context('cpu').buffer('a', (1,), torch.int32)
    with pytest.raises(CaptureError, match='no buffer of this context'):
        ctx.graph('h', reads=(foreign,))
    with pytest.raises(CaptureError, match='use 1 or more'):
        ctx.graph('i', bound=0)


def test_a_frozen_context_replays_and_makes_nothing(ctx: Context) -> None:
    """After freeze: no buffer, graph, stream or capture; replays go on."""
    graph, count, _ = counter(ctx)
    ctx.freeze()
    for make in (
        lambda: ctx.buffer('x', (1,), torch.int32),
        lambda: ctx.graph('x'),
        lambda: ctx.stream('x'),
        lambda: graph.capture(ShapeKey(n=2), lambda: None),
    ):
        with pytest.raises(FrozenError, match='frozen'):
            make()
    graph.replay(KEY)
    assert count.tensor.item() == 2


def test_two_graphs_wired_to_one_buffer_hand_over_without_a_copy(ctx: Context) -> None:
    """What one writes the next one reads, at the same address."""
    a, b = ctx.buffer('a', (4,), torch.float32), ctx.buffer('b', (4,), torch.float32)
    first = ctx.graph('first', writes=(a,))
    second = ctx.graph('second', reads=(a,), writes=(b,))
    first.capture(KEY, lambda: a.tensor.add_(1))
    second.capture(KEY, lambda: b.tensor.copy_(a.tensor * 3))
    for _ in range(2):
        first.replay(KEY)
        second.replay(KEY)
    assert b.tensor.tolist() == [6.0] * 4


def test_one_pool_keeps_results_apart_on_two_streams(ctx: Context) -> None:
    """Graphs share scratch memory; replays on two streams are put in order by themselves."""
    size = 1 << 18
    outs = [ctx.buffer(f'out{i}', (size,), torch.float32) for i in range(2)]
    streams = [ctx.stream(f's{i}') for i in range(2)]
    graphs = []
    for value, out in enumerate(outs, start=1):
        graph = ctx.graph(f'g{value}', writes=(out,))

        def fn(value: int = value, out: Buffer = out) -> None:
            scratch = torch.full((size,), float(value), device=ctx.device)
            for _ in range(20):
                scratch = scratch * 1.0
            out.tensor.copy_(scratch)

        graph.capture(KEY, fn)
        graphs.append(graph)
    for _ in range(5):
        for graph, stream in zip(graphs, streams, strict=True):
            graph.replay(KEY, stream=stream)
    ctx.synchronize()
    for value, out in enumerate(outs, start=1):
        assert bool((out.tensor == value).all())
