"""A whole system over a world that lies now and then: to its end, held, repeated bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import INSTRUCTION, ended, toy_system
from toy_world import CLOSED_AT, FAULT

from flashrt_ros.nodes.demo import figures
from flashrt_ros.nodes.demo.story import Told
from flashrt_ros.nodes.operator import Operator
from flashrt_ros.nodes.runner import System

pytestmark = pytest.mark.xdist_group('ros')
WORLD = {'sim': {'env': 'toy_world:Faulty-v0'}}
Ran = tuple[System, Operator, list[int]]


@pytest.fixture(scope='module')
def ran() -> Iterator[Ran]:
    """Run an episode and its repetition, in lockstep."""
    with toy_system(WORLD) as (system, operator, _):
        epochs = [operator.start(INSTRUCTION, seed=3).epoch]
        assert ended(operator, 1)
        epochs.append(operator.reset().epoch)
        assert ended(operator, 2)
        yield system, operator, epochs


def test_both_subgoals_are_reached(ran: Ran) -> None:
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


def test_the_second_subgoal_is_in_the_later_actions(ran: Ran) -> None:
    """Actions carry the generation of their subgoal; it changes once, and never back."""
    _, operator, epochs = ran
    sent = [m for _, m in operator.record.sent if m.epoch == epochs[0] and not m.held]
    generations = [m.generation for m in sent]
    assert set(generations) == {1, 2}
    assert generations == sorted(generations)


def test_nan_is_held_and_nothing_is_lost(ran: Ran) -> None:
    """Each tick with NaN is a hold with the sentence; the ticks after it go on; one log line."""
    system, operator, epochs = ran
    sent = {m.tick: m for _, m in operator.record.sent if m.epoch == epochs[0] and m.tick >= 0}
    for tick in FAULT:
        assert sent[tick].held
        assert 'proprioception[1] is nan' in sent[tick].reason
    assert not any(sent[t].held for t in range(FAULT.stop, FAULT.stop + 6))
    lines = [x for x in system.lines('brain') if 'refused' in x]
    assert len(lines) == len(epochs)
    assert all('every number must be finite; holding' in line for line in lines)


def test_the_repetition_is_identical(ran: Ran) -> None:
    """Two episodes from one start: commands and worlds agree to the byte, tick for tick."""
    _, operator, epochs = ran
    told = Told(operator.record, epochs=epochs)
    one, two = (figures.moments(told, number) for number in (1, 2))
    ticks = range(CLOSED_AT)
    assert all(one[t] == two[t] for t in ticks)
    assert any(one[t] != two[t + 1] for t in ticks[:-1])  # negative control
    assert max(m.missed_ticks for _, m in operator.record.states) == 0


def test_no_torch_where_none_is_needed(ran: Ran) -> None:
    """Gate and supervisor have no torch in their address space; the brain has."""
    system, _, _ = ran
    maps = {
        node: Path(f'/proc/{system.pid(node)}/maps').read_text()
        for node in ('gate', 'supervisor', 'brain')
    }
    assert 'torch' not in maps['gate']
    assert 'torch' not in maps['supervisor']
    assert 'torch' in maps['brain']  # negative control


def test_a_planner_in_a_process_of_its_own(ran: Ran) -> None:
    """Over the Subgoal topic all of it is the same: every command and world, to the byte."""
    _, inside, epochs = ran
    skills = {'skills': "['open the drawer', 'close the drawer']"}
    with toy_system({**WORLD, 'planner': skills}, planner_apart=True) as (_, operator, _):
        start = operator.start(INSTRUCTION, seed=3)
        assert ended(operator, start.episode)
        assert operator.episode is not None
        assert operator.episode.outcome == 'done'
        assert reached(operator, start.epoch) == reached(inside, epochs[0])
        apart = figures.moments(Told(operator.record, epochs=[start.epoch]), 1)
    within = figures.moments(Told(inside.record, epochs=epochs), 1)
    assert all(apart[t] == within[t] for t in range(CLOSED_AT))


def reached(operator: Operator, epoch: int) -> list[tuple[str, int]]:
    """Return the subgoals reported done and when, in order."""
    told = operator.record.subgoals
    return [(m.text, m.tick) for _, m in told if m.status == 'done' and m.epoch == epoch]
