"""Exact capsules of an environment with its wrappers: freeze an episode, reset into it.

An environment takes part with two methods: `get_state()`, which returns everything that its next
step depends on (numbers, text, arrays, lists and dicts of these), and `set_state(state)`, which
puts that back or raises before it changes anything. A wrapper needs neither where its attributes
are such values: those are saved as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils import RecordConstructorArgs, seeding

from . import codec
from .codec import StateError

if TYPE_CHECKING:
    from flashrt_ros.capsule.capsule import Capsule

# What gymnasium's own wrapper class and its recording of arguments keep; none of it is state.
_WIRING = frozenset({
    'env', '_action_space', '_observation_space', '_metadata', '_cached_spec', '_saved_kwargs',
})  # fmt: skip
_PARTS = ('environment', 'layers', 'observation', 'info')


class EnvCapsule:
    """An environment with its wrappers at one moment; made by `Checkpointable.snapshot`.

    It never changes, and can be set as often as one likes. `bytes(capsule)` is its checked form
    for a file or another process, `EnvCapsule(data)` reads that back.

    Args:
        data: what `bytes` of a capsule gave.

    Raises:
        StateError: the bytes are damaged, or no capsule of an environment.
    """

    def __init__(self, data: bytes) -> None:
        self._value = codec.unseal(data)
        if not isinstance(self._value, dict) or tuple(self._value) != _PARTS:
            raise StateError('not a capsule of an environment; take one with env.snapshot()')
        self._data: bytes | None = bytes(data)

    @classmethod
    def _of(cls, value: dict[str, Any]) -> EnvCapsule:
        made = cls.__new__(cls)
        made._value, made._data = value, None
        return made

    @property
    def environment(self) -> str:
        """The id of the environment, or the name of its class where it has none."""
        return str(self._value['environment'])

    @property
    def observation(self) -> Any:
        """What the environment had shown last; a copy."""
        return codec.fresh(self._value['observation'])

    @property
    def info(self) -> dict[str, Any]:
        """The info that came with it; a copy."""
        found: dict[str, Any] = codec.fresh(self._value['info'])
        return found

    @property
    def layers(self) -> tuple[tuple[str, Any], ...]:
        """Class and state of every wrapper, outermost first, and of the environment; read-only."""
        return tuple((name, state) for name, state in self._value['layers'])

    def __bytes__(self) -> bytes:
        if self._data is None:
            self._data = codec.seal(self._value).tobytes()
        return self._data

    def __reduce__(self) -> tuple[type[EnvCapsule], tuple[bytes]]:
        """Other processes (vectorised environments, clusters) are sent the checked bytes."""
        return EnvCapsule, (bytes(self),)

    def __repr__(self) -> str:
        return f'EnvCapsule({self.environment!r}, {len(self.layers)} layers)'


class Checkpointable(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Gives an environment `snapshot()`, and `reset(options={'capsule': ...})`.

    A reset by capsule continues the very episode: physics, observation, info, random numbers and
    what wrappers inside count (time limits, stacked frames, statistics) are as they were, and
    nothing is drawn or simulated. With a `seed` the environment's later random numbers are new.

    Everything else that `options['capsule']` may hold is handed to the environment itself, which
    starts an episode there: scenes take what their `get_state` gave, or a capsule of a live
    episode.

    The environments of this package wear it already. Wrappers outside of it are not part of its
    capsules: put it outermost.

    Args:
        env: an environment, wrapped as you like.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        RecordConstructorArgs.__init__(self)
        gymnasium.Wrapper.__init__(self, env)
        self._seen: tuple[Any, dict[str, Any]] | None = None
        for layer in _layers(env):
            if not _has_state(layer) and not isinstance(layer, gymnasium.Wrapper):
                raise StateError(
                    f'{type(layer).__name__} has no get_state() and set_state(); write both, see '
                    'docs/own-environment.md'
                )

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step, and keep what was seen for the next capsule."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._seen = codec.plain(observation), codec.plain(info)
        return observation, reward, terminated, truncated, info

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode, or continue the one of `options['capsule']`.

        Raises:
            StateError: the capsule belongs to another environment, or to other wrappers; nothing
                has changed then.
        """
        capsule = (options or {}).get('capsule')
        if isinstance(capsule, EnvCapsule):
            if len(options or {}) > 1:
                raise StateError(
                    f'reset by a capsule takes no other option; drop {sorted(set(options or {}))}'
                )
            self._restore(capsule)
            if seed is not None:
                base: Any = self.unwrapped
                base._np_random, base._np_random_seed = seeding.np_random(seed)
            observation, info = capsule.observation, capsule.info
        else:
            observation, info = self.env.reset(seed=seed, options=options)
        self._seen = codec.plain(observation), codec.plain(info)
        return observation, info

    def snapshot(self) -> EnvCapsule:
        """Freeze the environment and its wrappers between two steps; nothing moves.

        Raises:
            StateError: before the first reset, or for state that cannot be saved; names it.
        """
        if self._seen is None:
            raise StateError('nothing to freeze yet; reset the environment first')
        states = [[type(layer).__name__, _state(layer)] for layer in _layers(self.env)]
        observation, info = self._seen
        return EnvCapsule._of({
            'environment': _name(self),
            'layers': states,
            'observation': observation,
            'info': info,
        })  # fmt: skip

    def _restore(self, capsule: EnvCapsule) -> None:
        """All or nothing."""
        layers = list(_layers(self.env))
        here = [type(layer).__name__ for layer in layers]
        there = [name for name, _ in capsule.layers]
        if (capsule.environment, there) != (_name(self), here):
            raise StateError(
                f'capsule of {capsule.environment} within {", ".join(there)} cannot be set on '
                f'{_name(self)} within {", ".join(here)}'
            )
        pairs = [(layer, state) for layer, (_, state) in zip(layers, capsule.layers, strict=True)]
        # The environment first: where nobody else may refuse, nothing need be kept to undo.
        pairs.reverse()
        may_refuse = sum(_has_state(layer) for layer in layers)
        undo = [(layer, _state(layer)) for layer in layers] if may_refuse > 1 else []
        done = []
        try:
            for layer, state in pairs:
                _set_state(layer, state)
                done.append(layer)
        except Exception:
            for layer, state in undo:
                if layer in done:
                    _set_state(layer, state)
            raise


