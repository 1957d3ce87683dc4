"""A whole system over a world that lies now and then: to its end, held, repeated bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import INSTRUCTION, toy_system
from toy_world import FAULT

from flashrt_ros.nodes.demo import figures
from flashrt_ros.nodes.demo.story import Told
from flashrt_ros.nodes.operator import Operator
from flashrt_ros.nodes.runner import System

pytestmark = pytest.mark.xdist_group('ros')


@pytest.fixture(scope='module')
def ran() -> Iterator[tuple[System, Operator, list[int]]]:
    """Run an episode and its repetition; again, if this machine missed a tick in either."""
    with toy_system({'sim': {'env': 'toy_world:Faulty-v0'}}) as (system, operator, _):
        epochs: list[int] = []
        for attempt in range(4):
            start = operator.start(INSTRUCTION, seed=3) if attempt == 0 else operator.reset()
            epochs.append(start.epoch)
            assert operator.until(lambda n=start.episode: ended(operator, n), 30.0)
            good = [e for e in epochs if clean(operator, e)]
            if len(good) >= 2:
                break
        yield system, operator, epochs


def ended(operator: Operator, number: int) -> bool:
    """Whether episode ``number`` is over."""
    now = operator.episode
    return now is not None and now.episode == number and now.state in ('idle', 'fault')


def clean(operator: Operator, epoch: int) -> bool:
    """Whether no tick was missed and no chunk late in ``epoch``."""
    states = [m for _, m in operator.record.states if m.epoch == epoch]
    late = [m for _, m in operator.record.chunks if m.epoch == epoch and m.late]
    return bool(states) and max(m.missed_ticks for m in states) == 0 and not late


def test_both_subgoals_are_reached(ran: tuple) -> None:
    """The planner goes on when the robot reports a subgoal reached; the episode ends as done."""
    _, operator, epochs = ran
    done = [
        (m.text, m.tick)
        for _, m in operator.record.subgoals
        if m.status == 'done' and m.epoch == epochs[0]
    ]
    assert [text for text, _ in done] == ['open the drawer', 'close the drawer']
    assert operator.episode is not None
    assert (operator.episode.state, operator.episode.outcome) == ('idle', 'done')


def test_the_second_subgoal_is_in_the_later_actions(ran: tuple) -> None:
    """Actions carry the generation of their subgoal; it changes once, and never back."""
    _, operator, epochs = ran
    sent = [m for _, m in operator.record.sent if m.epoch == epochs[0] and not m.held]
    generations = [m.generation for m in sent]
    assert set(generations) == {1, 2}
    assert generations == sorted(generations)


def test_nan_is_held_and_nothing_is_lost(ran: tuple) -> None:
    """Each tick with NaN is a hold with the sentence; the ticks after it go on; one log line."""
    system, operator, epochs = ran
    sent = {m.tick: m for _, m in operator.record.sent if m.epoch == epochs[0] and m.tick >= 0}
    for tick in FAULT:
        if tick in sent:
            assert sent[tick].held
            assert 'proprioception[1] is nan' in sent[tick].reason
    after = [sent[t] for t in range(FAULT.stop, FAULT.stop + 6) if t in sent]
    assert any(not m.held for m in after)
    lines = [x for x in system.lines('brain') if 'refused' in x]
    assert lines
    assert all('every number must be finite; holding' in line for line in lines)
    assert len(lines) <= len(epochs)


def test_the_repetition_is_identical(ran: tuple) -> None:
    """Two episodes from one start: commands and worlds agree to the byte, tick for tick."""
    _, operator, epochs = ran
    good = [i for i, e in enumerate(epochs) if clean(operator, e)]
    assert len(good) >= 2, 'this machine missed ticks in every attempt'
    told = Told(operator.record, epochs=epochs)
    one, two = (figures.moments(told, i + 1) for i in good[:2])
    ticks = range(min(max(one), max(two)))
    assert len(ticks) > 40
    assert all(one[t] == two[t] for t in ticks)
    shifted = {t: two[t + 1] for t in ticks}
    assert any(one[t] != shifted[t] for t in ticks)  # negative control


def test_no_torch_where_none_is_needed(ran: tuple) -> None:
    """Gate and supervisor have no torch in their address space; the brain has."""
    system, _, _ = ran
    maps = {
        node: Path(f'/proc/{system.pid(node)}/maps').read_text()
        for node in ('gate', 'supervisor', 'brain')
    }
    assert 'torch' not in maps['gate']
    assert 'torch' not in maps['supervisor']
    assert 'torch' in maps['brain']  # negative control


def test_a_planner_in_a_process_of_its_own(ran: tuple) -> None:
    """Over the Subgoal topic the plan is the same: same subgoals reached, in the same order."""
    _, inside, epochs = ran
    skills = {'skills': "['open the drawer', 'close the drawer']"}
    with toy_system({'planner': skills}, planner_apart=True) as (_, operator, _):
        start = operator.start(INSTRUCTION, seed=3)
        assert operator.until(lambda: ended(operator, start.episode), 30.0)
        assert operator.episode is not None
        assert operator.episode.outcome == 'done'
        assert reached(operator, start.epoch) == reached(inside, epochs[0])
        generations = {m.generation for _, m in operator.record.sent if not m.held}
        assert generations == {1, 2}


def reached(operator: Operator, epoch: int) -> list[str]:
    """Return the subgoals reported done, in order."""
    told = operator.record.subgoals
    return [m.text for _, m in told if m.status == 'done' and m.epoch == epoch]
