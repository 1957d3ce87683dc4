"""`check_checkpointable`: whether capsules of an environment are whole, in the way of `check_env`.

State that somebody forgot is found by what it does: an episode is frozen, goes on, and is gone on
with again from the capsule, in the same environment after another episode and in a fresh twin.
Whatever an agent can see must be the same to the last bit, wrappers' counts included.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from flashrt_ros.errors import FlashrtError

from . import codec
from .capsules import Checkpointable, EnvCapsule
from .codec import StateError

Env = gymnasium.Env[Any, Any]
Trace = list[dict[str, Any]]


class NotCheckpointable(FlashrtError, AssertionError):
    """A capsule of the environment is not whole; says what diverged, and where."""


def check_checkpointable(
    env: Env,
    *,
    twin: Callable[[], Env] | None = None,
    seed: int = 0,
    before: int = 8,
    after: int = 16,
) -> None:
    """Check that capsules of `env` hold everything that its next steps depend on.

    An episode that ends on the way is followed by the next one, without a seed, so random numbers
    count as well. What shows only after more steps (a limit of 500, say) is found with a smaller
    limit or a larger `after`.

    Args:
        env: with its wrappers; it is left in some episode, and not closed.
        twin: makes another one just like it; from `env.spec` if left out.
        seed: of the episodes and the actions.
        before: steps before the capsule is taken.
        after: steps that are compared.

    Raises:
        NotCheckpointable: names the check, what diverged, and how many steps after the capsule.
    """
    try:
        _check(env, twin or _maker(env), seed, before, after)
    except StateError as error:
        raise NotCheckpointable(str(error)) from None


def _check(env: Env, make_twin: Callable[[], Env], seed: int, before: int, after: int) -> None:
    subject = env if isinstance(env, Checkpointable) else Checkpointable(env)
    space = copy.deepcopy(env.action_space)
    space.seed(seed)
    first = [space.sample() for _ in range(before)]
    then = [space.sample() for _ in range(after)]
    other = [space.sample() for _ in range(before + 3)]

    def begin(seed: int, actions: list[Any]) -> None:
        subject.reset(seed=seed)
        _run(subject, actions)

    subject.reset(seed=seed)
    subject.snapshot()  # what cannot be saved at all is told first
    begin(seed, first)
    expected = _run(subject, then)
    begin(seed, first)
    _compare(
        expected,
        _run(subject, then),
        'played again from the same seed',
        'reset(seed=...) does not decide the episode (see gymnasium.utils.env_checker.check_env)',
    )

    begin(seed, first)
    capsule = subject.snapshot()
    _compare(
        expected,
        _run(subject, then),
        'after a snapshot',
        'taking one must move nothing, get_state() least of all',
    )

    forgotten = 'some state is neither in get_state() nor in a wrapper attribute'
    begin(seed + 1, other)
    subject.reset(options={'capsule': capsule})
    _compare(expected, _run(subject, then), 'restored in the same environment', forgotten)

    subject.reset(options={'capsule': capsule})
    _compare(
        expected,
        _run(subject, then),
        'restored a second time',
        'set_state() keeps what it was given and steps change it; copy it',
    )

    made = make_twin()
    fresh = made if isinstance(made, Checkpointable) else Checkpointable(made)
    fresh.reset(seed=seed + 2)
    fresh.reset(options={'capsule': EnvCapsule(bytes(capsule))})
    _compare(expected, _run(fresh, then), 'restored in a fresh twin, from bytes', forgotten)
    fresh.close()

    begin(seed + 1, other)
    expected = _run(subject, then)
    for key, state in _incomplete(capsule):
        begin(seed + 1, other)
        try:
            subject.unwrapped.set_state(state)  # type: ignore[attr-defined]
        except Exception:
            _compare(
                expected,
                _run(subject, then),
                f'after set_state() had refused a state without {key!r}',
                'it must raise before it changes anything',
            )


def _maker(env: Env) -> Callable[[], Env]:
    spec = env.spec
    if spec is None:
        raise NotCheckpointable(
            'the environment has no spec to make a twin from; give twin=, which makes one'
        )
    return lambda: gymnasium.make(spec)


def _incomplete(capsule: EnvCapsule) -> list[tuple[str, Any]]:
    """States of the environment itself that lack a part."""
    _, state = capsule.layers[-1]
    if not isinstance(state, dict):
        return []
    return [
        (key, codec.fresh({name: value for name, value in state.items() if name != key}))
        for key in state
    ]


def _run(env: Env, actions: list[Any]) -> Trace:
    """What is seen from each action; where an episode ends, the next one begins."""
    trace: Trace = []
    for action in actions:
        observation, reward, terminated, truncated, info = env.step(action)
        trace.append(
            {
                'observation': codec.plain(observation),
                'reward': reward,
                'terminated': terminated,
                'truncated': truncated,
                'info': codec.plain(info),
            }
        )
        if terminated or truncated:
            observation, info = env.reset()
            trace[-1]["the next episode's observation"] = codec.plain(observation)
            trace[-1]["the next episode's info"] = codec.plain(info)
    return trace


def _compare(expected: Trace, seen: Trace, when: str, why: str) -> None:
    for tick, (one, other) in enumerate(zip(expected, seen, strict=True), 1):
        for name in dict.fromkeys([*one, *other]):
            path = _difference(one.get(name), other.get(name), name)
            if path:
                raise NotCheckpointable(f'{when}, {path} differs in step {tick}: {why}')


def _difference(one: Any, other: Any, path: str) -> str:
    """The path of the first part that is not the same to the bit; empty where all of it is."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in dict.fromkeys([*one, *other]):
            if (key in one) != (key in other):
                return f'{path}[{key!r}]'
            found = _difference(one[key], other[key], f'{path}[{key!r}]')
            if found:
                return found
        return ''
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        if len(one) != len(other):
            return path
        pairs = enumerate(zip(one, other, strict=True))
        return next(filter(None, (_difference(a, b, f'{path}[{i}]') for i, (a, b) in pairs)), '')
    return '' if _same(one, other) else path


def _same(one: Any, other: Any) -> bool:
    numbers = np.ndarray | np.generic | float
    if isinstance(one, numbers) and isinstance(other, numbers):
        a, b = np.asarray(one), np.asarray(other)
        return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    return bool(type(one) is type(other) and one == other)