def bare_state(capsule: Capsule | EnvCapsule | np.ndarray | bytes) -> np.ndarray | bytes:
    """The simulator's own state in whatever it was kept in.

    Args:
        capsule: what an environment's `get_state` gave, or a capsule of the environment, or of a
            live episode.

    Raises:
        StateError: it is nothing of these.
    """
    if isinstance(capsule, np.ndarray | bytes):
        return capsule
    found: Any = None
    if isinstance(capsule, EnvCapsule):
        found = capsule.layers[-1][1]
    elif hasattr(capsule, 'host_state'):
        found = capsule.host_state().get('simulator', {}).get('scene')
    if not isinstance(found, np.ndarray | bytes):
        raise StateError(
            f'{capsule!r} holds no state of a scene; give what get_state() or snapshot() returned'
        )
    return found


def _layers(env: Any) -> Iterator[Any]:
    """The wrappers, outermost first, and the environment itself."""
    while isinstance(env, gymnasium.Wrapper):
        yield env
        env = env.env
    yield env


def _name(env: gymnasium.Env[Any, Any]) -> str:
    base = env.unwrapped
    return base.spec.id if base.spec is not None else type(base).__name__


def _has_state(layer: Any) -> bool:
    return hasattr(type(layer), 'get_state') and hasattr(type(layer), 'set_state')


def _state(layer: Any) -> Any:
    if _has_state(layer):
        return codec.plain(layer.get_state())
    found = {}
    for name, value in vars(layer).items():
        if name in _WIRING or callable(value) or isinstance(value, _NOT_STATE):
            continue
        found[name] = codec.plain(value)
        try:
            codec.pack(found[name])
        except StateError as error:
            raise StateError(
                f'wrapper {type(layer).__name__} keeps {name!r}: {error}; give the wrapper '
                'get_state() and set_state()'
            ) from None
    return found


def _set_state(layer: Any, state: Any) -> None:
    if _has_state(layer):
        layer.set_state(codec.fresh(state))
        return
    for name, value in state.items():
        setattr(layer, name, codec.fresh(value))


_NOT_STATE = (gymnasium.Space, gymnasium.Env, EnvSpec, ModuleType)
