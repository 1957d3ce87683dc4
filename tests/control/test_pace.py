"""Real-time chunking in the loop: what is frozen is what will have been executed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flashrt_ros.contract.context import Context
from flashrt_ros.control.actor import Actor
from flashrt_ros.control.guards import Guards
from flashrt_ros.control.mailbox import Mailbox
from flashrt_ros.control.pace import WINDOW, Pace
from flashrt_ros.control.types import Observation

_path = Path(__file__).with_name('toy_policy.py')
_spec = importlib.util.spec_from_file_location('toy_policy', _path)
assert _spec is not None and _spec.loader is not None
toy = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(toy)
SPEC, ToyPolicy = toy.SPEC, toy.ToyPolicy


class Paced(ToyPolicy):
    """The toy policy, which notes how it was told to follow."""

    def __init__(self, *args: Any) -> None:
        self.told: list[tuple[int, int]] = []
        super().__init__(*args)

    def pace(self, elapsed: int, delay: int) -> None:
        """Note it."""
        self.told.append((elapsed, delay))


@pytest.fixture
def actor() -> Actor:
    """Return an actor of a paced policy, a chunk every 4 ticks, in effect after 2."""
    ctx = Context('cpu')
    mailbox = Mailbox(ctx, SPEC.subgoal_length)
    made = Actor(ctx, Paced(ctx, mailbox.port), mailbox, Guards.of(SPEC, slack=9.0), 4, 2)
    made.start(1, 1, 0)
    made.post('open')
    return made


def see(actor: Actor, tick: int) -> Observation:
    """Return an observation of a tick."""
    images = {name: np.zeros((*SPEC.image_hw, 3), np.uint8) for name in SPEC.cameras}
    proprio = np.zeros(SPEC.proprio_dim, np.float32)
    return Observation(images, proprio, tick, actor.episode, actor.epoch)


def run(actor: Actor, ticks: range, late: int = 0) -> None:
    """Act tick by tick; every chunk is ready `late` ticks after its observation."""
    due: list[tuple[int, Observation]] = []
    for tick in ticks:
        if actor.wants(tick):
            due.append((tick + late, see(actor, tick)))
            with actor._lock:
                actor._request, actor._fresh = tick, False
        if due and due[0][0] <= tick:
            actor.infer(due.pop(0)[1])
        actor.act(tick)


def test_the_first_chunk_follows_none_and_skips_nothing(actor: Actor) -> None:
    """At a start nothing is frozen, and the first action is the one promised for its tick."""
    chunk = actor.infer(see(actor, 0))
    assert actor.policy.told == [(0, 2)]  # type: ignore[attr-defined]
    assert not chunk.late and chunk.due == 2
    for tick in range(3):
        command = actor.act(tick)
    np.testing.assert_array_equal(command.action, chunk.actions[2])


def test_later_chunks_follow_the_one_before(actor: Actor) -> None:
    """Ticks since its observation, and the delay that was promised."""
    run(actor, range(9))
    assert actor.policy.told == [(0, 2), (4, 2), (4, 2)]  # type: ignore[attr-defined]


def test_a_late_chunk_is_reckoned_with(actor: Actor) -> None:
    """What was measured is fed back: after a chunk that took 5 ticks the next freezes 5."""
    run(actor, range(1))
    run(actor, range(1, 18), late=5)
    told = actor.policy.told  # type: ignore[attr-defined]
    assert told[0] == (0, 2) and told[-1][1] > 2, told


def test_a_start_and_a_restore_forget_delays(actor: Actor) -> None:
    """A slow warm-up or another episode does not make the first chunk freeze or skip anything."""
    run(actor, range(1))
    capsule = actor.snapshot('start')
    run(actor, range(1, 12), late=5)
    actor.restore(capsule, epoch=2)
    run(actor, range(12, 13))
    assert actor.policy.told[-1] == (0, 2)  # type: ignore[attr-defined]
    actor.start(2, 3, 0)
    actor.post('open')
    chunk = actor.infer(see(actor, 0))
    assert actor.policy.told[-1] == (0, 2) and not chunk.late  # type: ignore[attr-defined]


def test_a_rollback_goes_back_to_the_chunk_of_its_time(actor: Actor) -> None:
    """With its queue kept, the next chunk follows the one that the capsule was taken under."""
    run(actor, range(6))
    capsule = actor.snapshot('here')
    run(actor, range(6, 20))
    actor.restore(capsule, epoch=2, keep_queue=True)
    actor.infer(see(actor, 8))
    assert actor.policy.told[-1] == (4, 2)  # type: ignore[attr-defined]


def test_a_refused_chunk_is_followed_by_none(actor: Actor) -> None:
    """A chunk that the guard refuses is never executed, so nothing may be joined to it."""
    run(actor, range(5))
    actor.policy.fault = float('nan')  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match='nan'):
        actor.infer(see(actor, 5))
    actor.policy.fault = None  # type: ignore[attr-defined]
    actor.infer(see(actor, 6))
    assert actor.policy.told[-1][0] == 0  # type: ignore[attr-defined]


def test_old_delays_are_forgotten() -> None:
    """One slow chunk counts for as long as the window, not for ever."""
    pace = Pace(2, 50)
    pace.took(0, 9)
    assert pace.next(4) == (4, 9)
    for index in range(WINDOW):
        pace.took(8 * index, 8 * index + 2)
    assert pace.next(8 * WINDOW) == (8, 2)
    assert pace.next(8 * WINDOW + 100) == (0, 2), 'the chunk before has long ended'


def test_other_policies_are_not_paced() -> None:
    """A policy without `pace` has no such state in its capsules."""
    ctx = Context('cpu')
    mailbox = Mailbox(ctx, SPEC.subgoal_length)
    made = Actor(ctx, ToyPolicy(ctx, mailbox.port), mailbox, Guards.of(SPEC, slack=9.0), 4, 2)
    assert 'actor/pace' not in made.closure.entries
