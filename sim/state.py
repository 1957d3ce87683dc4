"""The whole state of a MetaWorld simulator, exact to the bit, as plain values.

Four parts make it whole; leave one out and some of the fifty tasks drift:

1. MuJoCo's integration state, warm start included (the full-physics state alone is not enough);
2. the model arrays that a reset moves about (where the drawer stands, where the goal is);
3. the environment's own Python attributes (previous observation, target, random generator, ...);
4. attributes that are windows onto live simulator memory are not copied: they are saved as
   "a view of data.xpos from 12 to 15" and opened again on the simulator they are restored to.
"""

from __future__ import annotations

import hashlib
from typing import Any

import gymnasium
import mujoco
import numpy as np
from numpy.typing import NDArray

from .codec import StateError

_SPEC = mujoco.mjtState.mjSTATE_INTEGRATION
_MODEL_ARRAYS = ('body_pos', 'body_quat', 'site_pos', 'geom_pos')
_VIEWABLE = {
    'data': ('xpos', 'xquat', 'xmat', 'xipos', 'site_xpos', 'site_xmat', 'geom_xpos', 'geom_xmat',
             'qpos', 'qvel', 'ctrl', 'mocap_pos', 'mocap_quat'),
    'model': ('body_pos', 'body_quat', 'site_pos', 'geom_pos', 'qpos0'),
}  # fmt: skip
# Set once when the environment is made and never changed by reset or step.
_CONSTANT = frozenset({
    'model', 'data', 'mujoco_renderer', 'init_config', 'spec', 'fullpath', 'render_mode', 'width',
    'height', 'camera_id', 'camera_name', '_ezpickle_args', '_ezpickle_kwargs',
})  # fmt: skip


