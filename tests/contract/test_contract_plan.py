"""Plans: explicit order over streams; whatever is unordered and shares a buffer is refused."""

from __future__ import annotations

import pytest
import torch

from flashrt_ros.contract.buffer import Buffer
from flashrt_ros.contract.context import Context
from flashrt_ros.contract.errors import (
    DuplicateNameError,
    MissingVariantError,
    PlanError,
    ReboundError,
)
from flashrt_ros.contract.graph import Graph, ShapeKey
from flashrt_ros.contract.plan import Plan

KEY = ShapeKey(n=1)


class Rig:
    """Three buffers in a row and graphs that hand a value on: a -> b -> c."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.a, self.b, self.c = (ctx.buffer(name, (1 << 16,), torch.float32) for name in 'abc')
        self.fast, self.slow = ctx.stream('fast', priority=-1), ctx.stream('slow')
        self.first = self.graph('first', self.a, self.b)
        self.second = self.graph('second', self.b, self.c)
        self.plan = Plan(ctx, 'chunk')

    def graph(self, name: str, source: Buffer, target: Buffer) -> Graph:
        """Writes source + 1 into target, the long way."""
        graph = self.ctx.graph(name, reads=(source,), writes=(target,), pool=name)

        def fn() -> None:
            value = source.tensor
            for _ in range(10):
                value = value * 1.0
            target.tensor.copy_(value + 1)

        graph.capture(KEY, fn)
        return graph


@pytest.fixture
def rig(ctx: Context) -> Rig:
    """A rig on each backend."""
    return Rig(ctx)


def test_a_plan_runs_in_order_across_streams_and_joins_the_caller(rig: Rig) -> None:
    """The caller's stream sees the last result without waiting on the host in between."""
    rig.plan.add('one', rig.first, KEY, stream=rig.fast)
    rig.plan.add('two', rig.second, KEY, stream=rig.slow, after=('one',))
    for turn in range(1, 6):
        rig.a.tensor.fill_(turn)
        rig.plan.run()
        assert bool((rig.c.tensor == turn + 2).all())
    assert rig.plan.nodes == ('one', 'two')


def test_one_stream_is_ordered_by_itself(rig: Rig) -> None:
    """No dependency is needed between nodes of the same stream."""
    rig.plan.add('one', rig.first, KEY)
    rig.plan.add('two', rig.second, KEY)
    rig.plan.run()
    assert bool((rig.c.tensor == 2).all())


@pytest.mark.parametrize(
    ('after', 'says'),
    [
        (('two',), "depends on 'two'"),
        (('later',), 'known nodes: one'),
        (('one', 'one'), 'twice'),
        ('one', r"use \('one',\)"),
    ],
)
def test_a_misordered_dependency_is_refused_when_added(
    rig: Rig, after: tuple[str, ...], says: str
) -> None:
    """Planted faults: itself, a later one, twice, a bare string. The plan stays as it was."""
    rig.plan.add('one', rig.first, KEY, stream=rig.fast)
    with pytest.raises(PlanError, match=says):
        rig.plan.add('two', rig.second, KEY, stream=rig.slow, after=after)
    assert rig.plan.nodes == ('one',)


def test_a_race_is_refused_when_added(rig: Rig) -> None:
    """Planted faults: read after write, write after read, write after write, unordered."""
    for second in (
        rig.second,
        rig.graph('back', rig.c, rig.a),
        rig.graph('twice', rig.c, rig.b),
    ):
        plan = Plan(rig.ctx, 'race')
        plan.add('one', rig.first, KEY, stream=rig.fast)
        with pytest.raises(PlanError, match=r"while 'one' uses it .* add after=\('one',\)"):
            plan.add('two', second, KEY, stream=rig.slow)
        plan.add('two', second, KEY, stream=rig.slow, after=('one',))


def test_order_is_followed_through_other_nodes(rig: Rig) -> None:
    """A dependency of a dependency is order enough; so is an earlier node of the stream."""
    spare = rig.ctx.buffer('d', (1 << 16,), torch.float32)
    rig.plan.add('one', rig.first, KEY, stream=rig.fast)
    rig.plan.add('tail', rig.graph('side', rig.b, spare), KEY, stream=rig.fast)
    rig.plan.add('two', rig.second, KEY, stream=rig.slow, after=('tail',))
    rig.plan.run()
    assert bool((rig.c.tensor == 2).all())


def test_names_and_variants_are_checked_when_added(rig: Rig) -> None:
    """Planted faults: a name twice, a key that was never captured."""
    rig.plan.add('one', rig.first, KEY)
    with pytest.raises(DuplicateNameError, match="'one'"):
        rig.plan.add('one', rig.second, KEY)
    with pytest.raises(MissingVariantError, match="'second'"):
        rig.plan.add('two', rig.second, ShapeKey(n=2))


def test_nothing_runs_when_a_later_node_cannot(rig: Rig) -> None:
    """Planted fault: the second node's port was rebound; the first node does not run either."""
    rig.plan.add('one', rig.first, KEY)
    rig.plan.add('two', rig.second, KEY)
    keep = rig.c.tensor.clone()
    rig.c.tensor.set_(keep)
    with pytest.raises(ReboundError, match="'second' port 'c'"):
        rig.plan.run()
    assert not rig.b.tensor.any()
