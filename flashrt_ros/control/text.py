"""Subgoal text as a fixed-length row of byte tokens, as the subgoal buffer holds it."""

from __future__ import annotations

import numpy as np

LENGTH = 64  # tokens in a row unless told otherwise
PADDING = 0


def encode(text: str, length: int = LENGTH) -> np.ndarray:
    """Return ``text`` as int32 [length]: its UTF-8 bytes plus one, then zeros.

    Raises:
        ValueError: The text has more than ``length`` bytes.
    """
    data = text.encode('utf-8')
    if len(data) > length:
        raise ValueError(
            f'subgoal {text!r} has {len(data)} bytes; a row holds at most {length}: shorten it'
        )
    row = np.zeros(length, dtype=np.int32)  # [L]
    row[: len(data)] = np.frombuffer(data, dtype=np.uint8).astype(np.int32) + 1
    return row


def decode(row: np.ndarray) -> str:
    """Return the text of a row made by `encode`.

    Raises:
        ValueError: The row holds a number no byte could have given, or text after padding.
    """
    values = np.asarray(row).reshape(-1).astype(np.int64)
    used = int(np.count_nonzero(values))
    if np.any(values[:used] < 1) or np.any(values > 256):
        raise ValueError(
            'this is no subgoal row: it must hold 1 to 256 for each byte, then zeros to the end'
        )
    return (values[:used] - 1).astype(np.uint8).tobytes().decode('utf-8', errors='replace')
