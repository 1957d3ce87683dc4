"""The episode's state machine: every transition that is written down, and no other."""

import itertools
import random
from pathlib import Path

import pytest

from flashrt_ros.control import episode
from flashrt_ros.control.episode import STATES, TRANSITIONS, EpisodeMachine, TransitionError


def machine(state: str) -> EpisodeMachine:
    """Return a machine that stands in ``state``."""
    it = EpisodeMachine()
    it.state = state
    return it


@pytest.mark.parametrize(('event', 'state'), list(itertools.product(TRANSITIONS, STATES)))
def test_each_event_in_each_state(event: str, state: str) -> None:
    """An allowed event leads where the table says; any other is refused and changes nothing."""
    it = machine(state)
    target = TRANSITIONS[event].get(state)
    if target is None:
        with pytest.raises(TransitionError, match=f'cannot {event} while {state}: '):
            it.apply(event)
        assert (it.state, it.episode, it.epoch, len(it.history)) == (state, 0, 0, 0)
        return
    step = it.apply(event, 'because')
    assert (step.before, step.after, it.state, it.reason) == (state, target, target, 'because')
    assert it.epoch == (event in episode.RAISES_EPOCH)
    assert it.episode == (event in episode.NEW_EPISODE)


def test_the_life_of_the_demo() -> None:
    """Start, interrupt, resume, finish, reset, finish: six epochs, two episodes."""
    it = EpisodeMachine()
    for event in (
        'start', 'ready', 'interrupt', 'resume', 'moving', 'finish', 'reset', 'ready', 'finish',
    ):  # fmt: skip
        it.apply(event)
    assert (it.state, it.episode, it.epoch) == ('idle', 2, 6)


def test_epochs_never_fall_and_every_state_can_be_left() -> None:
    """In a random walk the epoch never falls, and a reset is reachable from everywhere."""
    seed = random.randrange(2**32)
    print(f'seed {seed}')
    rng = random.Random(seed)
    it = EpisodeMachine()
    seen = set()
    for _ in range(3000):
        allowed = [event for event in TRANSITIONS if it.may(event)]
        assert allowed
        before = it.epoch
        it.apply(rng.choice(allowed))
        seen.add(it.state)
        assert it.epoch >= before
    assert seen == set(STATES)


def test_the_documented_table_is_the_real_one() -> None:
    """docs/nodes/supervisor.md holds the states and transitions exactly as the code has them."""
    text = (Path(__file__).parents[2] / 'docs' / 'nodes' / 'supervisor.md').read_text()
    assert episode.table() in text


def test_the_table_would_show_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: one transition more, and the table is another."""
    before = episode.table()
    monkeypatch.setitem(TRANSITIONS, 'resume', {**TRANSITIONS['resume'], 'fault': 'recovering'})
    assert episode.table() != before


def test_a_restarted_machine_goes_on_above_what_was() -> None:
    """After `adopt` the next episode and epoch are newer than anything seen; it never lowers."""
    it = EpisodeMachine()
    it.adopt(3, 9)
    it.adopt(2, 4)
    it.apply('start')
    assert (it.episode, it.epoch) == (4, 10)
