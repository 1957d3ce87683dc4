"""The scripted planner: instructions in, known subgoals out, one line for all it cannot read."""

import pytest

from flashrt_ros.control.planner import (
    DONE,
    FAILED,
    KEEP,
    NEXT,
    Facts,
    PlannerError,
    ScriptedPlanner,
)

OPEN, CLOSE = 'open the drawer', 'close the drawer'


def planner(**options: int) -> ScriptedPlanner:
    """Return a planner that knows the drawer scene."""
    return ScriptedPlanner([OPEN, CLOSE], **options)


@pytest.mark.parametrize(
    ('instruction', 'plan'),
    [
        ('open the drawer, then close it', [OPEN, CLOSE]),
        ('Open the drawer and then close it.', [OPEN, CLOSE]),
        ('open the drawer; close the drawer', [OPEN, CLOSE]),
        ('open the drawer then close it then open it again', [OPEN, CLOSE, OPEN]),
        ('please open the drawer and close it', [OPEN, CLOSE]),
        ('First open the drawer, and then, close it!', [OPEN, CLOSE]),
        ('Open drawer. Then close that.', [OPEN, CLOSE]),
        ('CLOSE THE DRAWER', [CLOSE]),
    ],
)
def test_reads_what_it_promises(instruction: str, plan: list[str]) -> None:
    """Every form of the docstring, with pronouns, articles and capitals, gives known subgoals."""
    assert list(planner().start(instruction)) == plan


@pytest.mark.parametrize(
    ('instruction', 'words'),
    [
        ('', ['empty']),
        ('  ,; ', ['empty']),
        ('close it', ['nothing before it', OPEN]),
        ('open the drawers, then close it', ['"open the drawers"', f'nearest: "{OPEN}"', CLOSE]),
        ('open the drawer and juggle', ['"juggle"', OPEN, CLOSE]),
        ('pull the drawer open', ['"pull the drawer open"']),
    ],
)
def test_refuses_in_one_line(instruction: str, words: list[str]) -> None:
    """What is not understood is named in one line with what would be; the old plan stays."""
    it = planner()
    it.start(OPEN)
    with pytest.raises(PlannerError) as caught:
        it.start(instruction)
    message = str(caught.value)
    assert '\n' not in message
    assert all(word in message for word in words), message
    assert it.plan == (OPEN,)


def test_goes_on_when_reached_for_long_enough() -> None:
    """A subgoal is over after ``done_ticks`` in a row, a flicker does not count."""
    it = planner(done_ticks=2)
    it.start('open the drawer, then close it')
    flicker = [False, True, False, True, True]
    kinds = [it.decide(t, Facts({OPEN: r})).kind for t, r in enumerate(flicker)]
    assert kinds == [KEEP, KEEP, KEEP, KEEP, NEXT]
    assert it.index == 1
    assert it.decide(5, Facts({OPEN: True})).kind == KEEP  # only the current subgoal counts
    assert [it.decide(t, Facts({CLOSE: True})).kind for t in (6, 7, 8)] == [KEEP, DONE, DONE]


def test_gives_up_in_time() -> None:
    """A subgoal that takes longer than ``max_ticks`` is failed, with the number in the reason."""
    it = planner(max_ticks=3)
    it.start(OPEN)
    decisions = [it.decide(t, Facts({})) for t in range(4)]
    assert [d.kind for d in decisions] == [KEEP, KEEP, KEEP, FAILED]
    assert '3 ticks' in decisions[-1].reason


def test_state_carries_every_decision() -> None:
    """A planner with another's state decides the same from there on; without it, it does not."""
    one, other, blank = planner(done_ticks=2), planner(done_ticks=2), planner(done_ticks=2)
    one.start('open the drawer, then close it')
    blank.start('open the drawer, then close it')
    one.decide(0, Facts({OPEN: True}))
    other.set_state(one.state())
    expected = one.decide(1, Facts({OPEN: True}))
    assert other.decide(1, Facts({OPEN: True})) == expected
    assert blank.decide(1, Facts({OPEN: True})) != expected  # negative control