class SimulatorState:
    """Reads and writes the state of one MetaWorld environment.

    Args:
        simulator: a MetaWorld environment (`SawyerXYZEnv`), not wrapped.
    """

    def __init__(self, simulator: Any) -> None:
        self.simulator = simulator
        model = simulator.model
        sizes = [model.nq, model.nv, model.nu, model.na, model.nbody, model.nsite, model.ngeom]
        names = hashlib.blake2b(bytes(model.names) + str(sizes).encode(), digest_size=8)
        self.identity = f'{type(simulator).__name__}/{names.hexdigest()}'
        self._size = mujoco.mj_stateSize(model, _SPEC)
        self._views = [
            (owner, field, _address(array), array.nbytes)
            for owner, fields in _VIEWABLE.items()
            for field in fields
            for array in (getattr(getattr(simulator, owner), field),)
        ]

    def collect(self) -> dict[str, Any]:
        """All four parts as plain values; arrays are live, so pack them before the next step.

        Raises:
            StateError: if an attribute can neither be saved nor is known to be constant.
        """
        physics = np.empty(self._size)
        mujoco.mj_getState(self.simulator.model, self.simulator.data, physics, _SPEC)
        attributes, views = {}, {}
        for name, value in self.simulator.__dict__.items():
            if name in _CONSTANT or isinstance(value, gymnasium.Space):
                continue
            if isinstance(value, np.ndarray) and not _owns(value):
                views[name] = self._locate(name, value)
            elif isinstance(value, np.random.Generator):
                attributes[name] = {'generator': value.bit_generator.state}
            else:
                attributes[name] = value
        return {
            'identity': self.identity,
            'physics': physics,
            'arrays': {name: getattr(self.simulator.model, name) for name in _MODEL_ARRAYS},
            'attributes': attributes,
            'views': views,
        }

    def check(self, state: Any) -> None:
        """Refuse a state that does not fit this simulator; changes nothing.

        Raises:
            StateError: one line that says what does not fit.
        """
        parts = {'identity', 'physics', 'arrays', 'attributes', 'views'}
        if not isinstance(state, dict) or set(state) != parts:
            raise StateError(f'not a simulator state; expected the parts {sorted(parts)}')
        if state['identity'] != self.identity:
            raise StateError(f'state of {state["identity"]} cannot be set on {self.identity}')
        _same_shape('physics', state['physics'], (self._size,))
        if set(state['arrays']) != set(_MODEL_ARRAYS):
            raise StateError(f'state needs the model arrays {", ".join(_MODEL_ARRAYS)}')
        for name, array in state['arrays'].items():
            _same_shape(name, array, getattr(self.simulator.model, name).shape)
        for name in [*state['attributes'], *state['views']]:
            if name in _CONSTANT or callable(getattr(type(self.simulator), name, None)):
                raise StateError(f'state may not set {name!r} of {self.identity}')
            generator = _generator_state(state['attributes'].get(name))
            if generator and generator.get('bit_generator') != 'PCG64':
                raise StateError(f'random generator {name!r} is no PCG64; only PCG64 is restored')
        for name, (owner, field, start, count) in state['views'].items():
            if field not in _VIEWABLE.get(owner, ()):
                raise StateError(f'state views unknown memory {owner}.{field} as {name!r}')
            size = getattr(getattr(self.simulator, owner), field).size
            if not 0 <= start <= start + count <= size:
                raise StateError(f'state views {owner}.{field} out of bounds as {name!r}')

    def apply(self, state: dict[str, Any]) -> None:
        """Make this simulator continue exactly as the one `state` was collected from.

        Raises:
            StateError: if the state does not fit; nothing has changed then.
        """
        self.check(state)
        simulator, kept = self.simulator, {*state['attributes'], *state['views']}
        for name, array in state['arrays'].items():
            getattr(simulator.model, name)[:] = array
        for name, value in list(simulator.__dict__.items()):
            if name not in kept | _CONSTANT and not isinstance(value, gymnasium.Space):
                del simulator.__dict__[name]
        for name, value in state['attributes'].items():
            simulator.__dict__[name] = _fresh(value)
        for name, (owner, field, start, count) in state['views'].items():
            memory = getattr(getattr(simulator, owner), field).reshape(-1)
            simulator.__dict__[name] = memory[start : start + count]
        mujoco.mj_setState(simulator.model, simulator.data, state['physics'], _SPEC)
        # Positions of bodies and sites follow from the state; the second call puts back the warm
        # start, which computing them has moved.
        mujoco.mj_forward(simulator.model, simulator.data)
        mujoco.mj_setState(simulator.model, simulator.data, state['physics'], _SPEC)

    def _locate(self, name: str, value: NDArray[Any]) -> list[Any]:
        address = _address(value)
        for owner, field, start, size in self._views:
            if start <= address < start + size and value.flags.c_contiguous and value.ndim == 1:
                return [owner, field, (address - start) // value.itemsize, value.size]
        raise StateError(f'{name!r} of {self.identity} is a view of memory that is not saved')


def _owns(value: NDArray[Any]) -> bool:
    """Whether the memory belongs to numpy (a slice of another array does, too)."""
    while isinstance(value.base, np.ndarray):
        value = value.base
    return value.base is None


def _address(value: NDArray[Any]) -> int:
    return int(value.__array_interface__['data'][0])


def _same_shape(name: str, array: Any, shape: tuple[int, ...]) -> None:
    found = array.shape if isinstance(array, np.ndarray) else type(array).__name__
    if found != shape:
        raise StateError(f'state part {name} has shape {found}; expected {shape}')
    if array.dtype != np.float64:
        raise StateError(f'state part {name} has type {array.dtype}; expected float64')


def _generator_state(value: Any) -> dict[str, Any] | None:
    """The saved state inside `value` where it stands for a random generator, else None."""
    return value['generator'] if isinstance(value, dict) and set(value) == {'generator'} else None


def _fresh(value: Any) -> Any:
    """A copy that shares nothing with the state, so that one state can be set many times."""
    if isinstance(value, np.ndarray):
        return value.copy()
    state = _generator_state(value)
    if state:
        generator = np.random.Generator(np.random.PCG64())
        generator.bit_generator.state = state
        return generator
    if isinstance(value, list | tuple):
        return type(value)(_fresh(item) for item in value)
    if isinstance(value, dict):
        return {key: _fresh(item) for key, item in value.items()}
    return value
