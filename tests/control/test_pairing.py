"""States and images of one moment find each other, in whatever order they come."""

import itertools

import numpy as np
import pytest

from flashrt_ros.control.pairing import Pairing

PIXELS = np.zeros((2, 2, 3), np.uint8)


@pytest.mark.parametrize('order', list(itertools.permutations(['state', 'front', 'wrist'])))
def test_any_order(order: tuple[str, ...]) -> None:
    """The last part of a moment, whichever it is, completes the observation; once."""
    pairing: Pairing[str] = Pairing(('front', 'wrist'))
    found = [
        pairing.state(7, 'here') if part == 'state' else pairing.part(part, 7, PIXELS)
        for part in order
    ]
    assert found[:2] == [None, None]
    assert found[2] is not None
    assert found[2].state == 'here'
    assert set(found[2].parts) == {'front', 'wrist'}
    assert pairing.part('front', 7, PIXELS) is None


def test_moments_are_not_mixed() -> None:
    """A state and an image of different moments make no observation."""
    pairing: Pairing[str] = Pairing(('front',))
    assert pairing.state(1, 'a') is None
    assert pairing.part('front', 2, PIXELS) is None


def test_what_waits_is_bounded() -> None:
    """The oldest moments are dropped when their other parts never come."""
    pairing: Pairing[int] = Pairing(('front',), depth=3)
    for stamp in range(10):
        pairing.state(stamp, stamp)
    assert pairing.part('front', 6, PIXELS) is None
    assert pairing.part('front', 9, PIXELS) is not None


def test_the_nearest_within_the_slop() -> None:
    """A camera of its own rhythm: the image nearest to the state counts, if it is near enough."""
    pairing: Pairing[str] = Pairing(('front',), slop=10)
    pairing.part('front', 80, 'far')
    pairing.part('front', 97, 'near')
    found = pairing.state(100, 'a')
    assert found is not None
    assert (found.state, found.parts['front'], found.oldest) == ('a', 'near', 97)
    assert pairing.state(120, 'b') is None  # 23 away: the negative control
    later = pairing.part('front', 125, 'later')
    assert later is not None
    assert (later.state, later.parts['front'], later.oldest) == ('b', 'later', 120)


def test_each_state_is_answered_once() -> None:
    """An image may serve several states, but a state gives one observation."""
    pairing: Pairing[int] = Pairing(('front',), slop=10)
    pairing.part('front', 100, PIXELS)
    assert [pairing.state(t, t) is not None for t in (98, 103, 109)] == [True, True, True]
    assert pairing.part('front', 109, PIXELS) is None
