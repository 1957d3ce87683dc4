"""Names the environments to gymnasium, when `flashrt_sim` is imported.

Gymnasium 1.0 dropped the entry points through which a package could do so without being imported;
in one line it is `gymnasium.make('flashrt_sim:flashrt/Drawer-v0')`.
"""

from __future__ import annotations

# Environment id -> where its class is. 500 ticks is MetaWorld's own limit of an episode.
ENVIRONMENTS: dict[str, str] = {
    'flashrt/Drawer-v0': 'flashrt_sim.drawer:DrawerEnv',
}
MAX_EPISODE_STEPS = 500


def register() -> None:
    """Register every environment of this package; a second call changes nothing."""
    from gymnasium.envs.registration import register as register_one
    from gymnasium.envs.registration import registry

    for name, entry_point in ENVIRONMENTS.items():
        if name not in registry:
            register_one(name, entry_point=entry_point, max_episode_steps=MAX_EPISODE_STEPS)
