"""Subgoal text as a row of byte tokens and back."""

import numpy as np
import pytest

from flashrt_ros.control.text import decode, encode


@pytest.mark.parametrize('text', ['', 'open the drawer', 'öffne die Schublade', 'x' * 64])
def test_round_trip(text: str) -> None:
    """What goes in comes out, also beyond ASCII and at full length."""
    row = encode(text)
    assert (row.dtype, row.shape) == (np.int32, (64,))
    assert decode(row) == text


def test_too_long_is_refused() -> None:
    """One byte too many is an error that names both lengths."""
    with pytest.raises(ValueError, match='65 bytes; a row holds at most 64'):
        encode('x' * 65)


def test_a_row_that_is_none_is_refused() -> None:
    """A gap of padding inside the text, or a number no byte gives, is an error."""
    row = encode('open')
    row[1] = 0
    with pytest.raises(ValueError, match='no subgoal row'):
        decode(row)
    with pytest.raises(ValueError, match='no subgoal row'):
        decode(np.array([300, 0]))
