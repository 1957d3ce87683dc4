"""A real policy in the actor: queue, clock, pace and subgoal are in the capsule too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from vla_cases import FIXTURES, expected

from flashrt_policies import registry
from flashrt_ros.capsule.completeness import assert_complete
from flashrt_ros.capsule.errors import IncompleteError
from flashrt_ros.contract.context import Context
from flashrt_ros.control.actor import Actor
from flashrt_ros.control.guards import Guards
from flashrt_ros.control.mailbox import Mailbox
from flashrt_ros.control.types import Observation

# Written anew from an observation, or by the flip of the pending subgoal, before a chunk is
# planned; `test_vla_closure` shows at which moments they count.
RENEWED = {
    'vla/features', 'vla/kv', 'vla/length', 'vla/state', 'vla/prompt', 'vla/pace',
    'subgoal/live', 'subgoal/generation',
}  # fmt: skip


class Running:
    """An actor over a fixture's policy, in the middle of an episode."""

    def __init__(self, family: str) -> None:
        path = FIXTURES / family
        self.arrays, self.tasks = expected(str(path))
        self.ctx = Context('cpu')
        spec = registry.spec(path)
        mailbox = Mailbox(self.ctx, spec.subgoal_length)
        policy = registry.load(path, self.ctx, mailbox.port)
        self.actor = Actor(self.ctx, policy, mailbox, Guards.of(spec, slack=9.0), 4, 2)
        self.actor.start(1, 1, 3)
        self.actor.post(self.tasks[0])
        self.go(10)
        self.actor.post(self.tasks[1], 9)  # pending when the capsule is taken

    def go(self, ticks: int) -> list[Any]:
        """Run the loop; return the commands and the generations they were computed under."""
        out: list[Any] = []
        first = self.actor.queue.last_tick + 1
        for tick in range(first, first + ticks):
            if self.actor.wants(tick):
                chunk = self.actor.infer(self.see(tick))
                out.append([chunk.actions, chunk.generation, chunk.late])
            command = self.actor.act(tick)
            out.append([command.action, command.generation, command.held, command.reason])
        return out

    def elsewhere(self) -> None:
        """Lead another episode, some way."""
        self.actor.start(1, 1, 9)
        self.actor.post(self.tasks[1])
        self.go(14)

    def see(self, tick: int) -> Observation:
        """Return the observation of a tick."""
        index = tick // 4 % 2
        images = {
            name: self.arrays[f'{index}/{name}'].numpy() for name in self.actor.policy.spec.cameras
        }
        state = self.arrays[f'{index}/state'].numpy() / 4
        return Observation(images, state, tick, self.actor.episode, self.actor.epoch)


def test_the_whole_brain_is_one_capsule() -> None:
    """The loop goes on bit by bit after a restore, and every entry but the renewed is needed."""
    brain = Running('smolvla')
    entries = set(brain.actor.closure.entries)
    assert {'actor/queue', 'actor/clock', 'actor/pace', 'subgoal/generation'} <= entries
    known = RENEWED & entries
    report = assert_complete(
        brain.actor.session, lambda: brain.go(4), 1, brain.elsewhere, superfluous=sorted(known)
    )
    assert set(report.needed) >= entries - known, sorted(entries - known - set(report.needed))


def test_a_brain_without_its_queue_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: an actor whose queue is in no capsule."""
    from flashrt_ros.capsule.closure import Closure

    plain = Closure.host

    def host(self: Closure, name: str, get: Any, set: Any) -> Closure:
        return self if name == 'actor/queue' else plain(self, name, get, set)

    monkeypatch.setattr(Closure, 'host', host)
    brain = Running('smolvla')
    with pytest.raises(IncompleteError, match='is not complete'):
        assert_complete(brain.actor.session, lambda: brain.go(4), 1, brain.elsewhere)


def test_a_restore_plays_the_same_actions() -> None:
    """Twenty ticks, a restore with the queue kept, the same again: the same commands."""
    brain = Running('pi0')
    capsule = brain.actor.snapshot('here')
    first = brain.go(20)
    brain.actor.restore(capsule, epoch=2, keep_queue=True)
    second = brain.go(20)
    assert len(first) == len(second)
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a[0], b[0])
