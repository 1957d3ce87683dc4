"""MetaWorld's arm in a scene: what the drawer, the door and the fifty tasks have in common."""

from __future__ import annotations

from typing import Any, ClassVar

import mujoco
import numpy as np
from numpy.typing import NDArray

from .scene import SceneEnv
from .tasks import make_simulator, reseed


class SawyerScene(SceneEnv):
    """A MetaWorld scene.

    `agent_pos` is the hand's x, y, z in metres and the gripper's opening from 0 to 1. An action's
    1 moves the hand by 1 cm a tick; the gripper closes at 1.
    """

    TASK: ClassVar[str]

    def proprioception(self) -> NDArray[np.float32]:
        """Hand x, y, z (metres) and gripper opening (0 to 1); float32 [4]."""
        body = self.simulator.data.body
        fingers = np.linalg.norm(body('rightclaw').xpos - body('leftclaw').xpos)
        hand = self.simulator.get_endeff_pos()
        return np.append(hand, np.clip(fingers / 0.1, 0.0, 1.0)).astype(np.float32)

    def _make_simulator(self) -> Any:
        return make_simulator(self.TASK)

    def _advance(self, action: NDArray[np.float32]) -> float:
        _, reward, _, _, seen = self.simulator.step(action)
        self.simulator.success = bool(seen['success'])  # by the task's own criterion
        return float(reward)  # 0 to 10

    def _reset_simulator(self, hand: NDArray[np.float64] | None = None) -> None:
        """MetaWorld's reset, with the objects where `self.np_random` puts them.

        Args:
            hand: where the hand starts, metres [3]; where MetaWorld puts it if left out.
        """
        self._make_pristine()
        if hand is not None:
            self.simulator.hand_init_pos = np.asarray(hand, np.float64)
        space = self.simulator._random_reset_space
        self.simulator._freeze_rand_vec = True
        self.simulator._last_rand_vec = self.np_random.uniform(space.low, space.high)
        self.simulator.reset()

    def _reset_seeded(self, hand: NDArray[np.float64] | None = None) -> None:
        """As `_reset_simulator`, where MetaWorld draws until the goal is far from the object."""
        self._make_pristine()
        if hand is not None:
            self.simulator.hand_init_pos = np.asarray(hand, np.float64)
        reseed(self.simulator, int(self.np_random.integers(2**31)))
        self.simulator.reset()

    def _somewhere(self) -> NDArray[np.float64]:
        """A place for the hand above the table, metres; [3]."""
        return self.np_random.uniform([-0.2, 0.45, 0.1], [0.2, 0.7, 0.3])

    def _set_joint(self, name: str, value: float) -> None:
        """Move a joint of the scene; the first frames must show where it stands now."""
        self.simulator.data.joint(name).qpos[0] = value
        mujoco.mj_forward(self.simulator.model, self.simulator.data)
