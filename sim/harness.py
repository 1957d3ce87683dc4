"""What stands around the brain in a live episode: simulator, counts, the news of a tick."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flashrt_ros.control.planner import Decision
from flashrt_ros.control.types import Command

from .envs.scene import SceneEnv


class SceneHost:
    """Makes a scene's state part of a closure.

    Args:
        scene: the simulated world.
    """

    def __init__(self, scene: SceneEnv) -> None:
        self.scene = scene

    def state(self) -> dict[str, Any]:
        """The whole simulator, as checked bytes."""
        return {'scene': self.scene.get_state().tobytes()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Put back what `state` gave."""
        self.scene.set_state(state['scene'])


@dataclass
class Counts:
    """What the harness counts in an episode; part of its capsules.

    Attributes:
        episode: number of the episode, from 1.
        ticks: that the world moved.
        inferences: chunks that were asked for and given.
        held: ticks without an action of the policy.
        refused: observations or chunks that a guard refused.
        first_success: tick after which the asked subgoal was achieved first; -1 = not yet.
    """

    episode: int = 0
    ticks: int = 0
    inferences: int = 0
    held: int = 0
    refused: int = 0
    first_success: int = -1

    def state(self) -> dict[str, Any]:
        """All counts by name."""
        return dict(vars(self))

    def set_state(self, state: dict[str, Any]) -> None:
        """Put back what `state` gave."""
        for name, value in state.items():
            setattr(self, name, int(value))


@dataclass(frozen=True)
class Moment:
    """What happened in one tick: its number, the command, and the scene's info afterwards."""

    tick: int
    command: Command
    info: dict[str, Any]
    inferred: bool
    refused: str = ''
    decision: Decision | None = None  # the planner's, where there is one
