"""Errors a person may meet while using the simulation; each message is one line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from flashrt_ros.errors import FlashrtError


class SimulationError(FlashrtError, ValueError):
    """A wrong name, option, action or file; says what is wrong and what would be right."""


def unknown(kind: str, name: object, valid: Iterable[str]) -> SimulationError:
    """An error for a name that does not exist, with the nearest valid names first."""
    names = list(valid)
    near = difflib.get_close_matches(str(name), names, n=3, cutoff=0.5)
    if near:
        hint = f'did you mean {" or ".join(repr(n) for n in near)}?'
    else:
        hint = f'expected one of {", ".join(repr(n) for n in sorted(names))}'
    return SimulationError(f'unknown {kind} {name!r}; {hint}')
