"""The supervisor: the episode's state machine, and the one who raises the epoch. No torch.

Every stop is the same path: raise the epoch, close the gate (which holds at once), wait until the
robot reports the new epoch as applied. Every start is the same path: restore or begin at a new
epoch, then open the gate.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rclpy.callback_groups import MutuallyExclusiveCallbackGroup, ReentrantCallbackGroup
from std_srvs.srv import Trigger

from flashrt_interfaces.msg import ControlCommand, EpisodeState, RobotState, Subgoal
from flashrt_interfaces.srv import Interrupt, ResetEpisode, Resume, StartEpisode
from flashrt_ros.control import episode
from flashrt_ros.control.episode import EpisodeMachine, TransitionError
from flashrt_ros.control.watchdog import AgeWatch
from flashrt_ros.errors import FlashrtError
from flashrt_ros.nodes import names, qos
from flashrt_ros.nodes.base import Managed, answers
from flashrt_ros.nodes.convert import key
from flashrt_ros.nodes.links import Links
from flashrt_ros.nodes.params import Param, declare
from flashrt_ros.nodes.peers import Await, PeerSilent
from flashrt_ros.nodes.spin import run

PARAMS = (
    Param('simulator', True, 'the robot is a simulation: it can begin, snapshot and restore'),
    Param('seed', 0, 'seed of an episode whose request leaves it open', 0, 2**31 - 1),
    Param('answer_timeout_s', 5.0, 'longest wait for a peer to answer, in seconds', 0.1, 60.0),
    Param('confirm_timeout_s', 1.0, 'longest wait for the robot to hold, in seconds', 0.05, 10.0),
    Param('reentry_timeout_s', 3.0, 'longest wait for the first action, in seconds', 0.1, 60.0),
    Param('peer_timeout_s', 1.0, 'silence after which a peer counts as dead, in s', 0.1, 60.0),
    Param('watch_hz', 4.0, 'how often the peers are looked after, in Hz', 0.1, 100.0),
    Param('episode_max_ticks', 1200, 'control ticks after which an episode has failed', 1, 10**7),
)
START = 'episode-start'
INTERRUPTED = 'interrupt'


class SupervisorNode(Managed):
    """Starts, interrupts, resumes and resets episodes; holds the robot when a peer dies."""

    def __init__(self, name: str = 'supervisor', **options: Any) -> None:
        super().__init__(name, **options)
        self.p = declare(self, PARAMS)
        self.machine = EpisodeMachine()
        self._operation = threading.Lock()  # one operation at a time
        self._wait = Await()
        self._instruction = self._subgoal = self._outcome = ''
        self._tick = -1
        self._applied = (0, -1)  # epoch and tick of what the robot applied last
        self._recent: deque[tuple[int, int, int]] = deque(maxlen=100)  # stamp, tick, applied epoch
        self._moving = -1  # newest epoch in which the gate let an action through
        self.links = Links(self, self.p.simulator, self.p.answer_timeout_s)
        self._ages = {peer: AgeWatch(self.p.peer_timeout_s) for peer in ('brain', 'gate', 'robot')}
        self._announce = self.create_publisher(EpisodeState, names.EPISODE, qos.LATCHED)

    def configure(self) -> None:
        """Listen to the peers and offer the services."""
        topics, services = MutuallyExclusiveCallbackGroup(), ReentrantCallbackGroup()
        for kind, topic, heard, profile in (
            (RobotState, names.ROBOT_STATE, self._on_state, qos.STATE),
            (ControlCommand, names.COMMAND, self._on_command, qos.STATE),
            (ControlCommand, names.GATED, self._on_gated, qos.STATE),
        ):
            self.create_subscription(kind, topic, heard, profile, callback_group=topics)
        self.create_subscription(
            Subgoal, names.SUBGOAL, self._on_subgoal, qos.TELEMETRY, callback_group=services
        )
        for kind, service, answer in (
            (StartEpisode, names.START, self._start),
            (Interrupt, names.INTERRUPT, self._interrupt),
            (Resume, names.RESUME, self._resume),
            (ResetEpisode, names.RESET, self._reset),
            (Trigger, names.PLAIN_RESET, self._plain_reset),
            (Trigger, names.PLAIN_INTERRUPT, self._plain_interrupt),
        ):
            self.create_service(kind, service, answer, callback_group=services)
        self._timer = self.create_timer(1.0 / self.p.watch_hz, self._look, callback_group=services)

    def activate(self) -> None:
        """Say where the episode stands."""
        self._publish()

    def cleanup(self) -> None:
        """Look after nobody any more."""
        self.destroy_timer(self._timer)

    # -- what is heard ----------------------------------------------------------------------

    def _on_state(self, msg: RobotState) -> None:
        self._ages['robot'].feed()
        self._tick = msg.tick
        self._applied = (msg.applied_epoch, msg.applied_tick)
        self._recent.append((key(msg.header.stamp), msg.tick, msg.applied_epoch))
        if self.machine.state == episode.IDLE:  # a restarted supervisor goes on above what was
            self.machine.adopt(msg.episode, msg.epoch)
        self._wait.notify()

    def _on_command(self, msg: ControlCommand) -> None:
        self._ages['brain'].feed()

    def _on_gated(self, msg: ControlCommand) -> None:
        self._ages['gate'].feed()
        if not msg.held:
            self._moving = max(self._moving, msg.epoch)
            self._wait.notify()

    def _on_subgoal(self, msg: Subgoal) -> None:
        if not self.active or msg.epoch != self.machine.epoch:
            return
        self._subgoal = msg.text
        last = msg.index + 1 == msg.total
        if msg.status == Subgoal.STATUS_DONE and last:
            self._finish(msg.epoch, EpisodeState.OUTCOME_DONE, 'every subgoal is reached')
        elif msg.status == Subgoal.STATUS_FAILED:
            text = f'"{msg.text}" was not reached in time'
            self._finish(msg.epoch, EpisodeState.OUTCOME_FAILED, text)
        else:
            self._publish()

    def _look(self) -> None:
        """Hold the robot when a peer has fallen silent, end an episode that takes too long."""
        machine = self.machine
        watched = (episode.RUNNING, episode.RECOVERING, episode.INTERRUPTED)
        if not self.active or machine.state not in watched:
            return
        silent = [peer for peer, watch in self._ages.items() if watch.expired]
        if silent and self._operation.acquire(blocking=False):
            try:
                self._fail(f'{silent[0]} has been silent for {self._ages[silent[0]].age:.1f} s')
            finally:
                self._operation.release()
            return
        if machine.state == episode.RUNNING and self._tick >= self.p.episode_max_ticks:
            text = f'not done after {self._tick} ticks'
            self._finish(machine.epoch, EpisodeState.OUTCOME_FAILED, text)

    # -- operations -------------------------------------------------------------------------

    @answers
    def _start(self, request: StartEpisode.Request, response: StartEpisode.Response) -> str:
        with self._operation:
            self._require('start')
            seed = int(request.seed if request.seed >= 0 else self.p.seed)
            stamp = self._next('start')
            plan = self.links.begin_brain(stamp, request.instruction, seed)  # refuses, or begins
            self._instruction, self._outcome = request.instruction, ''
            self._subgoal = plan[0] if plan else ''
            self._apply('start', f'start: {request.instruction}')
            with self._or_fault():
                self._gate(running=False, reason='starting')
                self.links.begin_robot(stamp, seed)
                self.links.freeze(START)
                self._gate(running=True)
            self._apply('ready', 'started')
            response.episode, response.epoch = self.machine.episode, self.machine.epoch
            return f'episode {response.episode} runs: ' + ', then '.join(plan)

    @answers
    def _interrupt(self, request: Interrupt.Request, response: Interrupt.Response) -> str:
        self._operation.acquire()
        try:
            self._require('interrupt')
            response.ack_ticks = self._halt(request.reason or 'interrupted')
            response.epoch = self.machine.epoch
        except BaseException:
            self._operation.release()
            raise
        # The robot holds, and that is the answer. Freezing waits for an inference that is under
        # way, so it goes on behind the answer; the operation lasts until it is done.
        self.executor.create_task(self._freeze)
        return f'interrupted at tick {self._applied[1]}; the robot holds'

    def _freeze(self) -> None:
        """End an interrupt: freeze the state that `Resume` continues from."""
        try:
            with self._or_fault():
                digest = self.links.freeze(INTERRUPTED)
            self.get_logger().info(f'frozen as {digest[:16]}')
        except FlashrtError:
            pass  # said, and gone to fault
        finally:
            self._operation.release()

    @answers
    def _resume(self, request: Resume.Request, response: Resume.Response) -> str:
        began = time.perf_counter()
        with self._operation:
            self._require('resume')
            capsule = self.links.find(request.capsule or INTERRUPTED)
            self.links.restore_brain(capsule, self._next('resume'), -1)  # refuses, or restores
            self._apply('resume', 'warm re-entry')
            with self._or_fault():
                self.links.tell_robot(self._stamp)
                self._gate(running=True)
            epoch = self.machine.epoch
        moving = self._wait.until(
            lambda: self._moving >= epoch or self.machine.epoch != epoch, self.p.reentry_timeout_s
        )
        response.reentry_ms = (time.perf_counter() - began) * 1e3
        with self._operation:
            if self.machine.epoch != epoch:
                raise FlashrtError(f'the re-entry was cut short: {self.machine.reason}')
            if not moving:
                self._fail(f'no action within {self.p.reentry_timeout_s:.1f} s of the re-entry')
                raise FlashrtError(self.machine.reason)
            self._apply('moving', 're-entered')
            response.epoch = epoch
            return f'goes on in epoch {epoch}'

    @answers
    def _reset(self, request: ResetEpisode.Request, response: ResetEpisode.Response) -> str:
        began = time.perf_counter()
        with self._operation:
            self._require('reset')
            capsule = self.links.find(request.capsule or START)
            if self.machine.state in (episode.RUNNING, episode.RECOVERING):
                self._halt('reset')
            stamp = self._next('reset')
            self.links.restore_brain(capsule, stamp, request.seed)
            self._outcome = ''
            self._apply('reset', 'reset')
            with self._or_fault():
                self._gate(running=False, reason='resetting')
                self.links.restore_robot(capsule, stamp, request.seed)
                response.reset_ms = (time.perf_counter() - began) * 1e3
                self._gate(running=True)
            self._apply('ready', 'reset')
            response.episode, response.epoch = self.machine.episode, self.machine.epoch
            return f'episode {response.episode} runs from {request.capsule or START!r}'

    @answers
    def _plain_reset(self, request: Trigger.Request, response: Trigger.Response) -> str:
        answer = self._reset(ResetEpisode.Request(seed=-1), ResetEpisode.Response())
        return self._passed_on(answer)

    @answers
    def _plain_interrupt(self, request: Trigger.Request, response: Trigger.Response) -> str:
        return self._passed_on(self._interrupt(Interrupt.Request(), Interrupt.Response()))

    def _passed_on(self, answer: Any) -> str:
        if not answer.success:
            raise FlashrtError(answer.message)
        return str(answer.message)

    def _halt(self, reason: str) -> int:
        """Stop in mid-motion; return the ticks still carried out after this was called."""
        asked = self.get_clock().now().nanoseconds
        self._apply('interrupt', reason, publish=False)
        epoch = self.machine.epoch
        with self._or_fault():
            self._gate(running=False, reason=reason)
            confirmed = self._wait.until(
                lambda: self._applied[0] >= epoch, self.p.confirm_timeout_s
            )
            if not confirmed:
                raise PeerSilent(
                    f'the robot did not apply the hold of epoch {epoch} within '
                    f'{self.p.confirm_timeout_s:.1f} s'
                )
        self._publish()
        return len({tick for at, tick, old in list(self._recent) if at > asked and old < epoch})

    def _finish(self, epoch: int, outcome: str, reason: str) -> None:
        with self._operation:
            if self.machine.epoch != epoch or not self.machine.may('finish'):
                return
            self._outcome = outcome
            self._apply('finish', reason, publish=False)
            with self._or_fault():
                self._gate(running=False, reason=f'{outcome}: {reason}')
            self._publish()

    def _fail(self, reason: str) -> None:
        """Go to fault: close the gate if it still answers, and say why."""
        self.get_logger().error(f'fault: {reason}')
        self._apply('fail', reason)
        try:
            self._gate(running=False, reason=f'fault: {reason}', timeout=1.0)
        except FlashrtError as error:
            self.get_logger().error(f'and the gate does not answer: {error}')

    # -- small steps ------------------------------------------------------------------------

    def _require(self, event: str) -> None:
        refusal = self.machine.refuse(event)
        if refusal:
            raise TransitionError(refusal)

    @property
    def _stamp(self) -> dict[str, int]:
        return {'episode': self.machine.episode, 'epoch': self.machine.epoch}

    def _next(self, event: str) -> dict[str, int]:
        """Return episode and epoch as they will be after ``event``."""
        new = event in episode.NEW_EPISODE
        return {'episode': self.machine.episode + new, 'epoch': self.machine.epoch + 1}

    def _apply(self, event: str, reason: str, publish: bool = True) -> None:
        step = self.machine.apply(event, reason)
        where = f'episode {self.machine.episode} epoch {self.machine.epoch}'
        self.get_logger().info(f'{where}: {step.before} -> {step.after}: {reason}')
        if publish:
            self._publish()

    def _publish(self) -> None:
        machine, msg = self.machine, EpisodeState()
        msg.header.stamp = self.get_clock().now().to_msg()
        msg.episode, msg.epoch, msg.state = machine.episode, machine.epoch, machine.state
        msg.instruction, msg.subgoal = self._instruction, self._subgoal
        msg.reason, msg.outcome = machine.reason, self._outcome
        self._announce.publish(msg)

    def _gate(self, running: bool, reason: str = '', timeout: float | None = None) -> None:
        self.links.gate(self._stamp, running, reason, timeout)

    @contextmanager
    def _or_fault(self) -> Iterator[None]:
        """Within the block, a peer that fails leads to fault; the error goes on to the caller."""
        try:
            yield
        except FlashrtError as error:
            self._fail(str(error))
            raise


def main() -> None:
    """Run the supervisor."""
    run(SupervisorNode, threads=6)


if __name__ == '__main__':
    main()
