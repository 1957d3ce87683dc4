"""One simulated episode with its robot brain: simulator, actor and mailbox as one closure.

A capsule of it holds the policy's buffers, the subgoal, the queue of actions and the whole
simulator, so an episode can be frozen at any tick and go on from there, byte for byte, as often
as one likes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashrt_policies import registry
from flashrt_policies.base import PolicySpec
from flashrt_ros.contract.context import Context
from flashrt_ros.control.actor import Actor
from flashrt_ros.control.guards import GuardError, Guards
from flashrt_ros.control.mailbox import Mailbox
from flashrt_ros.control.types import DELAY, EXECUTE, Command, Observation

from .envs import make_scene
from .errors import SimulationError
from .scene import SceneEnv

if TYPE_CHECKING:
    from flashrt_ros.capsule.capsule import Capsule


class SceneHost:
    """Makes a scene's state part of a closure.

    Args:
        scene: the simulated world.
    """

    def __init__(self, scene: SceneEnv) -> None:
        self.scene = scene

    def state(self) -> dict[str, Any]:
        """The whole simulator, as checked bytes."""
        return {'scene': self.scene.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Put back what `state` gave."""
        self.scene.set_state(state['scene'])


@dataclass(frozen=True)
class Moment:
    """What happened in one tick: its number, the command, and the scene's info afterwards."""

    tick: int
    command: Command
    info: dict[str, Any]
    inferred: bool
    refused: str = ''


class LiveEpisode:
    """A scene and an actor that run tick by tick, in one thread, with the robot's delays.

    Args:
        scene: the simulated world.
        actor: made with `hosts={'simulator': SceneHost(scene)}`.
        host: that very host, for `move_to`.
    """

    def __init__(self, scene: SceneEnv, actor: Actor, host: SceneHost | None = None) -> None:
        self.scene, self.actor, self._host = scene, actor, host
        self._number = 0

    @classmethod
    def open(
        cls,
        environment: str,
        policy: str | Path = 'drawer',
        *,
        device: str = 'cpu',
        execute: int = EXECUTE,
        delay: int = DELAY,
    ) -> LiveEpisode:
        """Load everything that an episode needs.

        Raises:
            SimulationError: unknown environment, or a policy made for another robot.
            CheckpointError: missing or unfit weights.
        """
        scene = make_scene(environment)
        spec = registry.spec(policy)
        require_fits(scene, environment, spec, policy)
        context = Context(device)
        mailbox = Mailbox(context, length=spec.subgoal_length)
        loaded: Any = registry.load(policy, context, mailbox.port)
        host = SceneHost(scene)
        actor = Actor(
            context,
            loaded,
            mailbox,
            Guards.of(loaded.spec),
            execute=execute,
            delay=delay,
            hosts={'simulator': host},
        )
        context.freeze()
        return cls(scene, actor, host)

    def move_to(self, scene: SceneEnv) -> None:
        """Go on in another scene, with the same brain; start an episode there next.

        Raises:
            SimulationError: this episode was not made by `open`.
        """
        if self._host is None:
            raise SimulationError(
                'an episode moves to another scene only if it was opened by name'
            )
        self.scene = self._host.scene = scene

    def start(self, seed: int, subgoal: str, *, text: str | None = None, **options: Any) -> None:
        """Begin an episode that `seed` decides.

        Args:
            seed: of the scene and of the policy's noise.
            subgoal: canonical name; success is judged by it.
            text: how the policy is told; the canonical name if left out.
            options: of the scene's reset, `start` or `state`.

        Raises:
            SimulationError: for an unknown subgoal or option.
        """
        self.scene.reset_physics(seed=seed, options={'subgoal': subgoal, **options})
        self.begin(seed, text or subgoal)

    def begin(self, seed: int, text: str) -> None:
        """Start the brain in the scene as it stands, and tell it `text`."""
        self._number += 1
        self.actor.start(episode=self._number, epoch=self.actor.epoch + 1, seed=seed)
        self.actor.post(text, tick=-1)

    def ask(self, subgoal: str, *, text: str | None = None) -> None:
        """Hand the brain another subgoal, also in mid-motion."""
        self.scene.ask(subgoal)
        self.actor.post(text or subgoal, tick=self.scene.ticks)

    def tick(self) -> Moment:
        """Observe and infer where it is due, act, move the world.

        What a guard refuses is a hold, as on the robot.
        """
        tick, inferred, refused = self.scene.ticks, False, ''
        if self.actor.wants(tick):
            seen = self.scene.render_observation()
            observation = Observation(
                images={name: seen['pixels'][name] for name in self.actor.policy.spec.cameras},
                proprio=seen['agent_pos'],
                tick=tick,
                episode=self.actor.episode,
                epoch=self.actor.epoch,
            )
            try:
                self.actor.infer(observation)
                inferred = True
            except GuardError as error:
                refused = str(error)
        command = self.actor.act(tick)
        return Moment(tick, command, self.scene.step_physics(command.action), inferred, refused)

    def snapshot(self, boundary: str) -> Capsule:
        """Freeze scene and brain between two ticks."""
        return self.actor.snapshot(boundary)

    def restore(self, capsule: Capsule, *, noise: int | None = None) -> None:
        """Go on from `capsule`: the very same ticks follow, or others with new `noise`.

        Raises:
            FingerprintError: the capsule belongs to another deployment; nothing changed.
        """
        seed = -1 if noise is None else noise
        self.actor.restore(capsule, epoch=self.actor.epoch + 1, keep_queue=True, seed=seed)

    rollback = restore

    def close(self) -> None:
        """Give back the scene's rendering contexts."""
        self.scene.close()


def require_fits(scene: SceneEnv, environment: str, spec: PolicySpec, policy: str | Path) -> None:
    """Refuse a policy that was made for another robot.

    Raises:
        SimulationError: names what differs.
    """
    pixels: Any = scene.observation_space['pixels']  # type: ignore[index]
    for name in spec.cameras:
        if name not in pixels.spaces:
            raise SimulationError(
                f'policy {policy} looks through camera {name!r}; {environment} has '
                f'{", ".join(pixels.spaces)}'
            )
        if pixels[name].shape[:2] != tuple(spec.image_hw):
            raise SimulationError(
                f'policy {policy} takes images of {list(spec.image_hw)}; {environment} gives '
                f'{list(pixels[name].shape[:2])}'
            )
    proprio = scene.observation_space['agent_pos'].shape  # type: ignore[index]
    sizes = {'proprioception': (spec.proprio_dim, proprio), 'action': (spec.action_dim, (4,))}
    for name, (want, have) in sizes.items():
        if (want,) != have:
            raise SimulationError(
                f'policy {policy} has {name} of {want} numbers; {environment} has {have[0]}'
            )
