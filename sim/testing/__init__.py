"""Hand-off tests for your own CI: a planner and an actor that exchange subgoals, with faults.

pytest finds the fixtures `handoff` and `subgoal_fault` by itself once flashrt_ros is installed;
docs/testing.md has a complete test file. What they are made of:

- `Pair`: planner, mailbox, actor and policy in one process, tick by tick, without ROS;
- `Fault`: what becomes of subgoals on their way: delayed, dropped, duplicated, late;
- `check_generations`, `check_epochs`, `check_whole`, `check_handed_over`: what must hold of a
  `Trace`, whatever the faults; each raises an `AssertionError` of one line.

The names are loaded when they are asked for: pytest imports this package in every run.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    'Pair': 'pair',
    'Fault': 'link',
    'FAULTS': 'link',
    'Trace': 'trace',
    'World': 'world',
    'ToyPolicy': 'toy',
    'check_generations': 'checks',
    'check_epochs': 'checks',
    'check_whole': 'checks',
    'check_handed_over': 'checks',
}
__all__ = list(_HOMES)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    return getattr(importlib.import_module(f'{__name__}.{_HOMES[name]}'), name)
