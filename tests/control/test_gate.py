"""The action gate: what passes, what becomes a hold, and what latches."""

import random
from dataclasses import replace

import numpy as np
import pytest

from flashrt_ros.control.gate import ALARMS, Gate, GateLimits
from flashrt_ros.control.types import Command, HoldRule

LIMITS = GateLimits((-1.0,) * 3, (1.0,) * 3, (0.5, 0.5, 2.0))


def gate() -> Gate:
    """Return a gate that is open in episode 1, epoch 5, with the robot at tick 10."""
    it = Gate(LIMITS, HoldRule(3, keep=(2,)))
    it.set_epoch(1, 5, True, '')
    it.heard(1, 5, 10)
    return it


def command(*action: float, **changes: object) -> Command:
    """Return a command that passes, with ``changes``."""
    values = np.array(action or (0.1, 0.2, 1.0), np.float32)
    return replace(Command(values, 10, 1, 5), **changes)


def test_a_good_command_passes_as_it_came() -> None:
    """The gate changes nothing in what it lets through."""
    it = gate()
    given = command()
    assert it.check(given) is given
    assert it.forwarded == 1


@pytest.mark.parametrize(
    ('given', 'reason'),
    [
        (command(epoch=4), 'epoch'),
        (command(epoch=6), 'epoch'),
        (command(episode=2), 'episode'),
        (command(tick=9), 'stale'),
        (command(tick=12), 'ahead'),
        (command(0, np.nan, 0), 'finite'),
        (command(0, 0, 1.01), 'limits'),
        (command(0.6, 0, 0), 'rate'),
        (command(0, 0), 'shape'),
    ],
)
def test_each_fault_becomes_a_hold(given: Command, reason: str) -> None:
    """A planted fault gives a hold of the epoch in force, one line of reason, and one count."""
    it = gate()
    it.check(command(0.0, 0.0, 1.0))
    sent = it.check(given)
    assert sent.held
    assert sent.epoch == 5
    assert sent.action.tolist() == [0, 0, 1]  # displacement zero, gripper kept
    assert sent.reason
    assert '\n' not in sent.reason
    assert {k: v for k, v in it.rejected.items() if v} == {reason: 1}


def test_one_command_per_tick() -> None:
    """A second command for a tick is dropped, so no flood moves the robot faster than its rate."""
    it = gate()
    assert not it.check(command(0.4, 0, 0)).held
    assert it.check(command(0.8, 0, 0)) is None
    assert (it.repeats, it.rejected['repeat'], it.forwarded) == (1, 1, 1)
    it.heard(1, 5, 11)
    assert it.repeats == 0
    assert not it.check(command(0.8, 0, 0, tick=11)).held


@pytest.mark.parametrize('kind', ALARMS)
def test_an_alarm_holds_while_it_lasts(kind: str) -> None:
    """What is wrong around the gate closes it, and it goes on when that is over."""
    it = gate()
    it.alarm(kind, 'planted')
    sent = it.check(command())
    assert (sent.held, sent.reason, sent.tick) == (True, 'planted', -1)
    assert it.closed_because == 'planted'
    it.alarm(kind, '')
    assert not it.check(command()).held


def test_age_is_a_budget_in_ticks() -> None:
    """With a budget of two ticks a command two ticks behind passes and three behind does not."""
    it = Gate(replace(LIMITS, max_age_ticks=2), HoldRule(3))
    it.set_epoch(1, 5, True, '')
    it.heard(1, 5, 10)
    assert not it.check(command(tick=8)).held
    assert it.check(command(tick=7)).held


def test_closed_means_hold_whatever_comes() -> None:
    """After closing, the epoch is the new one at once and nothing passes, old or new."""
    it = gate()
    closing = it.set_epoch(1, 6, False, 'interrupted')
    assert (closing.held, closing.epoch, closing.tick) == (True, 6, -1)
    assert it.check(command()).held
    assert it.check(command(epoch=6)).reason == 'interrupted'
    assert it.forwarded == 0


def test_epochs_only_rise() -> None:
    """An older epoch is refused and changes nothing."""
    it = gate()
    with pytest.raises(ValueError, match='epochs only rise'):
        it.set_epoch(1, 4, False, '')
    assert (it.epoch, it.running) == (5, True)


def test_emergency_stop_latches() -> None:
    """A stop holds through new epochs until it is released and the gate is opened again."""
    it = gate()
    assert it.stop('button').held
    with pytest.raises(ValueError, match='latched'):
        it.set_epoch(1, 6, True, '')
    it.set_epoch(1, 6, False, '')
    assert 'button' in it.check(command(epoch=6)).reason
    it.release()
    assert it.check(command(epoch=6)).held  # released is not opened
    it.set_epoch(1, 7, True, '')
    it.heard(1, 7, 10)
    assert not it.check(command(epoch=7)).held


def test_states_of_another_epoch_do_not_set_the_tick() -> None:
    """The robot's tick counts only when its state belongs to the epoch in force."""
    it = gate()
    it.heard(1, 4, 99)
    it.heard(2, 5, 99)
    assert not it.check(command()).held


def test_silence_is_a_hold_and_counted() -> None:
    """No command for a while: a hold that says for how long."""
    it = gate()
    assert '250 ms' in it.silence(0.25).reason
    assert it.rejected['silence'] == 1


def test_random_floods_never_pass_an_old_epoch() -> None:
    """2,000 random commands between random epochs: what passes belongs to the epoch in force."""
    seed = random.randrange(2**32)
    print(f'seed {seed}')
    rng = random.Random(seed)
    it = Gate(replace(LIMITS, step=(9.0,) * 3), HoldRule(3))
    epoch = 0
    for _ in range(2000):
        if rng.random() < 0.1:
            epoch += rng.randint(0, 1)
            it.set_epoch(1, epoch, rng.random() < 0.7, '')
            it.heard(1, epoch, 10)
        tick = rng.randint(9, 12)
        it.heard(1, epoch, tick)
        sent = it.check(command(epoch=max(0, epoch - rng.randint(0, 2)), tick=tick))
        if sent is None:
            continue
        assert sent.epoch == it.epoch
        assert sent.held or it.running
    assert it.forwarded > 100
    assert it.rejected['epoch'] > 100


def test_sizes_must_agree() -> None:
    """Limits of different lengths, or a hold of another, are refused when the gate is made."""
    with pytest.raises(ValueError, match='entries'):
        GateLimits((0.0,), (1.0, 1.0), (1.0,))
    with pytest.raises(ValueError, match='must agree'):
        Gate(LIMITS, HoldRule(4))
