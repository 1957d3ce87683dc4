"""The policy as a node: observations in, one command per control tick out.

Graphs are replayed on one dedicated thread, beside the control tick: the executor answers each
RobotState at once from the chunk queue, and hands an observation over when the actor wants one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rclpy.callback_groups import MutuallyExclusiveCallbackGroup
from sensor_msgs.msg import Image

from flashrt_interfaces.msg import ActionChunk, ControlCommand, EpisodeState, RobotState, Subgoal
from flashrt_interfaces.srv import BeginEpisode, Restore, Snapshot
from flashrt_ros.control import episode
from flashrt_ros.control.guards import GuardError, summary
from flashrt_ros.control.types import DELAY, EXECUTE, Command, HoldRule, Observation
from flashrt_ros.errors import FlashrtError
from flashrt_ros.nodes import names, qos
from flashrt_ros.nodes.base import Managed, answers
from flashrt_ros.nodes.convert import age, chunk_to_msg, command_to_msg
from flashrt_ros.nodes.intake import Complete, Intake
from flashrt_ros.nodes.params import Param, declare
from flashrt_ros.nodes.spin import run
from flashrt_ros.nodes.worker import Worker

PARAMS = (
    Param('policy', 'drawer', 'name of shipped weights, or a checkpoint folder'),
    Param('device', 'cpu', 'where the policy runs: cpu, cuda or cuda:N'),
    Param('torch_threads', 1, 'threads torch may use on the CPU', 1, 256),
    Param('execute', EXECUTE, 'control ticks from one request for a chunk to the next', 1, 1000),
    Param(
        'delay', DELAY, 'control ticks from an observation to the first use of its chunk', 0, 1000
    ),
    Param('subgoal_delay', 1, 'control ticks before a posted subgoal may become live', 0, 1000),
    Param('hold_keep', [3], 'entries that keep their last value in a hold; the others become 0'),
    Param('max_age_s', 0.5, 'oldest observation that is used, in seconds', 0.001, 60.0),
    Param('action_slack', 0.5, 'overshoot that is clipped, as a part of the range', 0.0, 10.0),
    Param(
        'image_reliability',
        'best_effort',
        'of the image subscriptions',
        choices=('best_effort', 'reliable'),
    ),
    Param('capsules', 32, 'snapshots kept; the oldest goes first', 1, 10000),
)
HOLDING = {episode.INTERRUPTED, episode.IDLE, episode.FAULT}


class PolicyNode(Managed):
    """A policy between `robot/*` and `brain/command`.

    By itself it takes subgoals from the Subgoal topic; `Brain` has a planner inside.
    """

    hosts_planner = False

    def __init__(self, name: str = 'policy', **options: Any) -> None:
        super().__init__(name, **options)
        self.p = declare(self, self.parameters())
        self.worker = Worker('replay')
        self._ticking = threading.Lock()  # a tick, or a snapshot of everything a tick changes
        self._capsules: dict[str, Any] = {}
        self._inferring = False
        self._topic_group = MutuallyExclusiveCallbackGroup()
        self._service_group = MutuallyExclusiveCallbackGroup()
        self._commands = self.create_publisher(ControlCommand, names.COMMAND, qos.STATE)
        self._chunks = self.create_publisher(ActionChunk, names.CHUNK, qos.TELEMETRY)

    def parameters(self) -> Sequence[Param]:
        """Return the parameters of this node."""
        return PARAMS

    def load_policy(self, ctx: Any, port: Any) -> Any:
        """Return the policy on ``ctx``; tests put another here."""
        from flashrt_policies import registry

        return registry.load(self.p.policy, ctx, port)

    def hosts(self, skills: Sequence[str]) -> dict[str, Any]:
        """Return host state that the capsules carry beside the actor's, by name."""
        return {}

    def instruct(self, instruction: str) -> list[str]:
        """Take an instruction and return its plan; an error changes nothing."""
        return []

    def post_current(self) -> None:
        """Post the plan's first subgoal, before the first tick."""

    def tell_current(self) -> None:
        """Say which subgoal is current, after a restore."""

    def decide(self, msg: RobotState) -> None:
        """Choose the subgoal at this tick."""

    # -- lifecycle --------------------------------------------------------------------------

    def configure(self) -> None:
        """Allocate, load, warm up, capture; then nothing is allocated any more."""
        began = time.perf_counter()
        self.worker.call(self._build)
        spec = self.actor.policy.spec
        self.intake = Intake(self.actor.guards.observation, self.get_logger())
        latest = qos.image_subscription(self.p.image_reliability)
        for camera in spec.cameras:
            self._listen(Image, names.IMAGE.format(camera=camera), self._image_of(camera), latest)
        self._listen(RobotState, names.ROBOT_STATE, self._on_state, qos.STATE)
        self._listen(EpisodeState, names.EPISODE, self._on_episode, qos.LATCHED)
        if not self.hosts_planner:
            self._listen(Subgoal, names.SUBGOAL, self._on_subgoal, qos.TELEMETRY)
        for kind, name, answer in (
            (BeginEpisode, names.BRAIN_BEGIN, self._begin),
            (Snapshot, names.BRAIN_SNAPSHOT, self._snapshot),
            (Restore, names.BRAIN_RESTORE, self._restore),
        ):
            self.create_service(kind, name, answer, callback_group=self._service_group)
        spent = time.perf_counter() - began
        self.get_logger().info(
            f'policy {self.p.policy!r} on {self.p.device}: ready in {spent:.1f} s'
        )

    def _listen(self, kind: Any, topic: str, callback: Any, profile: Any) -> None:
        self.create_subscription(kind, topic, callback, profile, callback_group=self._topic_group)

    def _build(self) -> None:
        import torch

        from flashrt_ros.contract.context import Context
        from flashrt_ros.control.actor import Actor
        from flashrt_ros.control.guards import Guards
        from flashrt_ros.control.mailbox import Mailbox

        torch.set_num_threads(self.p.torch_threads)
        ctx = Context(self.p.device)
        mailbox = Mailbox(ctx, self.subgoal_length())
        policy = self.load_policy(ctx, mailbox.port)
        spec = policy.spec
        self.actor = Actor(
            ctx,
            policy,
            mailbox,
            Guards.of(spec, self.p.max_age_s, self.p.action_slack),
            self.p.execute,
            self.p.delay,
            subgoal_delay=self.p.subgoal_delay,
            hold=HoldRule(spec.action_dim, tuple(self.p.hold_keep)),
            hosts=self.hosts(spec.skills),
        )
        black = np.zeros((*spec.image_hw, 3), np.uint8)
        for _ in range(3):
            policy.observe(dict.fromkeys(spec.cameras, black), np.zeros(spec.proprio_dim, 'f'))
            policy.plan()
        policy.reset(0)
        ctx.freeze()

    def subgoal_length(self) -> int:
        """Return the tokens in a subgoal row of this policy; reads its config alone."""
        from flashrt_policies import registry

        return registry.spec(self.p.policy).subgoal_length

    def deactivate(self) -> None:
        """Say what was refused."""
        self.get_logger().info(f'queue: {summary(self.actor.queue.counters)}')

    def close(self) -> None:
        """End the replay thread."""
        super().close()
        self.worker.close()

    # -- observations and ticks -------------------------------------------------------------

    def _on_state(self, msg: RobotState) -> None:
        actor = self.actor
        if not self.active or (msg.episode, msg.epoch) != (actor.episode, actor.epoch):
            return
        with self._ticking:
            complete = self.intake.state(msg)
            if not actor.paused:
                self.decide(msg)
            try:
                command = actor.act(msg.tick, self.intake.refusals.reason)
            except ValueError as error:
                self.get_logger().warning(str(error))
                return
        self._publish(command)
        self._maybe_infer(complete)

    def _publish(self, command: Command) -> None:
        self._commands.publish(command_to_msg(command, self.get_clock().now().to_msg()))

    def _image_of(self, camera: str) -> Any:
        def on_image(msg: Image) -> None:
            if not self.active:
                return
            try:
                self._maybe_infer(self.intake.image(camera, msg))
            except GuardError:
                self.actor.ask_again()  # said; the next good observation is the one that counts

        return on_image

    def _maybe_infer(self, complete: Complete | None) -> None:
        """Hand an observation over once its state and all images are there, if it is wanted."""
        if complete is None:
            return
        msg, images = complete
        if not self.actor.wants(msg.tick):
            return
        if self._inferring:
            self.actor.ask_again()  # the inference before is not through: take the next one
            return
        self._inferring = True
        self.worker.submit(lambda: self._infer(msg, images))

    def _infer(self, msg: RobotState, images: Mapping[str, np.ndarray]) -> None:
        stamp = msg.header.stamp
        proprio = np.array(msg.proprioception, np.float32)
        observation = Observation(
            images, proprio, msg.tick, msg.episode, msg.epoch, age(self, stamp)
        )
        try:
            chunk = self.actor.infer(observation)
            self.intake.refusals.good('observation')
            self._chunks.publish(chunk_to_msg(chunk, stamp, self.actor.capsule))
            if chunk.late:
                self.get_logger().warning(
                    f'the chunk of tick {chunk.tick} came late: {chunk.latency_ms:.0f} ms'
                )
        except GuardError as error:
            if error.guard != 'epoch':  # one of before an interrupt is nobody's fault
                self.intake.refusals.refuse('observation', error)
        except Exception as error:
            self.get_logger().error(f'inference failed: {type(error).__name__}: {error}')
        finally:
            self._inferring = False

    # -- supervisor and planner -------------------------------------------------------------

    def _on_subgoal(self, msg: Subgoal) -> None:
        mine = self.active and msg.episode == self.actor.episode
        if mine and msg.status == Subgoal.STATUS_POSTED:
            self.actor.post(msg.text, msg.tick)

    def _on_episode(self, msg: EpisodeState) -> None:
        actor = self.actor
        if not self.active or msg.epoch < actor.epoch:
            return
        if msg.state in HOLDING:
            actor.pause(msg.epoch, f'{msg.state}: {msg.reason}')
        elif msg.epoch == actor.epoch and msg.state in (episode.RUNNING, episode.RECOVERING):
            actor.go()

    @answers
    def _begin(self, request: BeginEpisode.Request, response: BeginEpisode.Response) -> str:
        actor = self.actor
        if request.epoch <= actor.epoch:
            raise FlashrtError(f'epoch {request.epoch} must be above epoch {actor.epoch}')

        def job() -> None:
            with self._ticking:
                response.subgoals = self.instruct(request.instruction)
                waiting = 'waiting for the supervisor'
                actor.start(request.episode, request.epoch, request.seed, waiting)
                self.post_current()

        self.worker.call(job)
        return f'ready for episode {request.episode}: ' + ', then '.join(response.subgoals)

    @answers
    def _snapshot(self, request: Snapshot.Request, response: Snapshot.Response) -> str:
        def job() -> Any:
            with self._ticking:
                capsule = self.actor.snapshot(request.boundary)
            response.digest = capsule.digest
            return capsule

        capsule = self.worker.call(job)
        response.nbytes = capsule.nbytes
        self._capsules[response.digest] = capsule
        while len(self._capsules) > self.p.capsules:
            self._capsules.pop(next(iter(self._capsules)))
        return f'{request.boundary!r} frozen at tick {capsule.position}'

    @answers
    def _restore(self, request: Restore.Request, response: Restore.Response) -> str:
        capsule = self._capsules.get(request.capsule)
        if capsule is None:
            known = ', '.join(f'{c.boundary} ({d[:12]})' for d, c in self._capsules.items())
            raise FlashrtError(
                f'no capsule {request.capsule!r} of the brain; there is: {known or "none"}'
            )

        def job() -> float:
            began = time.perf_counter()
            with self._ticking:
                self.actor.restore(
                    capsule,
                    request.epoch,
                    request.keep_queue,
                    request.episode,
                    request.seed,
                    paused='waiting for the supervisor',
                )
                spent = (time.perf_counter() - began) * 1e3
                self.tell_current()
            return spent

        response.restore_ms = self.worker.call(job)
        return f'restored {capsule.boundary!r} of tick {capsule.position}'


def main() -> None:
    """Run the policy alone; its subgoals come over the Subgoal topic."""
    run(PolicyNode, threads=3)


if __name__ == '__main__':
    main()
