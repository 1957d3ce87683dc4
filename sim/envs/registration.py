"""Names the environments to gymnasium, when `flashrt_sim` is imported.

Gymnasium 1.0 dropped the entry points through which a package could do so without being imported;
in one line it is `gymnasium.make('flashrt_sim:flashrt/Drawer-v0')`.
"""

from __future__ import annotations

# The fifty tasks of MetaWorld.
FIFTY = (
    'assembly', 'basketball', 'bin-picking', 'box-close', 'button-press', 'button-press-topdown',
    'button-press-topdown-wall', 'button-press-wall', 'coffee-button', 'coffee-pull',
    'coffee-push', 'dial-turn', 'disassemble', 'door-close', 'door-lock', 'door-open',
    'door-unlock', 'drawer-close', 'drawer-open', 'faucet-close', 'faucet-open', 'hammer',
    'hand-insert', 'handle-press', 'handle-press-side', 'handle-pull', 'handle-pull-side',
    'lever-pull', 'peg-insert-side', 'peg-unplug-side', 'pick-out-of-hole', 'pick-place',
    'pick-place-wall', 'plate-slide', 'plate-slide-back', 'plate-slide-back-side',
    'plate-slide-side', 'push', 'push-back', 'push-wall', 'reach', 'reach-wall', 'shelf-place',
    'soccer', 'stick-pull', 'stick-push', 'sweep', 'sweep-into', 'window-close', 'window-open',
)  # fmt: skip


def class_name(task: str) -> str:
    """The class of a task in `flashrt_sim.envs.fifty`: 'drawer-open' -> 'DrawerOpenEnv'."""
    return ''.join(part.capitalize() for part in task.split('-')) + 'Env'


def environment_name(task: str) -> str:
    """The environment of a task: 'drawer-open' -> 'flashrt/MT50-drawer-open-v0'."""
    return f'flashrt/MT50-{task}-v0'


# Environment id -> where its class is. Scenes with several subgoals first.
SCENES: dict[str, str] = {
    'flashrt/Drawer-v0': 'flashrt_sim.envs.drawer:DrawerEnv',
    'flashrt/Window-v0': 'flashrt_sim.envs.window:WindowEnv',
    'flashrt/Door-v0': 'flashrt_sim.envs.door:DoorEnv',
    'flashrt/Faucet-v0': 'flashrt_sim.envs.faucet:FaucetEnv',
    'flashrt/Puck-v0': 'flashrt_sim.envs.puck:PuckEnv',
}
# The second family, of gymnasium-robotics (the extra `fetch`).
FETCH: dict[str, str] = {
    f'flashrt/Fetch{task}-v0': f'flashrt_sim.envs.fetch:{task}Env'
    for task in ('Reach', 'Push', 'Slide', 'PickAndPlace')
}
ENVIRONMENTS: dict[str, str] = (
    SCENES
    | {environment_name(task): f'flashrt_sim.envs.fifty:{class_name(task)}' for task in FIFTY}
    | FETCH
)
MAX_EPISODE_STEPS = 500  # MetaWorld's own limit
FETCH_EPISODE_STEPS = 50  # gymnasium-robotics'


def register() -> None:
    """Register every environment of this package; a second call changes nothing."""
    from gymnasium.envs.registration import WrapperSpec, registry
    from gymnasium.envs.registration import register as register_one

    capsules = WrapperSpec('Checkpointable', 'flashrt_sim.capsules:Checkpointable', {})
    for name, entry_point in ENVIRONMENTS.items():
        if name not in registry:
            steps = FETCH_EPISODE_STEPS if name in FETCH else MAX_EPISODE_STEPS
            register_one(
                name,
                entry_point=entry_point,
                max_episode_steps=steps,
                additional_wrappers=(capsules,),
            )
