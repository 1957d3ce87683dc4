"""The policy as a node: observations in, one command per control tick out.

Graphs are replayed on one dedicated thread, beside the control tick: the executor answers each
RobotState at once from the chunk queue, and hands an observation over when the actor wants one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from sensor_msgs.msg import Image, JointState

from flashrt_interfaces.msg import ActionChunk, EpisodeState, LoopStats, RobotState, Subgoal
from flashrt_ros.control import episode
from flashrt_ros.control.guards import GuardError, summary
from flashrt_ros.control.inbox import SubgoalInbox
from flashrt_ros.control.lease import HOLD, KEEP, SubgoalLease
from flashrt_ros.control.pairing import Moment
from flashrt_ros.control.stats import Window
from flashrt_ros.control.types import DELAY, EXECUTE, Command, HoldRule
from flashrt_ros.nodes import names, qos
from flashrt_ros.nodes.brain_services import BrainServices
from flashrt_ros.nodes.convert import CROP, EXACT, PAD, chunk_to_msg, key
from flashrt_ros.nodes.intake import Intake
from flashrt_ros.nodes.output import Output, output_params
from flashrt_ros.nodes.params import Param, ParameterError, declare, pairs
from flashrt_ros.nodes.scheduling import PROCESS_PARAMS
from flashrt_ros.nodes.spin import run
from flashrt_ros.nodes.telemetry import tell_counts
from flashrt_ros.nodes.turn import Turn
from flashrt_ros.nodes.worker import Worker

PARAMS = (
    Param('policy', 'drawer', 'name of shipped weights, or a checkpoint folder'),
    Param('device', 'cpu', 'where the policy runs: cpu, cuda or cuda:N'),
    Param('float8', False, "store a lerobot policy's expert in one byte a number"),
    Param('torch_threads', 1, 'threads torch may use on the CPU', 1, 256),
    Param('execute', EXECUTE, 'control ticks from one request for a chunk to the next', 1, 1000),
    Param(
        'delay', DELAY, 'control ticks from an observation to the first use of its chunk', 0, 1000
    ),
    Param('subgoal_delay', 1, 'control ticks before a posted subgoal may become live', 0, 1000),
    Param('subgoal_ticks', 0, 'ticks a subgoal counts without word from the planner', 0, 10**6),
    Param('subgoal_expired', HOLD, 'what then: hold, keep, or a subgoal in words to post'),
    Param('hold_keep', [3], 'entries that keep their last value in a hold; the others become 0'),
    Param('max_age_s', 0.5, 'oldest observation that is used, in seconds', 0.001, 60.0),
    Param('slop_s', 0.0, 'how far an image may be from its state, in s; 0 = same stamp', 0.0, 1.0),
    Param('action_slack', 0.5, 'overshoot that is clipped, as a part of the range', 0.0, 10.0),
    Param(
        'fit',
        EXACT,
        'an image of another size: refused, cut, or padded',
        choices=(EXACT, CROP, PAD),
    ),
    Param('camera_topics', [''], 'CAMERA=TOPIC, for cameras that are not on robot/images/CAMERA'),
    Param('joint_topic', '', 'JointState that is the proprioception; empty = the robot state'),
    Param('proprio_joints', [''], "joints whose positions it is, in the policy's order"),
    Param(
        'image_reliability',
        'best_effort',
        'of the image subscriptions',
        choices=('best_effort', 'reliable'),
    ),
    Param('flood_per_tick', 100, 'messages of a topic in one tick that are too many', 1, 10**6),
    Param('capsules', 32, 'snapshots kept; the oldest goes first', 2, 10000),
    Param('lockstep', False, 'a tick is answered when all of it is there and has been inferred'),
    *output_params('chunk'),
    *PROCESS_PARAMS,
)
HOLDING = {episode.INTERRUPTED, episode.IDLE, episode.FAULT}


class PolicyNode(BrainServices):
    """A policy between `robot/*` and `brain/command`.

    By itself it takes subgoals from the Subgoal topic; `Brain` has a planner inside.
    """

    hosts_planner = False

    def __init__(self, name: str = 'policy', **options: Any) -> None:
        super().__init__(name, **options)
        self.p = declare(self, self.parameters())
        self.worker = Worker('replay')
        self.ticking = threading.Lock()
        self.lease, self.inbox = SubgoalLease(self.p.subgoal_ticks), SubgoalInbox()
        self._inferring, self._ticks = False, 0
        self._latency = Window()  # ms
        self._output = Output(self, self.p, names.COMMAND)
        self._chunks = self.create_publisher(ActionChunk, names.CHUNK, qos.TELEMETRY)

    def parameters(self) -> Sequence[Param]:
        """Return the parameters of this node."""
        return PARAMS

    def load_policy(self, ctx: Any, port: Any) -> Any:
        """Return the policy on ``ctx``; tests put another here."""
        from flashrt_policies import registry

        return registry.load(self.p.policy, ctx, port, self.p.float8)

    def subgoal_length(self) -> int:
        """Return the tokens in a subgoal row of this policy; reads its config alone."""
        from flashrt_policies import registry

        return registry.spec(self.p.policy).subgoal_length

    def hosts(self, skills: Sequence[str], ctx: Any, mailbox: Any) -> dict[str, Any]:
        """Return host state that the capsules carry beside the actor's, by name."""
        return {}

    def decide(self, msg: RobotState) -> None:
        """Choose the subgoal at this tick."""

    # -- lifecycle --------------------------------------------------------------------------

    def configure(self) -> None:
        """Allocate, load, warm up, capture; then nothing is allocated any more."""
        began = time.perf_counter()
        self.worker.call(self._build)
        spec, p = self.actor.policy.spec, self.p
        self._output.check(spec.action_dim)
        joints = [name for name in p.proprio_joints if name] if p.joint_topic else []
        self.intake = Intake(
            self.actor.guards.observation, self.log, p.slop_s, joints, p.flood_per_tick, p.fit
        )
        self.turn = Turn(self, spec.cameras)
        if p.lockstep and (p.slop_s or p.joint_topic):
            raise ParameterError(
                'lockstep is for a simulated robot, whose images are stamped like its states: '
                "slop_s must be 0 and joint_topic ''"
            )
        self._listen(spec.cameras)
        self.offer_services(p.capsules)
        spent = time.perf_counter() - began
        self.log.info(f'policy {p.policy!r} on {p.device}: ready in {spent:.1f} s')

    def _listen(self, cameras: Sequence[str]) -> None:
        given = pairs(self, 'camera_topics', self.p.camera_topics, cameras)
        latest = qos.image_subscription(self.p.image_reliability)
        for camera in cameras:
            topic = given.get(camera, names.IMAGE.format(camera=camera))
            loud = qos.mismatch(topic, 'image_reliability', self.log)
            self.listen(Image, topic, self._image_of(camera, topic), latest, event_callbacks=loud)
        if self.p.joint_topic:
            any_sender = qos.image_subscription('best_effort')
            self.listen(JointState, self.p.joint_topic, self._on_joints, any_sender)
        self.listen(RobotState, names.ROBOT_STATE, self._on_state, qos.STATE)
        self.listen(EpisodeState, names.EPISODE, self._on_episode, qos.LATCHED)
        if not self.hosts_planner:
            self.listen(Subgoal, names.SUBGOAL, self._on_subgoal, qos.TELEMETRY)

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
            hosts=self.hosts(spec.skills, ctx, mailbox),
        )
        hw = self.actor.guards.observation.hw
        black = {name: np.zeros((*hw(name), 3), np.uint8) for name in spec.cameras}
        for _ in range(3):
            policy.observe(black, np.zeros(spec.proprio_dim, 'f'))
            policy.plan()
        policy.reset(0)
        ctx.freeze()

    def deactivate(self) -> None:
        """Say what was refused."""
        self.log.info(f'queue: {summary(self.actor.queue.counters)}')

    def close(self) -> None:
        """End the replay thread."""
        super().close()
        self.worker.close()

    def stamp(self) -> tuple[int, int]:
        """Return the brain's own episode and epoch."""
        return (self.actor.episode, self.actor.epoch) if self.ready else (0, 0)

    def figures(self, msg: LoopStats) -> str:
        """Tell what was inferred and what was refused."""
        kept = self.capsules
        msg.ticks, msg.inferences = self._ticks, self._latency.count
        msg.inference_p50_ms, msg.inference_p99_ms = self._latency.percentiles(50, 99)
        msg.queue_depth = self.actor.queue.depth
        msg.capsules, msg.capsule_bytes = len(kept), sum(c.nbytes for c in kept)
        queue = self.actor.queue.counters
        faults = {name: queue[name] for name in ('late', 'expired', 'old_epoch', 'out_of_order')}
        tell_counts(msg, {**self.intake.refusals.counts, **faults})
        return self.intake.refusals.reason

    # -- observations and ticks -------------------------------------------------------------

    def _on_state(self, msg: RobotState) -> None:
        actor = self.actor
        if not self.active or (msg.episode, msg.epoch) != (actor.episode, actor.epoch):
            return
        with self.ticking:
            moment = self.intake.state(msg)
            if self.p.lockstep and not actor.paused:
                self.turn.state(msg, moment)
                return
            if not actor.paused:
                self.decide(msg)
            command = self.act(msg.tick)
        if command is not None:
            self.send(command)
            self._maybe_infer(moment)

    def act(self, tick: int) -> Command | None:
        """Return the command for ``tick``; None where it lies before the one given last."""
        fault = self.intake.refusals.reason or self._expired(tick)
        try:
            command = self.actor.act(tick, fault)
        except ValueError as error:
            self.log.warning(str(error))
            return None
        self._ticks += 1
        return command

    def send(self, command: Command) -> None:
        """Publish ``command``."""
        self._output.send(command)

    def _expired(self, tick: int) -> str:
        """Return why the robot holds for want of a planner; do what was configured instead."""
        if not self.lease.expired(tick):
            return ''
        then = self.p.subgoal_expired
        if then == HOLD:
            return f'the subgoal has expired at tick {tick}: no word from the planner'
        self.lease.renew()
        self.log.warning(f'the subgoal has expired at tick {tick}: {then}')
        if then != KEEP:
            self.actor.post(then, tick)
        return ''

    def _image_of(self, camera: str, topic: str) -> Any:
        def on_image(msg: Image) -> None:
            if self.active:
                moment = self._take(lambda: self.intake.image(camera, topic, msg))
                if self.p.lockstep:
                    self.turn.image(camera, key(msg.header.stamp), moment)
                else:
                    self._maybe_infer(moment)

        return on_image

    def _on_joints(self, msg: JointState) -> None:
        if self.active:
            self._maybe_infer(self._take(lambda: self.intake.joints(self.p.joint_topic, msg)))

    def _take(self, part: Callable[[], Moment[RobotState] | None]) -> Moment[RobotState] | None:
        try:
            return part()
        except GuardError:
            self.actor.ask_again()  # said; the next good observation is the one that counts
            return None

    def _maybe_infer(self, moment: Moment[RobotState] | None) -> None:
        """Hand an observation over once its state and all images are there, if it is wanted."""
        if moment is None or not self.actor.wants(moment.state.tick):
            return
        if self._inferring:
            self.actor.ask_again()  # the inference before is not through: take the next one
            return
        self._inferring = True
        self.worker.submit(lambda: self.infer(moment))

    def infer(self, moment: Moment[RobotState]) -> None:
        """Turn an observation into a chunk, on the replay thread; say what is wrong with it."""
        try:
            # In lockstep the robot waits, so nothing grows old.
            now = moment.oldest if self.p.lockstep else self.get_clock().now().nanoseconds
            observation = self.intake.observation(moment, now)
            chunk = self.actor.infer(observation)
            self.intake.refusals.good('observation')
            self._latency.add(chunk.latency_ms)
            stamp = moment.state.header.stamp
            self._chunks.publish(chunk_to_msg(chunk, stamp, self.actor.capsule))
            if chunk.late:
                self.log.warning(
                    f'the chunk of tick {chunk.tick} came late: {chunk.latency_ms:.0f} ms'
                )
        except GuardError as error:
            if error.guard != 'epoch':  # one of before an interrupt is nobody's fault
                self.intake.refusals.refuse('observation', error)
        except Exception as error:
            self.log.error(f'inference failed: {type(error).__name__}: {error}')
        finally:
            self._inferring = False

    # -- supervisor and planner -------------------------------------------------------------

    def _on_subgoal(self, msg: Subgoal) -> None:
        if not self.active or (msg.episode, msg.epoch) != self.stamp():
            return
        if msg.status in (Subgoal.STATUS_POSTED, Subgoal.STATUS_LIVE):
            self.lease.renew(msg.valid_ticks)
            tick = msg.tick if msg.status == Subgoal.STATUS_POSTED else -1  # else it is told again
            mine, works = self.stamp(), self.actor.works_on(msg.text)
            if not self.inbox.refuse(mine, mine, msg.generation, tick, works):
                self.actor.post(msg.text, msg.tick)
        last = msg.index + 1 == msg.total  # after another one that is done, the next is posted
        if msg.tick >= 0 and (last or msg.status != Subgoal.STATUS_DONE):
            self.turn.word((msg.episode, msg.epoch, msg.tick))

    def _on_episode(self, msg: EpisodeState) -> None:
        actor = self.actor
        if not self.active or msg.epoch < actor.epoch:
            return
        if msg.state in HOLDING:
            actor.pause(msg.epoch, f'{msg.state}: {msg.reason}')
        elif msg.epoch == actor.epoch and msg.state in (episode.RUNNING, episode.RECOVERING):
            actor.go()


def main() -> None:
    """Run the policy alone; its subgoals come over the Subgoal topic."""
    run(PolicyNode)


if __name__ == '__main__':
    main()
