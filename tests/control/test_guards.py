"""Guards: each check has an observation or an action that it must refuse, and says why."""

from dataclasses import replace

import numpy as np
import pytest

from flashrt_ros.control.guards import (
    ActionGuard,
    GuardError,
    ObservationGuard,
    check_rate,
    summary,
)
from flashrt_ros.control.types import HoldRule, Observation

GUARD = ObservationGuard(('front', 'wrist'), (4, 6), 3, low=-2.0, high=(2.0, 2.0, 1.0))


def observation(**changes: object) -> Observation:
    """Return a good observation with ``changes``."""
    image = np.zeros((4, 6, 3), np.uint8)
    good = Observation({'front': image, 'wrist': image}, np.zeros(3, np.float32), 0, 1, 1)
    return replace(good, **changes)


def proprio(*values: float) -> np.ndarray:
    """Return a proprioception."""
    return np.array(values, np.float32)


def test_a_good_observation_passes() -> None:
    """Nothing is refused that is finite, in shape, in range and young."""
    GUARD(observation(age=0.1))


IMAGE = np.zeros((4, 6, 3), np.uint8)


@pytest.mark.parametrize(
    ('changes', 'guard', 'words'),
    [
        ({'images': {'front': IMAGE}}, 'cameras', "'wrist'"),
        ({'images': {'front': IMAGE, 'wrist': IMAGE[:3]}}, 'shape', '[3, 6, 3]; it must be [4, 6'),
        ({'images': {'front': IMAGE, 'wrist': IMAGE.astype(float)}}, 'dtype', 'float64'),
        ({'images': {'front': IMAGE, 'wrist': None}}, 'shape', 'NoneType'),
        ({'proprio': proprio(0, 0)}, 'shape', '[2]; it must be [3]'),
        ({'proprio': np.zeros(3)}, 'dtype', 'float64; it must be float32'),
        ({'proprio': proprio(0, np.nan, 0)}, 'finite', 'proprioception[1] is nan'),
        ({'proprio': proprio(np.inf, 0, 0)}, 'finite', 'proprioception[0] is inf'),
        ({'proprio': proprio(0, 0, 1.5)}, 'range', '[-2, 1]'),
        ({'age': 0.7}, 'age', '700 ms old; at most 500 ms'),
        ({'age': -0.7}, 'clock', '700 ms in the future; the clocks'),
    ],
)
def test_each_fault_is_refused(changes: dict, guard: str, words: str) -> None:
    """A planted fault is caught by its own guard, in one line that says what would be right."""
    with pytest.raises(GuardError) as caught:
        GUARD(observation(**changes))
    assert caught.value.guard == guard
    assert words in str(caught.value)
    assert '\n' not in str(caught.value)


ACTIONS = ActionGuard((-1.0, 0.0), (1.0, 1.0), horizon=3, slack=0.25)


def test_small_overshoot_is_clipped() -> None:
    """Up to the slack an action is brought back to its limit; the input stays as it was."""
    given = np.array([[1.4, 0.5], [-1.5, -0.2], [0, 1.25]], np.float32)
    before = given.copy()
    assert ACTIONS(given).tolist() == [[1, 0.5], [-1, 0], [0, 1]]
    assert np.array_equal(given, before)


@pytest.mark.parametrize(
    ('actions', 'guard'),
    [
        (np.zeros((2, 2), np.float32), 'shape'),
        (np.zeros((3, 2)), 'dtype'),
        (np.full((3, 2), np.nan, np.float32), 'finite'),
        (np.full((3, 2), 1.3, np.float32), 'limits'),
    ],
)
def test_a_faulty_chunk_is_refused(actions: np.ndarray, guard: str) -> None:
    """Shape, dtype, NaN and a value beyond the slack: refused, by the right guard."""
    with pytest.raises(GuardError) as caught:
        ACTIONS(actions)
    assert caught.value.guard == guard


def test_rate() -> None:
    """An entry that moves further than allowed in one tick is named with both numbers."""
    step = np.array([0.5, 0.5])
    check_rate('action', proprio(0.5, 0), proprio(0, 0), step)
    with pytest.raises(GuardError, match=r'action\[1\] moved by 0.75 .* at most 0.5'):
        check_rate('action', proprio(0, 0.75), proprio(0, 0), step)


def test_wrong_parameters_are_refused() -> None:
    """A range of the wrong length and a hold of an entry that is not there are errors at once."""
    with pytest.raises(ValueError, match='2 entries; it must have 1 or 3'):
        ObservationGuard((), (1, 1), 3, low=(0.0, 0.0))
    with pytest.raises(ValueError, match='entry 4'):
        HoldRule(4, keep=(4,))


def test_summary() -> None:
    """Only what happened is listed."""
    assert summary({'late': 2, 'held': 0}) == 'late 2'
    assert summary({'late': 0}) == 'none'
