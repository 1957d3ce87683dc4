"""The supervisor: the episode's state machine as a node, and who raises the epoch. No torch.

What it offers are services and one action; what it hears decides when an episode is over, when a
subgoal is tried again, and when the robot has to hold because a peer is gone. What each of them
does stands in `operations`.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from lifecycle_msgs.srv import ChangeState
from std_srvs.srv import Trigger

from flashrt_interfaces.msg import ControlCommand, EpisodeState, LoopStats, RobotState, Subgoal
from flashrt_interfaces.srv import (
    Interrupt,
    ListCapsules,
    ResetEpisode,
    Resume,
    Rollback,
    Snapshot,
    StartEpisode,
)
from flashrt_ros.control import episode
from flashrt_ros.nodes import names, qos
from flashrt_ros.nodes.base import Managed, answers
from flashrt_ros.nodes.hearing import Hearing
from flashrt_ros.nodes.links import Links
from flashrt_ros.nodes.operations import Operations
from flashrt_ros.nodes.params import Param, declare
from flashrt_ros.nodes.publishers import GHOST_S, Rivals
from flashrt_ros.nodes.rollout_action import RolloutAction
from flashrt_ros.nodes.scheduling import PROCESS_PARAMS
from flashrt_ros.nodes.spin import run

PARAMS = (
    Param('simulator', True, 'the robot is a simulation: it can begin, snapshot and restore'),
    Param('planner_apart', False, 'the planner is a process of its own, not in the brain'),
    Param('seed', 0, 'seed of an episode whose request leaves it open', 0, 2**31 - 1),
    Param('retries', 1, 'times a failed subgoal is tried again from its boundary', 0, 100),
    Param('retry_resets_robot', False, 'a retry puts a simulated robot back, too'),
    Param('capsules', 32, 'capsules kept; as many as brain and simulator keep', 2, 10000),
    Param('answer_timeout_s', 5.0, 'longest wait for a peer to answer, in s', 0.1, 3600.0),
    Param('confirm_timeout_s', 1.0, 'longest wait for the robot to hold, in s', 0.05, 3600.0),
    Param('reentry_timeout_s', 3.0, 'longest wait for the first action, in s', 0.1, 3600.0),
    Param('peer_timeout_s', 1.0, 'silence after which a peer counts as dead, in s', 0.1, 3600.0),
    Param('watch_hz', 4.0, 'how often the peers are looked after, in Hz', 1.0, 100.0),
    Param('episode_max_ticks', 1200, 'control ticks after which an episode has failed', 1, 10**7),
    *PROCESS_PARAMS,
)


class SupervisorNode(Managed):
    """Starts, interrupts, resumes and resets episodes; holds the robot when a peer dies.

    What it does asks its peers and waits for them, so all of it goes aside.
    """

    aside_threads = 8

    def __init__(self, name: str = 'supervisor', **options: Any) -> None:
        super().__init__(name, **options)
        self.p = declare(self, PARAMS)
        self.hearing = Hearing(self.p.peer_timeout_s)
        self.links = Links(
            self,
            self.p.simulator,
            self.p.planner_apart,
            self.p.answer_timeout_s,
            self.p.capsules,
        )
        self.operations = Operations(
            self.p,
            self.links,
            self.hearing,
            self._publish,
            self.log,
            lambda: self.get_clock().now().nanoseconds,
            self.aside.do,
        )
        self._rivals = Rivals(self, names.GATED, GHOST_S)
        self._announce = self.create_publisher(EpisodeState, names.EPISODE, qos.ALIVE)
        self.rollout = RolloutAction(self, self.operations, self.hearing)
        self._looking: Future | None = None
        for service in self.services:  # a deactivation closes the gate, and waits for its word
            if service.srv_type is ChangeState:
                self.aside.serve(service)

    def configure(self) -> None:
        """Listen to the peers and offer the services."""
        for kind, topic, heard, profile in (
            (RobotState, names.ROBOT_STATE, self._on_state, qos.STATE),
            (ControlCommand, names.GATED, self.hearing.gate, qos.STATE),
            (Subgoal, names.SUBGOAL, self._on_subgoal, qos.TELEMETRY),
        ):
            self.listen(kind, topic, heard, profile)
        # Of the brain's commands it counts that they come, so none is taken apart.
        self.listen(ControlCommand, names.COMMAND, self.hearing.brain, qos.STATE, raw=True)
        for kind, service, answer in (
            (StartEpisode, names.START, self._start),
            (Interrupt, names.INTERRUPT, self._interrupt),
            (Resume, names.RESUME, self._resume),
            (Rollback, names.ROLLBACK, self._rollback),
            (ResetEpisode, names.RESET, self._reset),
            (Snapshot, names.SNAPSHOT, self._snapshot),
            (ListCapsules, names.LIST, self._list),
            (Trigger, names.PLAIN_RESET, self._plain_reset),
            (Trigger, names.PLAIN_INTERRUPT, self._plain_interrupt),
        ):
            self.offer(kind, service, answer, aside=True)
        self.every(1.0 / self.p.watch_hz, self._look)

    def activate(self) -> None:
        """Say where the episode stands."""
        self._publish()

    def deactivate(self) -> None:
        """Leave no robot moving that nobody looks after."""
        if self.operations.machine.state not in (episode.IDLE, episode.FAULT):
            self.operations.fail('the supervisor is being deactivated')

    def stamp(self) -> tuple[int, int]:
        """Return the episode and the epoch in force."""
        return self.operations.machine.episode, self.operations.machine.epoch

    def figures(self, msg: LoopStats) -> str:
        """Tell what capsules are kept; a fault is what is wrong."""
        machine, kept = self.operations.machine, self.links.shelf.all()
        msg.missed_ticks = self.hearing.missed
        msg.capsules, msg.capsule_bytes = len(kept), sum(b.nbytes for b in kept)
        return f'fault: {machine.reason}' if machine.state == episode.FAULT else ''

    # -- what is heard ----------------------------------------------------------------------

    def _on_state(self, msg: RobotState) -> None:
        machine = self.operations.machine
        if machine.state == episode.IDLE:  # a restarted supervisor goes on above what was
            machine.adopt(msg.episode, msg.epoch)
        self.hearing.robot(msg)

    def _on_subgoal(self, msg: Subgoal) -> None:
        if not self.active or msg.epoch != self.operations.machine.epoch:
            return
        it = self.operations
        self.rollout.heard(msg)
        if msg.status == Subgoal.STATUS_DONE and msg.index + 1 == msg.total:
            why = 'every subgoal is reached'
            self.aside.do(lambda: it.finish(msg.epoch, EpisodeState.OUTCOME_DONE, why))
        elif msg.status == Subgoal.STATUS_FAILED:
            self.aside.do(lambda: it.subgoal_failed(msg.epoch, msg.index, msg.text))
        elif msg.status == Subgoal.STATUS_POSTED and msg.tick >= 0:
            self.aside.do(lambda: it.subgoal_changed(msg.epoch, msg.index, msg.text))

    def _look(self) -> None:
        """Hold the robot when a peer has fallen silent, end an episode that takes too long."""
        self._announce.assert_liveliness()
        machine = self.operations.machine
        watched = (episode.RUNNING, episode.RECOVERING, episode.INTERRUPTED)
        if not self.active or machine.state not in watched:
            return
        if self._looking is not None and not self._looking.done():
            return  # what was seen before is being dealt with
        wrong = self.hearing.silent() or self._rivals.look()
        if wrong:
            self._looking = self.aside.do(lambda: self.operations.fail(wrong))
        elif machine.state == episode.RUNNING and self.hearing.tick >= self.p.episode_max_ticks:
            epoch, why = machine.epoch, f'not done after {self.hearing.tick} ticks'
            failed = EpisodeState.OUTCOME_FAILED
            self._looking = self.aside.do(lambda: self.operations.finish(epoch, failed, why))

    # -- what is asked ----------------------------------------------------------------------

    @answers
    def _start(self, request: StartEpisode.Request, response: StartEpisode.Response) -> str:
        said = self.operations.start(request.instruction, int(request.seed))
        response.episode, response.epoch = self.stamp()
        return said

    @answers
    def _interrupt(self, request: Interrupt.Request, response: Interrupt.Response) -> str:
        said, response.ack_ticks = self.operations.interrupt(request.reason)
        response.epoch = self.stamp()[1]
        return said

    @answers
    def _resume(self, request: Resume.Request, response: Resume.Response) -> str:
        said, response.reentry_ms = self.operations.resume(request.capsule)
        response.epoch = self.stamp()[1]
        return said

    @answers
    def _rollback(self, request: Rollback.Request, response: Rollback.Response) -> str:
        back = self.operations.rollback(int(request.boundaries))
        said, response.boundary, response.reentry_ms = back
        response.epoch = self.stamp()[1]
        return said

    @answers
    def _reset(self, request: ResetEpisode.Request, response: ResetEpisode.Response) -> str:
        said, response.reset_ms = self.operations.reset(request.capsule, request.seed)
        response.episode, response.epoch = self.stamp()
        return said

    @answers
    def _snapshot(self, request: Snapshot.Request, response: Snapshot.Response) -> str:
        made = self.operations.snapshot(request.boundary)
        response.digest, response.nbytes = made.brain, made.nbytes
        return f'{made.name!r} frozen at tick {made.tick}'

    @answers
    def _list(self, request: ListCapsules.Request, response: ListCapsules.Response) -> str:
        response.capsules = self.links.list(request.prefix)
        return f'{len(response.capsules)} capsules'

    @answers
    def _plain_reset(self, request: Trigger.Request, response: Trigger.Response) -> str:
        return self.operations.reset('', -1)[0]

    @answers
    def _plain_interrupt(self, request: Trigger.Request, response: Trigger.Response) -> str:
        return self.operations.interrupt('')[0]

    def _publish(self) -> None:
        it, msg = self.operations, EpisodeState()
        msg.header.stamp = self.get_clock().now().to_msg()
        msg.episode, msg.epoch, msg.state = it.machine.episode, it.machine.epoch, it.machine.state
        msg.instruction, msg.subgoal = it.instruction, it.subgoal
        msg.reason, msg.outcome = it.machine.reason, it.outcome
        self._announce.publish(msg)
        self.rollout.changed()


def main() -> None:
    """Run the supervisor."""
    run(SupervisorNode)


if __name__ == '__main__':
    main()
