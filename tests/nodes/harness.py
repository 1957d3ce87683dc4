"""Starts the system as the runner would, over the toy world and the toy policy."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from flashrt_ros.nodes.lifecycle import Lifecycle
from flashrt_ros.nodes.operator import Operator
from flashrt_ros.nodes.runner import System, free_domain
from flashrt_ros.nodes.system import Process, processes

HERE = Path(__file__).resolve().parent
INSTRUCTION = 'open the drawer, then close it'
TOY = {'sim': {'env': 'toy_world:Toy-v0'}}


def table(
    planner_apart: bool = False,
    robot: str = '',
    recorder: bool = False,
    brain: str = 'toy_brain.py',
) -> list[Process]:
    """Return the processes: the toy policy in the brain, ``robot`` as simulator."""
    others = {'brain': 'toy_policy_node.py' if planner_apart else brain, 'sim': robot}
    return [
        replace(p, executable=str(HERE / others[p.node])) if others.get(p.node) else p
        for p in processes(planner_apart=planner_apart, recorder=recorder)
    ]


@contextmanager
def toy_environment() -> Iterator[None]:
    """Let the processes find the toy world."""
    path = os.environ.get('PYTHONPATH', '')
    os.environ['PYTHONPATH'] = os.pathsep.join(filter(None, [str(HERE), path]))
    try:
        yield
    finally:
        os.environ['PYTHONPATH'] = path


@contextmanager
def toy_system(
    overrides: Mapping[str, Mapping[str, Any]] | None = None,
    planner_apart: bool = False,
    robot: str = '',
    recorder: bool = False,
    brain: str = 'toy_brain.py',
) -> Iterator[tuple[System, Operator, Lifecycle]]:
    """Run a whole system in a domain of its own, up and active."""
    domain = free_domain()
    params = {node: dict(values) for node, values in TOY.items()}
    for node, values in (overrides or {}).items():
        params.setdefault(node, {}).update(values)
    with (
        toy_environment(),
        System(table(planner_apart, robot, recorder, brain), params, domain) as system,
        Operator(domain) as operator,
    ):
        lifecycle = Lifecycle(operator.node, system.check)
        lifecycle.bring_up([p.node for p in system.processes])
        yield system, operator, lifecycle
