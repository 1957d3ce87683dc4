"""Capsules by name, rollback by boundaries, retries, and a whole episode as an action."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest
from harness import (
    INSTRUCTION,
    LONG,
    becomes,
    looked_for,
    moves,
    says,
    since,
    state_of,
    toy_system,
)

from flashrt_ros.nodes.operator import Operator
from flashrt_ros.nodes.peers import PeerRefused
from flashrt_ros.nodes.runner import System

pytestmark = pytest.mark.xdist_group('ros')
Running = tuple[System, Operator]


@pytest.fixture(scope='module')
def running() -> Iterator[Running]:
    """A world whose second subgoal is never reached, and nobody gives it up."""
    endless = {
        'sim': {'env': 'toy_world:Slow-v0'},
        'brain': {'subgoal_max_ticks': 0},
        'supervisor': {'episode_max_ticks': 10**7},
    }
    with toy_system(endless) as (system, operator, _):
        yield system, operator


def names_of(operator: Operator) -> list[str]:
    """Return the names of the capsules, oldest first."""
    return [c.name for c in operator.capsules()]


def listed(operator: Operator, name: str) -> bool:
    """Wait until a capsule has been frozen under ``name``."""
    return looked_for(operator, lambda: name in names_of(operator))


def test_nothing_to_go_back_to(running: Running) -> None:
    """Before an episode: no rollback, no snapshot, an empty list; each with a sentence."""
    _, operator = running
    assert operator.capsules() == []
    with pytest.raises(PeerRefused, match='cannot roll back while idle: start an episode first'):
        operator.rollback()
    with pytest.raises(PeerRefused, match='cannot snapshot while idle'):
        operator.snapshot('mine')


def test_a_boundary_at_the_start_and_at_each_subgoal(running: Running) -> None:
    """The episode's start and the second subgoal are frozen without anybody asking."""
    _, operator = running
    operator.start(INSTRUCTION, seed=3)
    assert operator.until(lambda: operator.generation() == 2, LONG)
    assert listed(operator, 'subgoal-2')
    (second,) = operator.capsules('subgoal-')
    assert (second.subgoal, second.robot) == ('close the drawer', True)
    assert second.tick >= 24
    assert len(second.digest) == 64
    assert second.nbytes > 0
    assert second.episode == 1


def test_a_capsule_under_a_name_of_ones_own(running: Running) -> None:
    """A request freezes the moment; names the supervisor itself uses are refused."""
    _, operator = running
    digest = operator.snapshot('before lunch').digest
    assert 'before lunch' in names_of(operator)
    for name in ('', 'episode-start', 'subgoal-7'):
        with pytest.raises(PeerRefused, match='is no name for a capsule'):
            operator.snapshot(name)
    operator.interrupt()
    epoch = operator.resume(digest[:12]).epoch
    assert moves(operator, epoch)
    assert becomes(operator, 'running')


def test_rollback_by_boundaries(running: Running) -> None:
    """One back is the second subgoal, two back the start; brain and world go back, and on."""
    _, operator = running
    now = time.time_ns()  # the boundary is frozen by now
    assert operator.until(lambda: bool(since(operator.record.states, now)), LONG)
    before = since(operator.record.states, now)[0].tick + 1
    assert operator.until(operator.ticked(before), LONG)
    one = operator.rollback(1)
    assert one.boundary == 'subgoal-2'
    assert moves(operator, one.epoch)
    assert 24 <= _first_tick(operator, one.epoch) < before
    two = operator.rollback(2)
    assert two.boundary == 'episode-start'
    assert two.epoch > one.epoch
    assert moves(operator, two.epoch)
    assert _first_tick(operator, two.epoch) == 0
    assert operator.until(lambda: _posted(operator, two.epoch)[:1] == [0], LONG)
    with pytest.raises(PeerRefused, match='by 2 boundaries; this episode has 1: episode-start'):
        operator.rollback(2)
    with pytest.raises(PeerRefused, match='cannot go back by 0 boundaries'):
        operator.rollback(0)
    assert becomes(operator, 'running')


def _posted(operator: Operator, epoch: int) -> list[int]:
    """Return the places in the plan of the subgoals posted in ``epoch``."""
    told = (m for _, m in operator.record.subgoals if m.epoch == epoch)
    return [m.index for m in told if m.status == 'posted']


def _first_tick(operator: Operator, epoch: int) -> int:
    """Return the tick at which the robot went on in ``epoch``."""
    return next(m.tick for _, m in operator.record.states if m.epoch == epoch)


def test_resume_at_the_start(running: Running) -> None:
    """Warm re-entry to the episode's start by its name: the brain is back, the robot is not."""
    _, operator = running
    operator.interrupt()
    assert operator.state is not None
    tick = operator.state.tick
    epoch = operator.resume('episode-start').epoch
    assert moves(operator, epoch)
    assert operator.until(lambda: _posted(operator, epoch)[:1] == [0], LONG)
    assert _first_tick(operator, epoch) >= tick


