"""Open an environment by name, with an error that helps when there is none of that name."""

from __future__ import annotations

import importlib

from ..errors import unknown
from .registration import ENVIRONMENTS
from .scene import SceneEnv


def scene_class(name: str) -> type[SceneEnv]:
    """The class behind `name`, for example 'flashrt/Drawer-v0'.

    Raises:
        SimulationError: if there is no such environment; the nearest names are suggested.
    """
    if name not in ENVIRONMENTS:
        raise unknown('environment', name, ENVIRONMENTS)
    module, attribute = ENVIRONMENTS[name].split(':')
    found = getattr(importlib.import_module(module), attribute)
    assert issubclass(found, SceneEnv)
    return found


def make_scene(name: str, subgoal: str | None = None) -> SceneEnv:
    """A bare scene, without gymnasium's wrappers: for nodes, rollouts and data generation.

    Raises:
        SimulationError: for an unknown environment or subgoal.
    """
    return scene_class(name)(subgoal=subgoal)
