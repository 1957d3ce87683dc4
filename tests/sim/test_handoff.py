"""The plugin for hand-off tests: sound pairs pass under every fault, each check can fail."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from flashrt_ros.control.mailbox import Mailbox
from flashrt_ros.control.planner import ScriptedPlanner
from flashrt_sim.testing import (
    FAULTS,
    Fault,
    Pair,
    check_epochs,
    check_generations,
    check_handed_over,
    check_whole,
)

OPEN, CLOSE = 'open the drawer', 'close the drawer'
TASK = f'{OPEN}, then {CLOSE}'
SOON = 16  # ticks in which a subgoal is in effect: a request every 8, and 6 until its chunk is due


def sound(trace):
    """What holds whatever the faults."""
    check_generations(trace)
    check_epochs(trace)
    check_whole(trace)


def test_a_sound_pair_passes_under_every_fault(handoff, subgoal_fault):
    """Through an interrupt, a restore and a change of subgoal in mid-inference."""
    pair = handoff(fault=subgoal_fault)
    assert pair.start(TASK, seed=3) == (OPEN, CLOSE)
    pair.run(20)
    frozen = pair.snapshot()
    pair.run(30)
    pair.interrupt('hand in the way')
    pair.run(5)
    pair.resume()
    pair.run(21)
    pair.during(lambda: pair.post('something else'))
    pair.run(12)
    pair.restore(frozen)
    sound(pair.run(60))
    assert pair.trace.subgoals()[0] == OPEN and CLOSE in pair.trace.subgoals()
    assert [change.why for change in pair.trace.changes] == ['start', 'interrupt', 'restore']


@pytest.mark.parametrize(
    ('name', 'subgoals', 'refused'),
    [
        ('none', [OPEN, CLOSE], 0),
        ('delayed', [OPEN, CLOSE], 0),
        ('dropped', [OPEN], 0),
        ('duplicated', [OPEN, CLOSE], 1),
        ('late', [OPEN], 0),
    ],
)
def test_what_each_fault_does(handoff, name, subgoals, refused):
    """Delayed is later, dropped is lost, a copy is refused, late comes after its epoch."""
    pair = handoff(fault=FAULTS[name], planner=ScriptedPlanner((OPEN, CLOSE), max_ticks=60))
    pair.start(TASK)
    sound(pair.run(110))
    assert pair.trace.subgoals() == subgoals
    assert len(pair.trace.refused) == refused
    if name in ('none', 'duplicated'):
        check_handed_over(pair.trace, SOON)
    else:
        with pytest.raises(AssertionError, match="'close the drawer', decided at tick .* effect"):
            check_handed_over(pair.trace, SOON)
    pair.interrupt()
    pair.run(1)
    late = [why for _, why in pair.trace.refused if why.startswith('of episode 1, epoch 1')]
    assert len(late) == (name == 'late')


def test_the_same_run_twice_is_the_same(handoff):
    """No threads, no wall time: two pairs do the same, another seed does something else."""

    def actions(seed):
        pair = handoff(fault=Fault(delay=3))
        pair.start(TASK, seed)
        return [given.command.action.tobytes() for given in pair.run(50).given]

    assert actions(1) == actions(1) != actions(2)


def test_two_threads_hand_over_whole_rows(handoff):
    """Posts at random phases of the inferences: nothing is torn, every number is true."""
    seed = random.randrange(2**32)
    print(f'seed {seed}')
    pair = handoff(execute=1, delay=0)
    pair.start(OPEN)
    trace = pair.race(60, seed)
    sound(trace)
    assert len(trace.posts) == 61 and len(trace.reads) >= 60


def test_a_shipped_policy_in_the_pair(handoff, tiny_policy):
    """By its folder, with its own sizes of pictures and rows."""
    pair = handoff(policy=tiny_policy)
    pair.start(TASK)
    sound(pair.run(40))
    check_handed_over(pair.trace, SOON)
    assert pair.trace.subgoals() == [OPEN, CLOSE]


# One planted fault for each thing that a check refuses ----------------------------------------


class Skips(Mailbox):
    """Numbers every second subgoal."""

    def post(self, row, tick=-1):
        """Count twice."""
        self._host['posted'] += 1
        return super().post(row, tick)


class Hides(Mailbox):
    """Never shows a new subgoal after the first."""

    def flip(self):
        """Forget the flip."""
        return super().flip() if self._host['generation'] == 0 else False


class Boasts(Mailbox):
    """Says that what was posted last is in effect."""

    @property
    def generation(self):
        """Of the newest post, not of the live row."""
        return self._host['posted']


class Overwrites(Mailbox):
    """Writes the row that is being read."""

    def post(self, row, tick=-1):
        """As well as the idle one."""
        generation = super().post(row, tick)
        self._slots.tensor[self._host['live']].copy_(torch.as_tensor(row))
        return generation


class Mixes(Mailbox):
    """Shows a row of which the second half is that of the subgoal before."""

    def flip(self):
        """Join two rows."""
        before = self.row()
        flipped = super().flip()
        if flipped:
            half = self.length // 16
            self._slots.tensor[self._host['live'], half:] = torch.from_numpy(before[half:])
        return flipped


def ran(**options):
    """A run in which a subgoal follows another and one is posted during an inference."""
    pair = Pair(**options)
    pair.start(TASK)
    pair.run(60)
    pair.during(lambda: pair.post('something else'))
    return pair.run(20)


@pytest.mark.parametrize(
    ('mailbox', 'check', 'message'),
    [
        (Skips, check_generations, r'the post at tick .* got generation 4 after 2; want 3'),
        (Hides, check_generations, 'says generation 1; the newest subgoal by then is 2'),
        (Boasts, check_generations, 'says generation 3; the newest subgoal by then is 2'),
        (Overwrites, check_whole, "changed during the inference of tick .* to 'something else'"),
        (Mixes, check_whole, 'saw .*, which is not the row of its generation 1'),
        (Hides, lambda trace: check_handed_over(trace, SOON), "'close the drawer', decided"),
    ],
)
def test_a_mailbox_that_is_wrong_is_found(mailbox, check, message):
    """Planted: one fault in the mailbox, one line that names it."""
    check(ran())
    with pytest.raises(AssertionError, match=message) as caught:
        check(ran(mailbox=mailbox))
    assert '\n' not in str(caught.value)


def test_a_torn_row_is_found_between_threads(handoff):
    """Planted: the writer writes what the reader reads; two threads meet over it soon enough."""
    pair = handoff(execute=1, delay=0, mailbox=Overwrites)
    pair.start(OPEN)
    with pytest.raises(AssertionError, match='changed during the inference|not the row'):
        check_whole(pair.race(60))


def interrupted(plant):
    """A run with an interrupt in it; `plant` is given the pair before the first tick."""
    pair = Pair(fault=FAULTS['late'])
    plant(pair)
    pair.start(TASK)
    pair.run(50)
    pair.interrupt()
    pair.resume()
    return pair.run(30)


def keeps_chunks(pair):
    """An interrupt forgets no chunk."""
    clear = pair.actor.queue._clear
    pair.actor.queue._clear = lambda: clear() if pair.actor.epoch == 1 else None


def stamps_old(pair):
    """Commands keep the epoch they began with."""
    act = pair.actor.act

    def old(tick, fault=''):
        command = act(tick, fault)
        object.__setattr__(command, 'epoch', 1)
        return command

    pair.actor.act = old


def takes_all(pair):
    """Whatever arrives counts."""
    pair._inbox.refuse = lambda *message: ''


def stands_still(pair):
    """An interrupt begins no new epoch."""
    pause = pair.actor.pause
    pair.actor.pause = lambda epoch, reason: pause(epoch - 1, reason)


@pytest.mark.parametrize(
    ('plant', 'message'),
    [
        (keeps_chunks, 'is from no chunk of epoch 2: an older one has come out'),
        (stamps_old, 'carries epoch 1; epoch 2 is in force'),
        (takes_all, "'close the drawer', decided in epoch 1, was posted in epoch 2"),
        (stands_still, 'interrupt at tick 50 began epoch 1 after 1'),
    ],
)
def test_what_survives_an_interrupt_is_found(plant, message):
    """Planted: an old chunk, an old stamp, an old subgoal, an epoch that does not rise."""
    check_epochs(interrupted(lambda pair: None))
    with pytest.raises(AssertionError, match=message) as caught:
        check_epochs(interrupted(plant))
    assert '\n' not in str(caught.value)


def test_a_command_under_another_number_is_found():
    """Planted: a chunk that says one subgoal, a command from it that says another."""
    pair = Pair()
    pair.start(TASK)
    trace = pair.run(30)
    check_generations(trace)
    command = trace.given[-1].command
    object.__setattr__(command, 'generation', 7)
    with pytest.raises(AssertionError, match='says generation 7; the chunk that it is from says'):
        check_generations(trace)
    assert np.isfinite(command.action).all()