def test_every_line_has_episode_and_epoch(running: Running) -> None:
    """The log is structured: each line of each node ends with the two numbers of its moment."""
    system, operator = running
    assert operator.episode is not None
    for node in ('gate', 'sim', 'brain', 'supervisor'):
        lines = [x for x in system.lines(node) if f'[{node}]' in x]
        assert all(re.search(r' \| episode=\d+ epoch=\d+$', line) for line in lines), lines
    now = f'| episode={operator.episode.episode} epoch={operator.episode.epoch}'

    def newest() -> str:
        return [x for x in system.lines('supervisor') if ' -> ' in x][-1]

    assert looked_for(operator, lambda: newest().endswith(now)), newest()


def test_rollback_while_interrupted(running: Running) -> None:
    """An interrupted episode may be rolled back, and runs."""
    _, operator = running
    operator.interrupt()
    answer = operator.rollback(1)  # the first subgoal is reached at once, for the robot stayed
    assert answer.boundary in ('episode-start', 'subgoal-2')
    assert moves(operator, answer.epoch)


def test_a_goal_is_refused_while_another_episode_runs(running: Running) -> None:
    """The action server rejects at once, and the log says why."""
    system, operator = running
    with pytest.raises(PeerRefused):
        operator.rollout(INSTRUCTION)
    assert says(system, operator, 'supervisor', 'rollout refused: cannot start while')


def test_a_goal_runs_and_its_cancel_is_a_hard_interrupt(running: Running) -> None:
    """Feedback while it runs; after the cancel the robot holds and the episode can go on."""
    _, operator = running
    operator.interrupt()
    goal = operator.rollout(INSTRUCTION, seed=5)
    assert operator.until(lambda: any(f.tick > 2 for f in goal.feedback), LONG)
    goal.cancel()
    result = goal.result(LONG)
    assert not result.success
    assert result.outcome == 'interrupted'
    assert 'the robot holds' in result.reason
    assert becomes(operator, 'interrupted')
    assert operator.episode is not None
    epoch = operator.episode.epoch
    seen = len(operator.record.states)
    assert operator.until(lambda: len(operator.record.states) > seen + 3, LONG)
    assert all(m.held for _, m in operator.record.sent if m.epoch == epoch)
    operator.resume()
    goal.close()


def test_a_goal_to_its_end() -> None:
    """Every subgoal reached: success, with figures; the feedback's progress never falls."""
    with toy_system() as (_, operator, _):
        goal = operator.rollout(INSTRUCTION, seed=3)
        result = goal.result(LONG)
        assert result.success, result.reason
        assert (result.outcome, result.subgoals_done, result.episode) == ('done', 2, 1)
        assert result.ticks >= 48
        progress = [f.progress for f in goal.feedback]
        assert progress == sorted(progress)
        both = {'open the drawer', 'close the drawer'}
        assert operator.until(lambda: {f.subgoal for f in goal.feedback} == both, LONG)
        refused = operator.rollout('make coffee').result(LONG)
        assert (refused.success, refused.outcome) == (False, 'fault')
        assert '"make coffee" is no subgoal of this policy' in refused.reason


@pytest.mark.parametrize('apart', [False, True], ids=['in the brain', 'apart'])
def test_a_failed_subgoal_is_tried_again_and_no_oftener(apart: bool) -> None:
    """Twice from its boundary, each with its full time; then the episode has failed."""
    overrides: dict = {
        'sim': {'env': 'toy_world:Endless-v0'},
        'supervisor': {'retries': 2},
        'planner' if apart else 'brain': {'subgoal_max_ticks': 20},
    }
    if apart:
        overrides['planner']['skills'] = "['open the drawer', 'close the drawer']"
    with toy_system(overrides, planner_apart=apart) as (system, operator, _):
        operator.start(INSTRUCTION, seed=3)
        assert operator.until(
            lambda: state_of(operator) == 'idle' and len(_failed(operator)) == 3, LONG
        )
        assert operator.episode is not None
        assert operator.episode.outcome == 'failed'
        assert '"open the drawer" was not reached after 3 attempts' in operator.episode.reason
        first, second, third = _failed(operator)
        assert second - first >= 20
        assert third - second >= 20
        assert says(system, operator, 'supervisor', 'failed: retry 2 of 2')
        retries = [x for x in system.lines('supervisor') if 'failed: retry' in x]
        assert len(retries) == 2


def _failed(operator: Operator) -> list[int]:
    """Return the tick of the first report of failure in each epoch."""
    first: dict[int, int] = {}
    for _, m in operator.record.subgoals:
        if m.status == 'failed':
            first.setdefault(m.epoch, m.tick)
    return list(first.values())
