"""A planner that asks: an episode to its end, handed over on the device, repeated; its service."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import HERE, INSTRUCTION, LONG, ended, looked_for, toy_system
from std_msgs.msg import String

from flashrt_interfaces.msg import Question
from flashrt_interfaces.srv import Decide
from flashrt_ros.nodes import names
from flashrt_ros.nodes.operator import Operator

pytestmark = pytest.mark.xdist_group('ros')
sys.path.insert(0, str(HERE.parents[0] / 'policies_decide'))


@pytest.fixture(scope='module')
def running() -> Iterator[Operator]:
    """Run a system whose brain asks an oracle."""
    with toy_system(brain='asking_brain.py') as (_, operator, _):
        yield operator


def test_both_subgoals_are_reached_and_handed_over(running: Operator) -> None:
    """The second subgoal's chunks carry its generation; it was decided at a tick that is due."""
    start = running.start(INSTRUCTION, seed=3)
    assert ended(running, start.episode)
    mine = [m for _, m in running.record.subgoals if m.epoch == start.epoch]
    posted = [(m.text, m.tick) for m in mine if m.status == 'posted']
    assert [text for text, _ in posted] == ['open the drawer', 'close the drawer']
    assert posted[1][1] % 8 == 4
    assert [m.text for m in mine if m.status == 'done'] == ['open the drawer', 'close the drawer']
    chunks = [m for _, m in running.record.chunks if m.epoch == start.epoch]
    generations = [m.generation for m in sorted(chunks, key=lambda m: m.tick)]
    assert generations == sorted(generations)
    assert set(generations) == {1, 2}
    assert all((m.generation == 2) == (m.tick > posted[1][1]) for m in chunks)


def test_what_cannot_be_done_is_one_line(running: Operator) -> None:
    """An instruction that asks for what is not there starts nothing, and says what is."""
    with pytest.raises(Exception, match='"dance" cannot be done here') as caught:
        running.start('dance', seed=3)
    assert 'open the drawer' in str(caught.value)


def test_a_note_stops_the_robot(running: Operator) -> None:
    """What people say reaches the planner; a sure stop ends the episode as failed."""
    out = running.node.create_publisher(String, names.NOTE, 10)
    assert looked_for(running, lambda: out.get_subscription_count() > 0)
    out.publish(String(data='stop now'))
    start = running.start(INSTRUCTION, seed=3)
    assert ended(running, start.episode)
    assert running.episode is not None
    assert running.episode.outcome == 'failed'
    out.publish(String(data=''))


def test_rules_answer_no_questions(running: Operator) -> None:
    """The service says in one line why it has no answer."""
    client = running.node.create_client(Decide, names.DECIDE)
    assert client.wait_for_service(LONG)
    future = client.call_async(Decide.Request(state='hot', questions=[Question(kind='yes_no')]))
    assert looked_for(running, future.done)
    answer = future.result()
    assert not answer.success
    assert 'answers no questions' in answer.message


@pytest.mark.parametrize('apart', [False, True])
def test_a_model_answers_over_ros(apart: bool, tmp_path: Path) -> None:
    """Typed questions, typed answers, the same as those of `decide`; in the brain and apart."""
    from decide_tiny import checkpoint

    from flashrt_policies.planner_lm.decide import open_decider
    from flashrt_policies.planner_lm.questions import Choice, Score, YesNo

    folder = checkpoint(tmp_path / 'tiny')
    mine: dict[str, dict[str, str]] = {'brain': {'planner': str(folder)}}
    if apart:
        skills = "['open the drawer', 'close the drawer']"
        mine = {'planner': {'planner': str(folder), 'skills': skills}}
    with toy_system(mine, planner_apart=apart) as (_, operator, _):
        client = operator.node.create_client(Decide, names.DECIDE)
        assert client.wait_for_service(LONG)
        asked = [
            Question(kind=Question.KIND_YES_NO, text='Is it done?'),
            Question(kind=Question.KIND_CHOICE, text='Which?', options=['left', 'right']),
            Question(kind=Question.KIND_SCORE, text='How hot?', options=['0', '1', '2']),
        ]
        future = client.call_async(Decide.Request(state='task: none', questions=asked))
        assert looked_for(operator, future.done)
        served = future.result()
        assert served.success, served.message
        future = client.call_async(Decide.Request())
        assert looked_for(operator, future.done)
        assert 'no situation yet' in future.result().message
    levels = ('0', '1', '2')
    questions = [
        YesNo('Is it done?'),
        Choice('Which?', ('left', 'right')),
        Score('How hot?', levels),
    ]
    expected = open_decider(folder).decide('task: none', questions)
    for one, other in zip(served.answers, expected, strict=True):
        assert one.answer == other.text
        assert list(one.probabilities) == pytest.approx(list(other.probabilities), abs=1e-5)
    assert served.answers[2].value == pytest.approx(expected[2].level, abs=1e-5)
