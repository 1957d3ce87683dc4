"""The simulated robot's clock: which command is applied when, parked starts, missed ticks."""

import random

import numpy as np
import pytest

from flashrt_ros.control.robot import RobotClock
from flashrt_ros.control.types import Command, HoldRule


def clock() -> RobotClock:
    """Return a clock parked at tick 0 of episode 1, epoch 1."""
    it = RobotClock(HoldRule(2, keep=(1,)))
    it.begin(1, 1, 0)
    return it


def command(tick: int, epoch: int = 1, held: bool = False, episode: int = 1) -> Command:
    """Return a command that says which tick it is for."""
    return Command(np.array([tick, 1], np.float32), tick, episode, epoch, held=held)


def test_parked_until_the_command_for_its_tick() -> None:
    """Nothing moves and nothing is missed until the command for the first tick comes."""
    it = clock()
    assert [it.take() for _ in range(5)] == [None] * 5
    it.offer(command(-1, held=True))  # the closed gate's hold is for no tick in particular
    assert it.take() is None
    it.offer(command(0))
    applied = it.take()
    assert applied is not None
    assert applied.action.tolist() == [0, 1]
    assert (it.tick, it.parked, it.missed) == (1, False, 0)


def test_only_the_command_of_the_tick_is_applied() -> None:
    """Too early, too late, another episode, an older epoch: not taken; the tick is missed."""
    it = clock()
    it.offer(command(0))
    it.take()
    for wrong in (command(0), command(2), command(1, epoch=0), command(1, episode=2)):
        assert not it.offer(wrong)
    applied = it.take()
    assert applied is not None
    assert (applied.held, applied.missed, applied.action.tolist()) == (True, True, [0, 1])
    assert applied.reason == 'no command for tick 1'
    assert (it.missed, it.tick) == (1, 2)


def test_the_first_command_for_a_tick_counts() -> None:
    """A second command for the same tick and epoch changes nothing."""
    it = clock()
    assert it.offer(command(0))
    assert not it.offer(Command(np.array([9, 9], np.float32), 0, 1, 1))
    applied = it.take()
    assert applied is not None
    assert applied.action.tolist() == [0, 1]


def test_a_new_epoch_replaces_what_waits() -> None:
    """The hold of an interrupt takes the place of a command that waits, at this tick."""
    it = clock()
    it.offer(command(0))
    it.take()
    it.offer(command(1))
    assert it.offer(command(-1, epoch=2, held=True))
    applied = it.take()
    assert applied is not None
    assert (applied.held, applied.missed) == (True, False)
    assert (it.epoch, it.applied_epoch, it.applied_tick) == (2, 2, 1)
    assert not it.offer(command(2, epoch=1))  # nothing old afterwards


def test_standing_still_is_not_missed() -> None:
    """After an interrupt silence is no miss, until the first command of a re-entry was applied."""
    it = clock()
    it.offer(command(0))
    it.take()
    it.offer(command(-1, epoch=2, held=True))
    it.take()
    for _ in range(4):
        it.take()
    it.set_epoch(3)
    it.take()
    assert it.missed == 0
    it.offer(command(it.tick, epoch=3))
    it.take()
    it.take()
    assert it.missed == 1


def test_an_interrupt_while_parked_is_confirmed() -> None:
    """A robot that has not moved yet takes the new epoch up, and stays where it is."""
    it = clock()
    it.offer(command(-1, epoch=2, held=True))
    assert it.take() is None
    assert (it.applied_epoch, it.tick, it.parked) == (2, 0, True)


def test_epochs_only_rise() -> None:
    """An episode or epoch that is not newer is refused."""
    it = clock()
    with pytest.raises(ValueError, match='must be above epoch 1'):
        it.begin(2, 1, 0)
    with pytest.raises(ValueError, match='epochs only rise'):
        it.set_epoch(0)


def test_in_lockstep_the_world_waits() -> None:
    """Every tick waits for its own command; a hold for no tick in particular moves nothing."""
    it = RobotClock(HoldRule(2, keep=(1,)), lockstep=True)
    it.begin(1, 1, 0)
    for tick in range(3):
        assert it.take() is None
        it.offer(command(-1, held=True))
        assert it.take() is None
        assert (it.held, it.tick) == (True, tick)
        it.offer(command(tick))
        applied = it.take()
        assert applied is not None
        assert applied.action.tolist() == [tick, 1]
        assert not it.held
    assert it.missed == 0


def test_in_lockstep_an_interrupt_is_confirmed() -> None:
    """The hold of a new epoch is taken up, though no tick passes; the old epoch is over."""
    it = RobotClock(HoldRule(2), lockstep=True)
    it.begin(1, 1, 0)
    it.offer(command(0))
    it.take()
    it.offer(command(1))
    it.offer(command(-1, epoch=2, held=True))
    assert it.take() is None
    assert (it.applied_epoch, it.held, it.tick) == (2, True, 1)
    assert not it.offer(command(1))


def test_no_flood_moves_it_backwards() -> None:
    """10,000 random commands: the epoch never falls, each applied action is of its tick."""
    seed = random.randrange(2**32)
    print(f'seed {seed}')
    rng = random.Random(seed)
    it, epoch = clock(), 1
    for _ in range(10_000):
        epoch += rng.random() < 0.01
        tick = rng.choice([-1, it.tick - 1, it.tick, it.tick, it.tick + 1])
        it.offer(command(tick, epoch=epoch - rng.randint(0, 1), held=tick < 0))
        before = it.applied_epoch
        if rng.random() < 0.5:
            now = it.tick
            applied = it.take()
            assert it.applied_epoch >= before
            if applied is not None and not applied.held:
                assert applied.action[0] == now
    assert it.tick > 1000
