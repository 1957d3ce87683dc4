"""What the supervisor makes of the gate's words: a new process knows less than the old one."""

from flashrt_interfaces.msg import ControlCommand
from flashrt_ros.nodes.hearing import STRAGGLERS, Hearing


def said(hearing: Hearing, episode: int, epoch: int, times: int = 1) -> str:
    """Let the gate say something; return who counts as replaced."""
    for _ in range(times):
        hearing.gate(ControlCommand(episode=episode, epoch=epoch, held=True))
    return hearing.replaced


def test_a_gate_that_was_started_anew() -> None:
    """Once it has been heard in the episode, one word of an older epoch gives it away."""
    hearing = Hearing(1.0)
    hearing.forgive(1, 1)
    assert said(hearing, 1, 1) == ''
    assert said(hearing, 1, 2) == ''
    assert said(hearing, 0, 0) == 'gate'
    assert 'knows nothing of this episode' in hearing.silent()


def test_words_from_before_the_episode() -> None:
    """A few older words after its beginning prove nothing; without end they do."""
    hearing = Hearing(1.0)
    said(hearing, 1, 2)
    hearing.forgive(2, 3)
    assert said(hearing, 1, 2, 3) == ''
    assert said(hearing, 0, 0, 3) == ''
    assert said(hearing, 2, 3) == ''
    assert said(hearing, 1, 2) == 'gate'
    hearing.forgive(3, 9)
    assert said(hearing, 0, 0, STRAGGLERS) == ''
    assert said(hearing, 0, 0) == 'gate'
