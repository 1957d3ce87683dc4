"""flashrt_sim: simulated robots with exact get and set of their whole state, and rollouts.

Importing it names the environments to gymnasium: `gymnasium.make('flashrt/Drawer-v0')`.
`check_checkpointable` says whether capsules of an environment of your own are whole.
"""

from typing import Any

from flashrt_sim.envs.registration import register

register()


def __getattr__(name: str) -> Any:
    """`check_checkpointable`, `Checkpointable` and `EnvCapsule`, loaded when asked for."""
    import importlib

    where = {'check_checkpointable': 'checks', 'Checkpointable': 'capsules'}
    where['EnvCapsule'] = 'capsules'
    if name in where:
        return getattr(importlib.import_module(f'flashrt_sim.{where[name]}'), name)
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
