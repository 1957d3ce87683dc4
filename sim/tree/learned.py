"""A learned value as a judge: the return to expect at what a branch leads to.

It sees what the policy sees at the end of the branch, two pictures and where the hand is, and
knows the words of the subgoal: nothing of the simulator, and not what happened on the way.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from flashrt_policies.training import value_function
from flashrt_ros.control.text import encode

from ..errors import SimulationError

if TYPE_CHECKING:
    from ..episode import LiveEpisode, Moment


class LearnedValue:
    """A judge that holds its network, on the processor: its scores are the same on every device.

    Args:
        folder: that `flashrt improve` has left, ``round-N/value``.

    Raises:
        CheckpointError: it holds no whole value function; names the file.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._value = value_function.load(folder)

    def require_fits(self, environments: Collection[str]) -> None:
        """Refuse tasks that it was not fitted to: it would score them all the same.

        Raises:
            SimulationError: names the folder and what it was fitted to.
        """
        known = self._value.fitted.tasks
        strange = [name for name in environments if name not in known]
        if strange:
            raise SimulationError(
                f'{self.folder / "config.json"}: this value function was fitted to '
                f'{", ".join(known)}, not to {", ".join(strange)}; want trees of its own tasks, '
                'or another judge'
            )

    def __call__(self, live: LiveEpisode, moments: Sequence[Moment]) -> float:
        """The return to expect, from -2 (it will fail) to 0 (it is done)."""
        spec = self._value.model.spec
        seen = live.scene.render_observation()
        pictures = np.stack([seen['pixels'][name] for name in spec.cameras])  # [V, H, W, 3]
        row = encode(moments[-1].info['subgoal'], spec.subgoal_length)  # [L]
        images, proprio, rows = (
            torch.from_numpy(np.ascontiguousarray(array))[None]
            for array in (pictures, seen['agent_pos'], row)
        )
        return float(self._value(images, proprio.float(), rows))
