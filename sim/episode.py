"""One simulated episode and all that drives it, as one closure.

A capsule of it holds the policy's buffers, the subgoal, the queue of actions, the planner, what
the harness counts and the whole simulator, so an episode can be frozen at any tick and go on from
there, byte for byte, as often as one likes: here, in several branches that take turns, or from a
file in another process.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashrt_policies import registry
from flashrt_policies.base import PolicySpec
from flashrt_ros.capsule.registry import Registry
from flashrt_ros.capsule.store import DiskStore
from flashrt_ros.contract.context import Context
from flashrt_ros.control.actor import Actor
from flashrt_ros.control.guards import GuardError, Guards
from flashrt_ros.control.mailbox import Mailbox
from flashrt_ros.control.planner import NEXT, Decision, Facts, Planner
from flashrt_ros.control.types import DELAY, EXECUTE, Observation

from .branch import Branch
from .envs.make import make_scene
from .envs.scene import SceneEnv
from .errors import SimulationError
from .harness import Counts, Moment, SceneHost

if TYPE_CHECKING:
    from flashrt_ros.capsule.capsule import Capsule

_MEMORY = 1 << 30  # bytes for capsules beside a folder for them; taken page by page on a CPU


class LiveEpisode:
    """A scene and an actor that run tick by tick, in one thread, with the robot's delays.

    Args:
        scene: the simulated world.
        actor: made with `hosts={'simulator': SceneHost(scene)}`, that last.
        host: that very host, for `move_to`.
        counts: the actor's host 'harness', if capsules are to hold what is counted.
        planner: the actor's host 'planner', if there is one.
    """

    def __init__(
        self,
        scene: SceneEnv,
        actor: Actor,
        host: SceneHost | None = None,
        counts: Counts | None = None,
        planner: Planner | None = None,
    ) -> None:
        self.scene, self.actor, self._host = scene, actor, host
        self.counts, self.planner = counts or Counts(), planner
        self.branch: Branch | None = None  # which of the branches goes on here, if any

    @classmethod
    def open(
        cls,
        environment: str,
        policy: str | Path = 'drawer',
        *,
        device: str = 'cpu',
        execute: int = EXECUTE,
        delay: int = DELAY,
        planner: Planner | None = None,
        store: str | Path | None = None,
    ) -> LiveEpisode:
        """Load everything that an episode needs.

        Args:
            environment: for example 'flashrt/Drawer-v0'.
            policy: name of shipped weights, or a folder.
            device: 'cpu', 'cuda' or 'cuda:N'.
            execute: ticks from one chunk to the next.
            delay: ticks from an observation to its chunk's first use.
            planner: asked at every tick which subgoal comes next; see `instruct`.
            store: folder for `save` and `load`.

        Raises:
            SimulationError: unknown environment, or a policy made for another robot.
            CheckpointError: missing or unfit weights.
            StoreError: the folder is not safe to keep capsules in.
        """
        scene = make_scene(environment)
        spec = registry.spec(policy)
        require_fits(scene, environment, spec, policy)
        context = Context(device)
        mailbox = Mailbox(context, length=spec.subgoal_length)
        loaded: Any = registry.load(policy, context, mailbox.port)
        host, counts = SceneHost(scene), Counts()
        hosts: dict[str, Any] = {'harness': counts}
        if planner is not None:
            hosts['planner'] = planner
        hosts['simulator'] = host  # last: a restore then need not read it first, to undo
        actor = Actor(
            context,
            loaded,
            mailbox,
            Guards.of(loaded.spec),
            execute=execute,
            delay=delay,
            hosts=hosts,
            registry=None
            if store is None
            else Registry(context, _MEMORY, store=DiskStore(store), keep=False),
        )
        context.freeze()
        return cls(scene, actor, host, counts, planner)

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

    # Running ------------------------------------------------------------------------------------

    def start(self, seed: int, subgoal: str, *, text: str | None = None, **options: Any) -> None:
        """Begin an episode that `seed` decides.

        Args:
            seed: of the scene and of the policy's noise.
            subgoal: canonical name; success is judged by it.
            text: how the policy is told; the canonical name if left out.
            options: of the scene's reset, `start` or `capsule`.

        Raises:
            SimulationError: for an unknown subgoal or option.
        """
        self.scene.reset_physics(seed=seed, options={'subgoal': subgoal, **options})
        self.begin(seed, text or subgoal)

    def instruct(self, seed: int, instruction: str, **options: Any) -> tuple[str, ...]:
        """Begin an episode that the planner leads through; returns its plan.

        Args:
            seed: of the scene and of the policy's noise.
            instruction: in words, for example 'open the drawer, then close it'.
            options: of the scene's reset.

        Raises:
            SimulationError: this episode has no planner.
            PlannerError: it does not understand.
        """
        if self.planner is None:
            raise SimulationError('nobody understands instructions here; open(planner=...)')
        plan = self.planner.start(instruction)
        self.start(seed, plan[0], **options)
        return plan

    def begin(self, seed: int, text: str) -> None:
        """Start the brain in the scene as it stands, and tell it `text`."""
        self.branch = None
        self.counts.set_state(Counts(self.counts.episode + 1).state())
        self.actor.start(episode=self.counts.episode, epoch=self.actor.epoch + 1, seed=seed)
        self.actor.post(text, tick=-1)

    def ask(self, subgoal: str, *, text: str | None = None) -> None:
        """Hand the brain another subgoal, also in mid-motion."""
        self.scene.ask(subgoal)
        self.actor.post(text or subgoal, tick=self.scene.ticks)

    def tick(self) -> Moment:
        """Observe and infer where it is due, act, move the world; then ask the planner.

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
        info = self.scene.step_physics(command.action)
        self._count(info, inferred, command.held, bool(refused))
        return Moment(tick, command, info, inferred, refused, self._decide(info))

    def _count(self, info: dict[str, Any], inferred: bool, held: bool, refused: bool) -> None:
        counts = self.counts
        counts.ticks += 1
        counts.inferences += inferred
        counts.held += held
        counts.refused += refused
        if counts.first_success < 0 and info['is_success']:
            counts.first_success = counts.ticks

    def _decide(self, info: dict[str, Any]) -> Decision | None:
        if self.planner is None or not self.planner.plan:
            return None
        x, y, z, grip = (float(number) for number in self.scene.proprioception())
        decision = self.planner.decide(
            self.scene.ticks, Facts(info['subgoals'], hand=(x, y, z), grip=grip)
        )
        if decision.kind == NEXT:
            self.ask(decision.subgoal)
        return decision

    # Capsules -----------------------------------------------------------------------------------

    def snapshot(self, boundary: str) -> Capsule:
        """Freeze scene, brain, planner and counts between two ticks."""
        return self.actor.snapshot(boundary)

    def restore(self, capsule: Capsule, *, noise: int | None = None) -> None:
        """Go on from `capsule`: the very same ticks follow, or others with new `noise`.

        Raises:
            FingerprintError: the capsule belongs to another deployment.
            StateError: it is of another scene.
            StoreError, EvictedError: its file is damaged, or it is gone.
            In every case nothing has changed: the episode goes on where it stood.
        """
        session = self.actor.session
        session.require_fits(capsule)
        host = capsule.host_state()
        self.scene.check_state(host['simulator']['scene'])
        session.registry.promote(capsule)
        self.actor.restore(
            capsule,
            epoch=self.actor.epoch + 1,
            keep_queue=True,
            episode=host['harness']['episode'] if 'harness' in host else None,
            seed=-1 if noise is None else noise,
        )
        self.branch = None

    rollback = restore

    def fork(
        self, n: int, *, capsule: Capsule | None = None, noise: Sequence[int] | None = None
    ) -> list[Branch]:
        """`n` futures of this moment, which take turns on this simulator and brain.

        They share the capsule that they start from: nothing is copied until a branch has gone its
        own way and another one's turn comes.

        Args:
            n: how many branches.
            capsule: fork that moment instead of the present one.
            noise: a noise seed for each branch; without, all of them repeat the same future.

        Raises:
            SimulationError: `n` is not positive, or there are not as many seeds.
        """
        if n < 1 or (noise is not None and len(noise) != n):
            seeds = '' if noise is None else f' with {len(noise)} noise seeds'
            raise SimulationError(f'a fork into {n}{seeds}; give n from 1, and a seed for each')
        root = self.snapshot('fork') if capsule is None else capsule
        return [Branch(self, root, None if noise is None else noise[i]) for i in range(n)]

    def save(self, capsule: Capsule) -> str:
        """Write a capsule into the store; returns its digest once the file is safe.

        Raises:
            SimulationError: the episode was opened without a store.
            StoreError, BudgetError: it cannot be written.
        """
        self._require_store()
        return self.actor.session.registry.commit(capsule)

    def load(self, digest: str) -> Capsule:
        """The capsule of the store whose digest begins so, to be restored.

        Raises:
            SimulationError: the episode was opened without a store.
            StoreError: there is none or more than one, or the file is not what it must be.
            FingerprintError: it belongs to another deployment; names what differs.
        """
        store, session = self._require_store(), self.actor.session
        name = store.find(digest)
        known = [capsule for capsule in session.registry.capsules if capsule.file == name]
        return known[0] if known else session.open(name)

    def _require_store(self) -> DiskStore:
        store = self.actor.session.registry.store
        if store is None:
            raise SimulationError('this episode has no folder for capsules; open(store=FOLDER)')
        return store

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
