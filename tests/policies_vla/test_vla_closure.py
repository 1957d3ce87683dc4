"""The closure of a real policy: complete, nothing in it superfluous, and nothing leaks past it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from vla_cases import FAMILIES, Bench, load

from flashrt_policies.base import ObservationError
from flashrt_ros.capsule.closure import Closure
from flashrt_ros.capsule.completeness import assert_complete
from flashrt_ros.capsule.errors import IncompleteError
from flashrt_ros.capsule.fingerprint import Fingerprint
from flashrt_ros.capsule.session import Session

# What the next chunk depends on, by the names of the closure; `state` where the network has one.
ENTRIES = {
    'vla/features', 'vla/kv', 'vla/length', 'vla/seed', 'vla/counter', 'vla/previous', 'vla/pace',
    'vla/prompt', 'subgoal/slots', 'subgoal/live',
}  # fmt: skip


class Leaky:
    """A closure that one entry never reaches."""

    def __init__(self, closure: Closure, missing: str) -> None:
        self._closure, self._missing = closure, missing

    def fixed(self, *buffers: Any) -> None:
        """Name all buffers but one."""
        self._closure.fixed(*(one for one in buffers if one.name != self._missing))

    def host(self, name: str, get: Any, set: Any) -> None:
        """Name host state unless it is the one."""
        if name != self._missing:
            self._closure.host(name, get=get, set=set)


def running(family: str, missing: str = '', pending: bool = False) -> tuple[Bench, Session]:
    """Return a policy in the middle of an episode, a chunk being executed, another due.

    With ``pending`` a subgoal has become live that no chunk was planned under yet.
    """
    bench = load(family)
    closure = Closure('policy')
    leaky: Any = Leaky(closure, missing)
    bench.policy.close_over(leaky)
    leaky.fixed(bench.mailbox.port.slots, bench.mailbox.port.live)
    fingerprint = Fingerprint.of(closure, device=bench.ctx.device, **bench.policy.fingerprint())
    session = Session(bench.ctx, closure, fingerprint)
    bench.policy.reset(7)
    bench.say(bench.tasks[1])
    bench.say(bench.tasks[0])
    bench.see(0)
    bench.policy.plan()
    bench.policy.pace(3, 2)
    if pending:
        bench.say(bench.tasks[1])
    return bench, session


def step(bench: Bench) -> Any:
    """Return the next chunks: one on the keys there are, and one under another subgoal."""
    live = bench.mailbox.port.live.tensor
    first = bench.policy.plan()
    live.copy_(1 - live)
    return [first, bench.policy.plan()]


def elsewhere(bench: Bench) -> None:
    """Lead another episode, under the subgoal that was pending."""
    bench.policy.reset(9)
    bench.say(bench.tasks[1])
    bench.see(1)
    bench.policy.plan()
    bench.policy.pace(1, 1)


@pytest.mark.parametrize('family', FAMILIES)
def test_the_closure_is_complete_and_every_entry_is_needed(family: str) -> None:
    """Freeze, go on, overwrite everything, restore, go on: the same bits, but for one left out.

    Two moments show it: between chunks, when the keys are up to date, and behind a new subgoal,
    when they are not and the policy must know that.
    """
    bench, session = running(family)
    report = assert_complete(session, lambda: step(bench), steps=1, superfluous=['vla/prompt'])
    needed = set(report.needed)
    bench, session = running(family, pending=True)
    stale = ['vla/kv', 'vla/length', 'subgoal/slots', 'subgoal/live']
    report = assert_complete(
        session, bench.policy.plan, 1, lambda: elsewhere(bench), superfluous=stale
    )
    needed |= set(report.needed)
    assert needed == ENTRIES | ({'vla/state'} if family != 'pi05' else set())


@pytest.mark.parametrize(
    'missing', ['vla/features', 'vla/kv', 'vla/length', 'vla/seed', 'vla/counter', 'vla/previous',
                'vla/pace', 'vla/state', 'vla/prompt', 'subgoal/slots', 'subgoal/live'],
)  # fmt: skip
def test_an_entry_left_out_is_found(missing: str) -> None:
    """The planted fault: a closure without this entry is refused, a buffer by name."""
    hidden = missing == 'vla/prompt'
    bench, session = running('smolvla', missing, pending=hidden)
    with pytest.raises(IncompleteError, match='is not complete') as caught:
        run = bench.policy.plan if hidden else lambda: step(bench)
        assert_complete(session, run, steps=1)
    assert hidden or missing in str(caught.value)


@pytest.mark.parametrize('family', FAMILIES)
def test_two_resets_give_the_same_actions(family: str) -> None:
    """The generator is the policy's own and a reset sets it: other seed, other actions."""
    bench = load(family)
    bench.say(bench.tasks[0])
    chunks = []
    for seed in (4, 4, 5):
        bench.policy.reset(seed)
        bench.see(0)
        chunks.append([bench.policy.plan(), bench.policy.plan()])
    np.testing.assert_array_equal(chunks[0], chunks[1])
    assert np.abs(chunks[0][0] - chunks[2][0]).max() > 0.01
    assert np.abs(chunks[0][0] - chunks[0][1]).max() > 0.01, 'two chunks had the same noise'


@pytest.mark.parametrize('family', FAMILIES)
def test_a_nan_observation_leaves_no_trace(family: str) -> None:
    """It is refused before one byte is written: the next good chunk is what it would have been."""
    bench = load(family)
    bench.say(bench.tasks[0])
    bench.see(0)
    before = {name: buffer.tensor.clone() for name, buffer in bench.ctx.buffers.items()}
    for index in range(bench.policy.spec.proprio_dim):
        bad = bench.arrays['1/state'].numpy().copy()
        bad[index] = np.nan
        with pytest.raises(ObservationError, match=f'proprioception\\[{index}\\] is nan'):
            bench.policy.observe(bench.images(1), bad)
    for name, buffer in bench.ctx.buffers.items():
        assert bool((buffer.tensor == before[name]).all()), name
    found = bench.policy.plan()
    bench.policy.reset(1)
    bench.see(0)
    np.testing.assert_array_equal(found, bench.policy.plan())


@pytest.mark.parametrize('family', FAMILIES)
def test_only_what_changed_runs_again(family: str) -> None:
    """A new prompt runs the prefix and no image tower; nothing new runs the denoiser alone."""
    bench = load(family)
    bench.say(bench.tasks[0])
    bench.see(0)
    bench.policy.plan()
    assert bench.policy.ran == ('vision', 'prefix', 'denoise')
    bench.policy.plan()
    assert bench.policy.ran == ('denoise',)
    bench.say(bench.tasks[1])
    changed = bench.policy.plan()
    assert bench.policy.ran == ('prefix', 'denoise')
    again = load(family)
    again.say(again.tasks[1])
    again.see(0)
    again.policy.plan(), again.policy.plan()
    np.testing.assert_array_equal(changed, again.policy.plan())
