"""How good a branch of a tree is: a dense reward, a learned value, or a function of one's own.

A judge sees the episode as the branch left it (`live.scene.simulator`, or what the policy would
see by `live.scene.render_observation()`) and what happened on the way. A value function looks at
the first alone.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from ..errors import SimulationError

if TYPE_CHECKING:
    from ..episode import LiveEpisode, Moment


class Judge(Protocol):
    """Anything that is called like this."""

    def __call__(self, live: LiveEpisode, moments: Sequence[Moment]) -> float:
        """How good the branch is; of several, the one with the greatest number is kept.

        Args:
            live: the episode at the end of the branch; not to be moved.
            moments: the branch's ticks, at least one.
        """
        ...


def reward(live: LiveEpisode, moments: Sequence[Moment]) -> float:
    """The family's own dense reward, the mean over the branch's ticks.

    MetaWorld's is what its agents are trained with: distances to what is to be grasped and to the
    goal, from 0 to 10, read off the simulator. It is not the success criterion, which no judge is
    given, but most tasks pay their full 10 near or at it. Fetch's is the distance to the goal.

    Raises:
        SimulationError: the scene has several subgoals, and the reward is that of one of them.
    """
    if len(live.scene.SUBGOALS) > 1:
        raise SimulationError(
            f'{type(live.scene).__name__} has several subgoals and a dense reward for one of '
            'them; judge by a value function of your own (module:function), or take one of the '
            'fifty tasks'
        )
    return sum(moment.info['dense_reward'] for moment in moments) / len(moments)


def load(name: str) -> Judge:
    """The judge called `name`.

    Args:
        name: 'reward'; the folder of a value function that `flashrt improve` has left; or
            'module:function' from the path or this folder.

    Raises:
        SimulationError: there is no such thing, or it cannot be called.
        CheckpointError: the folder holds no whole value function.
    """
    if name == 'reward':
        return reward
    if Path(name).is_dir():
        from .learned import LearnedValue

        return LearnedValue(Path(name))
    module, _, attribute = name.partition(':')
    if not module or not attribute:
        raise SimulationError(
            f"judge {name!r}: no such folder; name it 'reward', the folder of a value function, "
            "or 'module:function'"
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise SimulationError(f'judge {name!r}: {error}') from None
    if not callable(found):
        raise SimulationError(f'judge {name!r} is no function; want one of (live, moments)')
    return cast(Judge, found)


def require_fits(judge: Judge, environments: Collection[str]) -> None:
    """Refuse a learned value that knows nothing of one of `environments`.

    Raises:
        SimulationError: names the folder and what it was fitted to.
    """
    from .learned import LearnedValue

    if isinstance(judge, LearnedValue):
        judge.require_fits(environments)
