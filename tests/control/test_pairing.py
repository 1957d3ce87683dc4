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
        pairing.state(7, 'here') if part == 'state' else pairing.image(7, part, PIXELS)
        for part in order
    ]
    assert found[:2] == [None, None]
    assert found[2] is not None
    assert found[2][0] == 'here'
    assert set(found[2][1]) == {'front', 'wrist'}
    assert pairing.image(7, 'front', PIXELS) is None


def test_moments_are_not_mixed() -> None:
    """A state and an image of different moments make no observation."""
    pairing: Pairing[str] = Pairing(('front',))
    assert pairing.state(1, 'a') is None
    assert pairing.image(2, 'front', PIXELS) is None


def test_what_waits_is_bounded() -> None:
    """The oldest moments are dropped when their other parts never come."""
    pairing: Pairing[int] = Pairing(('front',), depth=3)
    for stamp in range(10):
        pairing.state(stamp, stamp)
    assert pairing.image(6, 'front', PIXELS) is None
    assert pairing.image(9, 'front', PIXELS) is not None
