"""The fifty MetaWorld tasks, each an environment: `flashrt/MT50-drawer-open-v0` and so on.

What they show is what published vision policies are given: the scene with MetaWorld's coloured
marks of the goal (a policy cannot know otherwise where the puck should go), seen by a camera that
stands where `corner2` does in those evaluations (arXiv 2206.14244) and by one at the gripper.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import mujoco
import yaml

from ..errors import unknown
from .registration import class_name
from .rendering import Camera
from .sawyer import SawyerScene
from .subgoals import Subgoal

GROUPS = ('easy', 'medium', 'hard', 'very hard')  # arXiv 2206.14244, as published averages are
FRONT = Camera(lookat=(0.0, 0.65, 0.11), distance=1.12, azimuth=150.0, elevation=-38.0)
WRIST = Camera('gripperPOV')


@functools.cache
def texts() -> dict[str, dict[str, Any]]:
    """Task name ('drawer-open') -> its `group`, `text`, `paraphrases` and `held_out` wordings."""
    path = Path(__file__).parent / 'assets' / 'mt50.yaml'
    found: dict[str, dict[str, Any]] = yaml.safe_load(path.read_text('utf-8'))
    return found


def subgoal_of(task: str, start: str, achieved: Any) -> Subgoal:
    """A task's skill in words, with the shared scenes' or the task's own criterion."""
    entry = texts()[task]
    return Subgoal(
        entry['text'],
        achieved,
        start=start,
        paraphrases=tuple(entry['paraphrases']),
        held_out=tuple(entry['held_out']),
    )


def succeeded(simulator: Any) -> bool:
    """What MetaWorld itself said of the last step."""
    return bool(simulator.success)


class TaskEnv(SawyerScene):
    """One MetaWorld task. Starts: 'task' (MetaWorld's own), 'random' (the hand is elsewhere)."""

    STARTS = ('task', 'random')
    CAMERAS = {'front': FRONT, 'wrist': WRIST}
    MARKS = True

    def _place(self, start: str) -> None:
        hand = self._somewhere() + [0, 0, 0.05] if start == 'random' else None
        self._reset_seeded(hand)
        self._show_marks()

    def _show_marks(self) -> None:
        """Put the drawn marks where the goal is; some resets of MetaWorld forget to."""
        model, data = self.simulator.model, self.simulator.data
        for name, position in self.simulator._target_site_config:
            site = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_SITE, name)
            if site >= 0 and model.site_bodyid[site] == 0:
                model.site_pos[site] = position
        mujoco.mj_forward(model, data)


@functools.cache
def task_env(task: str) -> type[TaskEnv]:
    """The class of one task, for example of 'drawer-open'.

    Raises:
        SimulationError: for an unknown task.
    """
    if task not in texts():
        raise unknown('task', task, texts())
    subgoal = subgoal_of(task, 'task', succeeded)
    fields = {
        'TASK': f'{task}-v3',
        'SUBGOALS': {subgoal.text: subgoal},
        '__doc__': f"MetaWorld's task {task}: {subgoal.text}.",
        '__module__': __name__,
    }
    return type(class_name(task), (TaskEnv,), fields)


def __getattr__(name: str) -> Any:
    """Classes of single tasks by name, as the registry of environments asks: `DrawerOpenEnv`."""
    for task in texts():
        if name == class_name(task):
            return task_env(task)
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
