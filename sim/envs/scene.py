"""A simulated scene as a gymnasium environment that holds a sequence of subgoals."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from .. import codec
from ..capsules import bare_state
from ..errors import SimulationError, unknown
from .rendering import Camera, FrameRenderer
from .state import Prepared, SimulatorState
from .subgoals import Subgoal

IMAGE_SIZE = 96  # pixels, both sides
_OPTIONS = ('capsule', 'subgoal', 'start')
_KNOWN = 64  # states that stay parsed and checked, to be set again
Observation = dict[str, Any]


@dataclass(frozen=True, eq=False)
class _Ready:
    """A state of a scene, checked and taken apart."""

    subgoal: str
    ticks: int
    random: dict[str, Any]
    simulator: Prepared


class SceneEnv(gymnasium.Env[Observation, NDArray[np.float32]]):
    """One scene, several subgoals, one arm; one step is one control tick.

    Observation: `{'pixels': {'front', 'wrist'}: uint8 [96, 96, 3], 'agent_pos': float32 [4]}`, the
    last being hand x, y, z in metres and the gripper's opening from 0 to 1. Action: float32 [4] in
    [-1, 1], the hand's displacement and the gripper's effort, in the family's own units.
    Reward: 1 while the asked subgoal is achieved, else 0. No step terminates an episode.

    `info` holds `subgoal` (the asked one), `is_success` (whether it is achieved now) and
    `subgoals` (the same for every subgoal of the scene); after a step also `dense_reward`, the
    family's own for the task that the scene is made of.

    `reset(options=...)` takes `subgoal` (which is asked from now on), `start` (a name from
    `STARTS`) or, in its place, `capsule`: what `get_state` gave, or a capsule of an environment
    or of an episode, whose simulator it takes. See `Checkpointable` for wrappers' states.

    A node that does not need every frame calls `step_physics` and `render_observation` itself.

    Args:
        subgoal: asked for until a reset asks for another; the scene's first one if left out.
        render_mode: 'rgb_array' or None.
        width: of a frame made by `render`, pixels.
        height: of a frame made by `render`, pixels.
    """

    SUBGOALS: ClassVar[dict[str, Subgoal]]
    STARTS: ClassVar[tuple[str, ...]]
    CAMERAS: ClassVar[dict[str, Camera]]
    MARKS: ClassVar[bool] = False  # draw the family's coloured marks of the goal
    # Least and greatest x, y, z in metres and opening that `agent_pos` can have.
    BOUNDS: ClassVar[tuple[list[float], list[float]]] = ([-1, -1, -1, 0], [1, 2, 2, 1])
    metadata = {'render_modes': ['rgb_array'], 'render_fps': 20}

    def __init__(
        self,
        subgoal: str | None = None,
        render_mode: str | None = None,
        width: int = 480,
        height: int = 480,
    ) -> None:
        if render_mode not in (None, *self.metadata['render_modes']):
            raise unknown('render_mode', render_mode, self.metadata['render_modes'])
        self.render_mode = render_mode
        self.simulator = self._make_simulator()
        self._state = self._make_state()
        self._pristine = self._state.prepare(codec.unpack(codec.pack(self._state.collect())))
        self._prepared = functools.lru_cache(_KNOWN)(self._prepare)
        self._ticks = 0
        self._size = (width, height)
        self._frames = FrameRenderer(
            self.simulator.model, IMAGE_SIZE, IMAGE_SIZE, sites=self.MARKS
        )
        self._pictures: FrameRenderer | None = None
        picture = spaces.Box(0, 255, (IMAGE_SIZE, IMAGE_SIZE, 3), np.uint8)
        low, high = (np.array(bound, np.float32) for bound in self.BOUNDS)
        self.observation_space = spaces.Dict({
            'pixels': spaces.Dict(dict.fromkeys(self.CAMERAS, picture)),
            'agent_pos': spaces.Box(low, high),
        })  # fmt: skip
        self.action_space = spaces.Box(-1, 1, (4,), np.float32)
        self.ask(subgoal or next(iter(self.SUBGOALS)))

    # Subgoals -----------------------------------------------------------------------------------

    @property
    def subgoal(self) -> str:
        """The subgoal that is asked for now."""
        return self._subgoal

    def ask(self, subgoal: str) -> None:
        """Ask for another subgoal, also in mid-motion; the simulator does not move.

        Raises:
            SimulationError: if the scene has no such subgoal.
        """
        if subgoal not in self.SUBGOALS:
            raise unknown('subgoal', subgoal, self.SUBGOALS)
        self._subgoal = subgoal

    def achieved(self) -> dict[str, bool]:
        """Whether each subgoal of the scene holds in this moment."""
        return {name: bool(s.achieved(self.simulator)) for name, s in self.SUBGOALS.items()}

    # The gymnasium interface --------------------------------------------------------------------

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode and draw its first frames; see the class for `options`.

        Raises:
            SimulationError: for an unknown option, subgoal or start.
            StateError: for a state that does not fit.
        """
        info = self.reset_physics(seed=seed, options=options)
        return self.render_observation(), info

    def step(
        self, action: NDArray[np.float32]
    ) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Move one tick and draw the frames.

        Raises:
            SimulationError: if the action is not four finite numbers.
        """
        info = self.step_physics(action)
        return self.render_observation(), float(info['is_success']), False, False, info

    def render(self) -> NDArray[np.uint8]:
        """The scene from the front at the size given at the start; uint8 [height, width, 3]."""
        return self.picture(*self._size)

    def close(self) -> None:
        """Give back the rendering contexts."""
        self._frames.close()
        if self._pictures is not None:
            self._pictures.close()

    # Physics and frames, apart ------------------------------------------------------------------

    def reset_physics(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """`reset` without frames; returns `info`."""
        options = dict(options or {})
        for name in options:
            if name not in _OPTIONS:
                raise unknown('reset option', name, _OPTIONS)
        if 'capsule' in options and 'start' in options:
            raise SimulationError("reset takes either 'capsule' or 'start', not both")
        subgoal = options.get('subgoal', self._subgoal)
        if subgoal not in self.SUBGOALS:
            raise unknown('subgoal', subgoal, self.SUBGOALS)
        start = options.get('start', self.SUBGOALS[subgoal].start)
        if start not in self.STARTS:
            raise unknown('start', start, self.STARTS)
        if 'capsule' in options:
            self.set_state(bare_state(options['capsule']))
        super().reset(seed=seed)
        if 'capsule' not in options:
            self._ticks = 0
            self._place(start)
        if 'capsule' not in options or 'subgoal' in options:
            self._subgoal = subgoal
        return self._info()

    def step_physics(self, action: NDArray[np.float32]) -> dict[str, Any]:
        """Move one tick without drawing; returns `info`.

        Raises:
            SimulationError: if the action is not four finite numbers.
        """
        action = np.asarray(action, np.float32)
        if action.shape != (4,):
            raise SimulationError(
                f'action has shape {action.shape}; expected (4,): dx, dy, dz, gripper'
            )
        if not np.isfinite(action).all():
            raise SimulationError(f'action {action.tolist()} is not finite; expected [-1, 1]')
        reward = self._advance(np.clip(action, -1, 1))
        self._ticks += 1
        return {**self._info(), 'dense_reward': reward}

    def proprioception(self) -> NDArray[np.float32]:
        """Hand x, y, z (metres) and gripper opening (0 to 1); float32 [4]."""
        raise NotImplementedError

    def render_observation(self) -> Observation:
        """Draw what the robot sees now."""
        data = self.simulator.data
        pixels = {name: self._frames.frame(data, c) for name, c in self.CAMERAS.items()}
        return {'pixels': pixels, 'agent_pos': self.proprioception()}

    def picture(self, width: int, height: int, camera: str = 'front') -> NDArray[np.uint8]:
        """The scene for people, from any of the cameras; uint8 [height, width, 3], upright."""
        if camera not in self.CAMERAS:
            raise unknown('camera', camera, self.CAMERAS)
        renderer = self._pictures
        if renderer is None or (renderer.width, renderer.height) != (width, height):
            if renderer is not None:
                renderer.close()
            renderer = FrameRenderer(
                self.simulator.model, width, height, fine=True, sites=self.MARKS
            )
            self._pictures = renderer
        return renderer.frame(self.simulator.data, self.CAMERAS[camera])

    # The whole state ----------------------------------------------------------------------------

    @property
    def ticks(self) -> int:
        """Steps since the episode started."""
        return self._ticks

    def restart_clock(self) -> None:
        """Let the episode begin here and now: the next tick is tick 0."""
        self._ticks = 0

    def get_state(self) -> NDArray[np.uint8]:
        """Everything the next step depends on, checked bytes; uint8 [n], about 9 kB."""
        return codec.seal({
            'scene': type(self).__name__,
            'subgoal': self._subgoal,
            'ticks': self._ticks,
            'random': self.np_random.bit_generator.state,
            'simulator': self._state.collect(),
        })  # fmt: skip

    def check_state(self, state: NDArray[np.uint8] | bytes) -> None:
        """Refuse what `set_state` would refuse; changes nothing.

        Raises:
            StateError: one line, if the state is damaged or of another scene.
        """
        self._prepared(state if isinstance(state, bytes) else state.tobytes())

    def set_state(self, state: NDArray[np.uint8] | bytes) -> None:
        """Continue exactly as the environment that `state` was taken from.

        Bytes are parsed and checked when they are met first; setting them again only copies.

        Raises:
            StateError: one line, if the state is damaged or of another scene; nothing changed.
        """
        ready = self._prepared(state if isinstance(state, bytes) else state.tobytes())
        self._state.apply(ready.simulator)
        self.np_random.bit_generator.state = ready.random
        self._subgoal, self._ticks = ready.subgoal, ready.ticks

    def _prepare(self, state: bytes) -> _Ready:
        value = codec.unseal(state)
        if not isinstance(value, dict) or value.get('scene') != type(self).__name__:
            found = value.get('scene') if isinstance(value, dict) else type(value).__name__
            raise codec.StateError(f'state of {found} cannot be set on {type(self).__name__}')
        if value['subgoal'] not in self.SUBGOALS:
            raise codec.StateError(f'state asks for {value["subgoal"]!r}, unknown to this scene')
        simulator = self._state.prepare(value['simulator'])
        return _Ready(value['subgoal'], value['ticks'], value['random'], simulator)

    # For the family and the scene itself --------------------------------------------------------

    def _make_simulator(self) -> Any:
        """The family's own environment, not wrapped."""
        raise NotImplementedError

    def _make_state(self) -> SimulatorState:
        return SimulatorState(self.simulator)

    def _advance(self, action: NDArray[np.float32]) -> float:
        """Move the simulator by one tick, float32 [4] in [-1, 1]; returns its dense reward."""
        raise NotImplementedError

    def _place(self, start: str) -> None:
        """Put the scene into a start named in `STARTS`, drawing from `self.np_random`."""
        raise NotImplementedError

    def _make_pristine(self) -> None:
        """Undo the last episode: a family's own reset may leave attributes of it in place."""
        self._state.apply(self._pristine)

    def _info(self) -> dict[str, Any]:
        achieved = self.achieved()
        return {
            'subgoal': self._subgoal,
            'is_success': achieved[self._subgoal],
            'subgoals': achieved,
            'ticks': self._ticks,
        }
