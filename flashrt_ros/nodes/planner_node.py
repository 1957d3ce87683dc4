"""The planner in a process of its own: the subgoal reaches the policy over the Subgoal topic.

Inside the brain it goes through the device's buffer instead; the decisions are the same, and so is
what the supervisor asks: begin an episode, freeze the planner, put it back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flashrt_interfaces.msg import EpisodeState, RobotState, Subgoal
from flashrt_interfaces.srv import BeginEpisode, Restore, Snapshot
from flashrt_ros.control import episode
from flashrt_ros.control.planner import Planner
from flashrt_ros.control.planner_clock import PlannerClock
from flashrt_ros.control.shelf import Shelf
from flashrt_ros.nodes import names, qos
from flashrt_ros.nodes.base import Managed, answers
from flashrt_ros.nodes.desk import Desk
from flashrt_ros.nodes.judging import asks
from flashrt_ros.nodes.params import Param, declare
from flashrt_ros.nodes.planning import PLANNER_PARAMS, Announcer, due, planner_of
from flashrt_ros.nodes.scheduling import PROCESS_PARAMS
from flashrt_ros.nodes.spin import run

PARAMS = (
    *PLANNER_PARAMS,
    Param('policy', 'drawer', 'whose skills are planned with: shipped name, or a folder'),
    Param('torch_threads', 1, 'threads torch may use on the CPU', 1, 256),
    Param(
        'valid_ticks', 40, 'ticks a subgoal counts unless it is renewed; 0 = for ever', 0, 10**6
    ),
    Param('capsules', 32, 'snapshots kept; the oldest goes first', 2, 10000),
    Param('lockstep', False, 'have a say on every tick: the policy waits for it'),
    *PROCESS_PARAMS,
)


class PlannerNode(Managed):
    """Posts one subgoal after the other while an episode runs."""

    def __init__(self, name: str = 'planner', **options: Any) -> None:
        super().__init__(name, **options)
        self.p = declare(self, PARAMS)
        self._stamp = (0, 0)  # episode and epoch
        self._going = False
        self._told = True  # the policy has heard of the current subgoal
        self._count = 0
        self.clock = PlannerClock()
        out = self.create_publisher(Subgoal, names.SUBGOAL, qos.TELEMETRY)
        self._announcer = Announcer(
            self, out, valid_ticks=self.p.valid_ticks, lockstep=self.p.lockstep
        )
        self._judged = (0, 0, -1)  # in lockstep: episode, epoch and tick that were decided on

    def skills(self) -> Sequence[str]:
        """Return the subgoals that are understood."""
        if any(self.p.skills):
            return self.p.skills
        from flashrt_policies import registry

        return registry.spec(self.p.policy).skills

    def stamp(self) -> tuple[int, int]:
        """Return the episode and epoch that are planned for."""
        return self._stamp

    def configure(self) -> None:
        """Make the planner and listen."""
        import torch

        torch.set_num_threads(self.p.torch_threads)
        self.planner: Planner = planner_of(self.p, self.skills())
        self._shelf: Shelf[tuple[dict, dict]] = Shelf('the planner', self.p.capsules)
        self.listen(EpisodeState, names.EPISODE, self._on_episode, qos.LATCHED)
        self.listen(RobotState, names.ROBOT_STATE, self._on_state, qos.STATE)
        Desk(self, lambda: self.planner, lambda job: job())
        self._announcer.listen()
        self.offer(BeginEpisode, names.PLANNER_BEGIN, self._begin)
        self.offer(Snapshot, names.PLANNER_SNAPSHOT, self._snapshot)
        self.offer(Restore, names.PLANNER_RESTORE, self._restore)

    def _on_episode(self, msg: EpisodeState) -> None:
        if not self.active or msg.episode != self._stamp[0]:
            return
        self._going = msg.state in (episode.RUNNING, episode.RECOVERING)
        self._stamp = (msg.episode, msg.epoch)
        if self._going and not self._told:
            self._told = True
            self._announcer.tell(self._stamp, self.planner, self.planner.index)

    def _on_state(self, msg: RobotState) -> None:
        if not self.active or not self._going or (msg.episode, msg.epoch) != self._stamp:
            return
        now = self.clock.at(msg.tick)
        again = self.p.lockstep and self._judged == (*self._stamp, msg.tick)
        self._judged = (*self._stamp, msg.tick)
        if not again and (not asks(self.planner) or due(self.p, msg.tick)):
            self._announcer.decide(self._stamp, self.planner, msg, now)
        elif self.p.lockstep:
            self._announcer.renew(self._stamp, self.planner, msg.tick)

    @answers
    def _begin(self, request: BeginEpisode.Request, response: BeginEpisode.Response) -> str:
        response.subgoals = list(self.planner.start(request.instruction))
        self.clock.start()
        self._stamp, self._going = (request.episode, request.epoch), False
        self._told = False
        return ', then '.join(response.subgoals)

    @answers
    def _snapshot(self, request: Snapshot.Request, response: Snapshot.Response) -> str:
        self._count += 1
        response.digest = f'planner-{self._count}'
        frozen = (self.planner.state(), self.clock.state())
        self._shelf.put(response.digest, request.boundary, frozen)
        return f'{request.boundary!r} frozen'

    @answers
    def _restore(self, request: Restore.Request, response: Restore.Response) -> str:
        planner, clock = self._shelf.find(request.capsule)
        self.planner.set_state(planner)
        self.clock.set_state(clock)
        self._stamp, self._going = (request.episode, request.epoch), False
        self._told = False
        return f'at subgoal {self.planner.index + 1} of {len(self.planner.plan)}'


def main() -> None:
    """Run the planner."""
    run(PlannerNode)


if __name__ == '__main__':
    main()
