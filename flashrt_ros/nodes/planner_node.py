"""The planner in a process of its own: the subgoal reaches the policy over the Subgoal topic.

Inside the brain it goes through the device's buffer instead; the decisions are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flashrt_interfaces.msg import EpisodeState, RobotState, Subgoal
from flashrt_ros.control import episode
from flashrt_ros.control.planner import Planner, PlannerError, ScriptedPlanner
from flashrt_ros.nodes import names, qos
from flashrt_ros.nodes.base import Managed
from flashrt_ros.nodes.params import Param, declare
from flashrt_ros.nodes.planning import PLANNER_PARAMS, Announcer
from flashrt_ros.nodes.spin import run

PARAMS = (
    *PLANNER_PARAMS,
    Param('policy', 'drawer', 'whose skills are planned with: shipped name, or a folder'),
    Param('skills', [''], 'subgoals that are understood, in place of those of the policy'),
)


class PlannerNode(Managed):
    """Posts one subgoal after the other while an episode runs."""

    def __init__(self, name: str = 'planner', **options: Any) -> None:
        super().__init__(name, **options)
        self.p = declare(self, PARAMS)
        self._stamp = (0, 0)  # episode and epoch
        self._going = False
        out = self.create_publisher(Subgoal, names.SUBGOAL, qos.TELEMETRY)
        self._announcer = Announcer(self, out)

    def skills(self) -> Sequence[str]:
        """Return the subgoals that are understood."""
        given = [skill for skill in self.p.skills if skill]
        if given:
            return given
        from flashrt_policies import registry

        return registry.spec(self.p.policy).skills

    def configure(self) -> None:
        """Make the planner and listen."""
        self.planner: Planner = ScriptedPlanner(
            self.skills(), self.p.done_ticks, self.p.subgoal_max_ticks
        )
        self.create_subscription(EpisodeState, names.EPISODE, self._on_episode, qos.LATCHED)
        self.create_subscription(RobotState, names.ROBOT_STATE, self._on_state, qos.STATE)

    def _on_episode(self, msg: EpisodeState) -> None:
        if not self.active:
            return
        new = msg.episode != self._stamp[0]
        self._going = msg.state == episode.RUNNING
        if not self._going:
            return
        self._stamp = (msg.episode, msg.epoch)
        if not new:
            return
        try:
            self.planner.start(msg.instruction)
        except PlannerError as error:
            self._going = False
            self.get_logger().error(str(error))
            self._announcer.refuse(self._stamp, msg.instruction)
            return
        self._announcer.tell(self._stamp, self.planner, 0, Subgoal.STATUS_POSTED, -1)

    def _on_state(self, msg: RobotState) -> None:
        if self.active and self._going and (msg.episode, msg.epoch) == self._stamp:
            self._announcer.decide(self._stamp, self.planner, msg)


def main() -> None:
    """Run the planner."""
    run(PlannerNode)


if __name__ == '__main__':
    main()
