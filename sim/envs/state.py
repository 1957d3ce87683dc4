"""The whole state of a MuJoCo environment, exact to the bit, as plain values.

Five parts make it whole; leave one out and some environments drift:

1. MuJoCo's integration state, warm start included (the full-physics state alone is not enough);
2. the model arrays that a reset moves about (where the drawer stands, where the goal is);
3. the environment's own Python attributes (previous observation, target, random generator, ...);
4. attributes that are windows onto live simulator memory are not copied: they are saved as
   "a view of data.xpos from 12 to 15" and opened again on the simulator they are restored to;
5. for families that read positions which their last substep has left behind (Fetch), those.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import gymnasium
import mujoco
import numpy as np
from numpy.typing import NDArray

from .. import codec
from ..codec import StateError

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
_IMMUTABLE = (bool, int, float, str, bytes, np.generic, type(None))
_PARTS = ('identity', 'physics', 'arrays', 'attributes', 'views', 'lagging')


@dataclass(frozen=True, eq=False)
class Prepared:
    """A state that was checked and taken apart, so that setting it only copies.

    Attributes:
        physics: MuJoCo's integration state; float64 [n].
        arrays: pairs of an array of the live model and what to put there.
        values: attributes that nobody can change in place.
        mutable: attributes that are made anew every time.
        generators: attributes that are random generators, and what they hold.
        views: attribute -> the stretch of live memory that it is a window onto.
        lagging: pairs as `arrays`, of the live data, put there last.
        names: of all attributes.
    """

    physics: NDArray[np.float64]
    arrays: tuple[tuple[NDArray[Any], NDArray[Any]], ...]
    values: dict[str, Any]
    mutable: tuple[tuple[str, Any], ...]
    generators: tuple[tuple[str, Any], ...]
    views: dict[str, NDArray[Any]]
    lagging: tuple[tuple[NDArray[Any], NDArray[Any]], ...]
    names: frozenset[str]


class SimulatorState:
    """Reads and writes the state of one MuJoCo environment.

    Args:
        simulator: an environment with `model` and `data`, not wrapped.
        constant: attributes that never change, beyond those that none of them changes.
        lagging: arrays of `data` that the environment reads as its last substep left them.
    """

    def __init__(
        self, simulator: Any, constant: Collection[str] = (), lagging: Collection[str] = ()
    ) -> None:
        self.simulator = simulator
        self._constant = _CONSTANT | set(constant)
        self._lagging = tuple(lagging)
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
        """All parts as plain values; arrays are live, so pack them before the next step.

        Raises:
            StateError: if an attribute can neither be saved nor is known to be constant.
        """
        physics = np.empty(self._size)
        mujoco.mj_getState(self.simulator.model, self.simulator.data, physics, _SPEC)
        attributes, views = {}, {}
        # In order of their names: the same state is the same bytes, whoever came by it and how.
        for name, value in sorted(self.simulator.__dict__.items()):
            if name in self._constant or isinstance(value, gymnasium.Space):
                continue
            if isinstance(value, np.ndarray) and not _owns(value):
                views[name] = self._locate(name, value)
            elif isinstance(value, np.random.Generator):
                attributes[name] = codec.plain(value)
            else:
                attributes[name] = value
        return {
            'identity': self.identity,
            'physics': physics,
            'arrays': {name: getattr(self.simulator.model, name) for name in _MODEL_ARRAYS},
            'attributes': attributes,
            'views': views,
            'lagging': {name: getattr(self.simulator.data, name) for name in self._lagging},
        }

    def check(self, state: Any) -> None:
        """Refuse a state that does not fit this simulator; changes nothing.

        Raises:
            StateError: one line that says what does not fit.
        """
        if not isinstance(state, dict) or set(state) != set(_PARTS):
            raise StateError(f'not a simulator state; expected the parts {", ".join(_PARTS)}')
        if state['identity'] != self.identity:
            raise StateError(f'state of {state["identity"]} cannot be set on {self.identity}')
        _same_shape('physics', state['physics'], (self._size,))
        model, data = self.simulator.model, self.simulator.data
        for part, owner, names in (
            ('arrays', model, _MODEL_ARRAYS),
            ('lagging', data, self._lagging),
        ):
            if set(state[part]) != set(names):
                raise StateError(f'state needs the {part} {", ".join(names) or "of nothing"}')
            for name, array in state[part].items():
                _same_shape(name, array, getattr(owner, name).shape)
        for name in [*state['attributes'], *state['views']]:
            if name in self._constant or callable(getattr(type(self.simulator), name, None)):
                raise StateError(f'state may not set {name!r} of {self.identity}')
            generator = codec.generator_state(state['attributes'].get(name))
            if generator and generator.get('bit_generator') != 'PCG64':
                raise StateError(f'random generator {name!r} is no PCG64; only PCG64 is restored')
        for name, (owner, field, start, count) in state['views'].items():
            if field not in _VIEWABLE.get(owner, ()):
                raise StateError(f'state views unknown memory {owner}.{field} as {name!r}')
            size = getattr(getattr(self.simulator, owner), field).size
            if not 0 <= start <= start + count <= size:
                raise StateError(f'state views {owner}.{field} out of bounds as {name!r}')

    def prepare(self, state: dict[str, Any]) -> Prepared:
        """Check `state` and take it apart, to be set many times; changes nothing.

        Raises:
            StateError: if the state does not fit.
        """
        self.check(state)
        model, data = self.simulator.model, self.simulator.data
        values, mutable, generators = {}, [], []
        for name, value in state['attributes'].items():
            if isinstance(value, _IMMUTABLE):
                values[name] = value
            elif codec.generator_state(value):
                generators.append((name, value))
            else:
                mutable.append((name, value))
        views = {}
        for name, (owner, field, start, count) in state['views'].items():
            memory = getattr(getattr(self.simulator, owner), field).reshape(-1)
            views[name] = memory[start : start + count]
        return Prepared(
            state['physics'],
            tuple((getattr(model, name), array) for name, array in state['arrays'].items()),
            values,
            tuple(mutable),
            tuple(generators),
            views,
            tuple((getattr(data, name), array) for name, array in state['lagging'].items()),
            frozenset([*state['attributes'], *views]),
        )

    def apply(self, state: dict[str, Any] | Prepared) -> None:
        """Make this simulator continue exactly as the one `state` was collected from.

        Args:
            state: what `collect` gave, or what this object's `prepare` made of it.

        Raises:
            StateError: if the state does not fit; nothing has changed then.
        """
        ready = state if isinstance(state, Prepared) else self.prepare(state)
        simulator, own = self.simulator, self.simulator.__dict__
        for live, saved in ready.arrays:
            live[:] = saved
        for name in own.keys() - ready.names - self._constant:
            if not isinstance(own[name], gymnasium.Space):
                del own[name]
        own.update(ready.values)
        own.update(ready.views)
        for name, value in ready.mutable:
            own[name] = codec.fresh(value)
        for name, value in ready.generators:
            codec.renew(own, name, value)
        mujoco.mj_setState(simulator.model, simulator.data, ready.physics, _SPEC)
        # Positions of bodies and sites follow from the state; the second call puts back the warm
        # start, which computing them has moved.
        mujoco.mj_forward(simulator.model, simulator.data)
        mujoco.mj_setState(simulator.model, simulator.data, ready.physics, _SPEC)
        for live, saved in ready.lagging:
            live[:] = saved

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
