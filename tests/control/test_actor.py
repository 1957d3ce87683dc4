"""The actor over a small real policy: rhythm, guards, threads, and the one path of restores."""

import importlib.util
import threading
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from flashrt_ros.contract.context import Context
from flashrt_ros.control.actor import Actor, ActorError
from flashrt_ros.control.guards import GuardError, Guards
from flashrt_ros.control.mailbox import Mailbox
from flashrt_ros.control.planner import ScriptedPlanner
from flashrt_ros.control.types import Command, Observation


def _toy() -> ModuleType:
    path = Path(__file__).with_name('toy_policy.py')
    spec = importlib.util.spec_from_file_location('toy_policy', path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


toy = _toy()
torch.set_num_threads(1)


def make(**options: object) -> Actor:
    """Return an actor over the toy policy, not started."""
    ctx = Context('cpu')
    mailbox = Mailbox(ctx)
    policy = toy.ToyPolicy(ctx, mailbox.port)
    rhythm: dict = {'execute': 8, 'delay': 4, **options}
    return Actor(ctx, policy, mailbox, Guards.of(policy.spec), **rhythm)


def observe(tick: int, epoch: int = 1, episode: int = 1, **changes: object) -> Observation:
    """Return the observation of a robot that moves with the tick."""
    image = np.full((8, 8, 3), tick % 256, np.uint8)
    proprio = np.full(4, tick / 100, np.float32)
    values = {'images': {'front': image, 'wrist': image}, 'proprio': proprio, **changes}
    return Observation(tick=tick, episode=episode, epoch=epoch, **values)


def run(actor: Actor, ticks: range, epoch: int = 1, posts: dict | None = None) -> list[Command]:
    """Run synchronously, as a rollout does."""
    commands = []
    for tick in ticks:
        if posts and tick in posts:
            actor.post(posts[tick], tick)
        if actor.wants(tick):
            actor.infer(observe(tick, epoch, actor.episode))
        commands.append(actor.act(tick))
    return commands


def started(**options: object) -> Actor:
    """Return an actor in episode 1, epoch 1, with a subgoal posted before the first tick."""
    actor = make(**options)
    actor.start(1, 1, seed=5)
    actor.post(toy.SKILLS[0])
    return actor


def bits(commands: list[Command]) -> list[tuple]:
    """Return what must be equal for two runs to be the same."""
    return [(c.tick, c.action.tobytes(), c.generation, c.held) for c in commands]


def test_rhythm() -> None:
    """Chunks are asked for every 8 ticks and take effect 4 later; before that the robot holds."""
    actor = started()
    wanted = []
    for tick in range(30):
        if actor.wants(tick):
            wanted.append(tick)
            assert actor.infer(observe(tick)).due == tick + 4
        command = actor.act(tick)
        assert command.held == (tick < 4)
    assert wanted == [0, 8, 16, 24]


def test_a_chunk_is_told_as_late() -> None:
    """Due at tick 4: in time at tick 3, late at tick 4, and late when all its actions are over."""
    for begun, late in ((3, False), (4, True), (200, True)):
        actor = started()
        seen = observe(0)
        for tick in range(begun + 1):
            actor.act(tick)
        assert actor.infer(seen).late is late
    assert actor.queue.counters['expired'] == 1


def test_without_a_subgoal_nothing_is_asked_for() -> None:
    """No subgoal, no chunk: the robot holds."""
    actor = make()
    actor.start(1, 1, seed=0)
    assert not actor.wants(0)
    assert actor.act(0).held


def test_a_subgoal_becomes_live_at_the_next_request() -> None:
    """Posted at tick 8, it is not in the chunk asked for at tick 8 but in that of tick 16."""
    actor = started()
    commands = run(actor, range(32), posts={8: toy.SKILLS[1]})
    generations = [c.generation for c in commands]
    assert generations[4:20] == [1] * 16
    assert generations[20:] == [2] * 12


def test_same_seed_same_commands() -> None:
    """Two actors with one seed agree to the bit; another seed gives other commands."""
    one, other, third = started(), started(), make()
    third.start(1, 1, seed=6)
    third.post(toy.SKILLS[0])
    expected = bits(run(one, range(40)))
    assert bits(run(other, range(40))) == expected
    assert bits(run(third, range(40))) != expected


@pytest.mark.parametrize(
    ('changes', 'guard'),
    [
        ({'proprio': np.full(4, np.nan, np.float32)}, 'finite'),
        ({'proprio': np.zeros(5, np.float32)}, 'shape'),
        ({'images': {'front': np.zeros((8, 8, 3), np.uint8)}}, 'cameras'),
    ],
)
def test_a_bad_observation_leaves_no_trace(changes: dict, guard: str) -> None:
    """Refused before a buffer is written; the next good one is asked for, nothing is lost."""
    actor = started()
    run(actor, range(8))
    before = {name: b.tensor.clone() for name, b in actor.ctx.buffers.items()}
    with pytest.raises(GuardError) as caught:
        actor.infer(observe(8, **changes))
    assert caught.value.guard == guard
    assert all((b.tensor == before[name]).all() for name, b in actor.ctx.buffers.items())
    assert actor.refused == 1
    assert actor.wants(9)
    actor.infer(observe(9))
    assert not actor.act(13).held


@pytest.mark.parametrize('fault', [np.nan, np.inf, 7.0])
def test_a_bad_chunk_is_never_queued(fault: float) -> None:
    """NaN, infinity or actions far out of limits from the policy: refused, the robot holds."""
    actor = started()
    actor.policy.fault = fault
    with pytest.raises(GuardError):
        actor.infer(observe(0))
    assert all(actor.act(t).held for t in range(20))


def test_a_stale_observation_is_refused() -> None:
    """An observation of another epoch or episode never reaches the policy."""
    actor = started()
    for stale in (observe(0, epoch=0), observe(0, episode=2)):
        with pytest.raises(GuardError, match='it must be of episode 1, epoch 1'):
            actor.infer(stale)


def test_restore_with_queue_continues_to_the_bit() -> None:
    """A capsule in mid-chunk, restored with its queue, gives the very commands that followed."""
    planner = ScriptedPlanner(toy.SKILLS)
    actor = started(hosts={'planner': planner})
    planner.start('open the drawer, then close it')
    run(actor, range(10))
    capsule = actor.snapshot('middle')
    state = planner.state()
    expected = bits(run(actor, range(10, 50), posts={20: toy.SKILLS[1]}))
    planner.start('close the drawer')
    actor.restore(capsule, epoch=2, keep_queue=True)
    again = run(actor, range(10, 50), epoch=2, posts={20: toy.SKILLS[1]})
    assert bits(again) == expected
    assert {c.epoch for c in again} == {2}
    assert planner.state() == state


def test_restore_without_queue_holds_until_a_fresh_observation() -> None:
    """Reset and re-entry: nothing queued before comes out; the next observation is asked for."""
    actor = started()
    run(actor, range(10))
    capsule = actor.snapshot('interrupt')
    actor.pause(2, 'interrupted')
    assert actor.act(10).reason == 'interrupted'
    assert actor.act(10).tick == -1
    assert not actor.wants(16)
    actor.restore(capsule, epoch=3)
    assert actor.wants(21)
    actor.infer(observe(21, epoch=3))
    held = [actor.act(t).held for t in range(21, 30)]
    assert held == [True] * 4 + [False] * 5


def test_reset_repeats_the_episode() -> None:
    """From the capsule of its start an episode repeats to the bit, in another epoch."""
    actor = make()
    actor.start(1, 1, seed=9, paused='waiting')
    actor.post(toy.SKILLS[0])
    capsule = actor.snapshot('episode-start')
    actor.go()
    expected = bits(run(actor, range(40), posts={13: toy.SKILLS[1]}))
    actor.restore(capsule, epoch=2, episode=2)
    assert bits(run(actor, range(40), epoch=2, posts={13: toy.SKILLS[1]})) == expected
    actor.restore(capsule, epoch=3, episode=3, seed=10)
    other = bits(run(actor, range(40), epoch=3, posts={13: toy.SKILLS[1]}))
    assert other != expected  # negative control: other noise


def test_an_inference_of_the_old_epoch_is_dropped() -> None:
    """A chunk that was being computed when the epoch rose is refused by the queue."""
    actor = started()
    plan = actor.policy.plan

    def interrupted() -> np.ndarray:
        actor.pause(2, 'interrupted')
        return plan()

    actor.policy.plan = interrupted
    actor.infer(observe(0))
    actor.go()
    assert all(actor.act(t).held for t in range(20))
    assert actor.queue.counters['old_epoch'] == 1


def test_epochs_only_rise() -> None:
    """A restore or pause into an epoch that is not newer is refused."""
    actor = started()
    capsule = actor.snapshot('start')
    with pytest.raises(ActorError, match='above epoch 1'):
        actor.restore(capsule, epoch=1)
    with pytest.raises(ActorError, match='epoch 1 is in force'):
        actor.pause(0, '')


def test_replays_belong_to_one_thread() -> None:
    """The first thread to start owns the replays; another is refused, and may still act."""
    actor = started()
    errors: list[Exception] = []

    def other() -> None:
        actor.act(0)
        try:
            actor.infer(observe(0))
        except ActorError as error:
            errors.append(error)

    thread = threading.Thread(target=other, name='other')
    thread.start()
    thread.join()
    assert 'other' in str(errors[0])


def test_a_chunk_must_cover_its_delay() -> None:
    """Execute plus delay beyond the horizon would leave ticks without an action: refused."""
    with pytest.raises(ActorError, match='chunk of 16 actions cannot cover'):
        make(execute=14, delay=4)


def test_a_fault_at_a_tick_is_a_hold_of_that_tick() -> None:
    """A refused proprioception holds its own tick; the queue goes on with the next."""
    actor = started()
    run(actor, range(6))
    command = actor.act(6, 'proprioception[0] is nan')
    assert (command.held, command.tick, command.reason) == (True, 6, 'proprioception[0] is nan')
    assert not actor.act(7).held
