"""The deciding planner: plans by a judge's word, does nothing that the judge is not sure of."""

from collections.abc import Callable

import pytest

from flashrt_ros.control.deciding import CANNOT, FINISHED, DecidingPlanner, Moment, Verdict
from flashrt_ros.control.planner import DONE, FAILED, KEEP, NEXT, Facts, PlannerError

OPEN, CLOSE = 'open the drawer', 'close the drawer'


class Oracle:
    """A judge that knows the steps; `tweak` may change what it says while the robot works."""

    def __init__(self, *steps: str, tweak: Callable[[Verdict], Verdict] | None = None) -> None:
        self.steps, self.tweak = steps, tweak
        self.asked: list[Moment] = []

    def judge(self, moment: Moment, least: float) -> Verdict:
        """Say what comes next, for certain."""
        self.asked.append(moment)
        ahead = [*self.steps[len(moment.history) :], FINISHED]
        if moment.facts is None:
            return Verdict(ahead[0], 0.99)
        reached = moment.facts.reached.get(moment.now, False)
        said = Verdict(ahead[1] if reached else ahead[0], 0.99, 0.99 * reached, 0.99, 0.01)
        return self.tweak(said) if self.tweak else said


def reached(*skills: str) -> Facts:
    """Return a report in which these skills hold."""
    return Facts(dict.fromkeys(skills, True))


def test_the_plan_is_what_comes_next_until_it_is_finished() -> None:
    """The judge is asked with what is done so far; its words in order are the plan."""
    oracle = Oracle(OPEN, CLOSE, OPEN)
    planner = DecidingPlanner(oracle, [OPEN, CLOSE])
    assert planner.start('open it, close it, open it') == (OPEN, CLOSE, OPEN)
    assert [moment.history for moment in oracle.asked] == [
        (), (OPEN,), (OPEN, CLOSE), (OPEN, CLOSE, OPEN)
    ]  # fmt: skip


def test_goes_on_step_by_step() -> None:
    """Each step ends when the judge says so; what follows is told to it beforehand."""
    oracle = Oracle(OPEN, CLOSE)
    planner = DecidingPlanner(oracle, [OPEN, CLOSE])
    planner.start('both')
    assert planner.decide(0, reached()).kind == KEEP
    decision = planner.decide(8, reached(OPEN))
    assert (decision.kind, decision.subgoal, planner.index) == (NEXT, CLOSE, 1)
    assert oracle.asked[-1].following == CLOSE
    assert planner.decide(16, reached(OPEN)).kind == KEEP
    assert planner.decide(24, reached(CLOSE)).kind == DONE
    assert oracle.asked[-1].following == ''
    assert planner.decide(32, reached()).kind == DONE


@pytest.mark.parametrize(
    ('tweak', 'kind'),
    [
        (lambda v: Verdict(v.next, 0.7, v.done, v.safe, v.stop), KEEP),
        (lambda v: Verdict(v.next, v.sure, 0.7, v.safe, v.stop), KEEP),
        (lambda v: Verdict(v.next, v.sure, v.done, 0.7, v.stop), KEEP),
        (lambda v: Verdict(v.next, v.sure, v.done, v.safe, 0.3), KEEP),
        (lambda v: Verdict(v.next, v.sure, v.done, v.safe, 0.9), FAILED),
        (lambda v: Verdict(CANNOT, v.sure, v.done, v.safe, v.stop), KEEP),
        (lambda v: v, NEXT),  # negative control: untouched, it goes on
    ],
)
def test_nothing_happens_that_is_not_sure(tweak: Callable[[Verdict], Verdict], kind: str) -> None:
    """Any answer below the threshold keeps the subgoal; a sure stop ends it."""
    planner = DecidingPlanner(Oracle(OPEN, CLOSE, tweak=tweak), [OPEN, CLOSE], sure=0.8)
    planner.start('both')
    assert planner.decide(0, reached(OPEN)).kind == kind


def test_what_the_device_handed_over_is_so() -> None:
    """Host and device agree: the hand-over on the device decides, whatever the host computes."""
    for handed, kind in ((True, NEXT), (False, KEEP)):
        planner = DecidingPlanner(
            Oracle(OPEN, CLOSE, tweak=lambda v, h=handed: Verdict(v.next, 0.8, handed=h)),
            [OPEN, CLOSE],
        )
        planner.start('both')
        decision = planner.decide(0, reached(OPEN))
        assert (decision.kind, decision.handed) == (kind, handed)


@pytest.mark.parametrize(
    ('oracle', 'instruction', 'words'),
    [
        (Oracle(CANNOT), 'bake a cake', ['"bake a cake" cannot be done here', OPEN, CLOSE]),
        (Oracle(), 'do nothing', ['asks for nothing']),
        (Oracle(OPEN), '  ', ['empty']),
        (Oracle(*[OPEN, CLOSE] * 9), 'on and on', ['more than 15 steps']),
    ],
)
def test_refuses_in_one_line(oracle: Oracle, instruction: str, words: list[str]) -> None:
    """What cannot be done is one line that says what can; the old plan stays."""
    planner = DecidingPlanner(Oracle(OPEN), [OPEN, CLOSE])
    planner.start(OPEN)
    planner.judge = oracle
    with pytest.raises(PlannerError) as caught:
        planner.start(instruction)
    assert '\n' not in str(caught.value)
    assert all(word in str(caught.value) for word in words), caught.value
    assert planner.plan == (OPEN,)


def test_an_unclear_instruction_is_not_guessed() -> None:
    """Below the threshold the plan is refused with what the judge would have guessed."""
    planner = DecidingPlanner(Oracle(OPEN), [OPEN, CLOSE], sure=0.995)
    with pytest.raises(PlannerError, match=r'is not clear .*99 % sure'):
        planner.start('do the thing')


def test_gives_up_in_time_and_carries_its_state() -> None:
    """`max_ticks` fails a subgoal; a planner with another's state goes on as that would."""
    planner = DecidingPlanner(Oracle(OPEN, CLOSE), [OPEN, CLOSE], max_ticks=20)
    planner.start('both')
    planner.decide(8, reached(OPEN))
    other = DecidingPlanner(Oracle(OPEN, CLOSE), [OPEN, CLOSE], max_ticks=20)
    other.set_state(planner.state())
    assert (other.plan, other.index) == (planner.plan, 1)
    assert other.decide(27, reached()).kind == KEEP
    assert other.decide(28, reached()).kind == FAILED
