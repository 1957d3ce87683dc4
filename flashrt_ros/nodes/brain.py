"""The brain: policy and planner in one process, sharing the device's subgoal buffer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flashrt_interfaces.msg import RobotState, Subgoal
from flashrt_ros.control.planner import Planner, ScriptedPlanner
from flashrt_ros.control.planner_clock import PlannerClock
from flashrt_ros.nodes import names, qos
from flashrt_ros.nodes import policy_node as policy
from flashrt_ros.nodes.params import Param
from flashrt_ros.nodes.planning import PLANNER_PARAMS, Announcer, Stamp
from flashrt_ros.nodes.spin import run

PARAMS = (*policy.PARAMS, *PLANNER_PARAMS)


class Brain(policy.PolicyNode):
    """A policy node with a planner of its own: the subgoal never leaves the device's buffer."""

    hosts_planner = True
    planner: Planner

    def __init__(self, name: str = 'brain', **options: Any) -> None:
        super().__init__(name, **options)
        out = self.create_publisher(Subgoal, names.SUBGOAL, qos.TELEMETRY)
        self._announcer = Announcer(self, out, lambda text, tick: self.actor.post(text, tick))

    def parameters(self) -> Sequence[Param]:
        """Return the parameters of policy and planner."""
        return PARAMS

    def hosts(self, skills: Sequence[str]) -> dict[str, Any]:
        """Make the planner for what the policy can do; its state belongs to the capsules."""
        self.planner = ScriptedPlanner(skills, self.p.done_ticks, self.p.subgoal_max_ticks)
        self.clock = PlannerClock()
        return {'planner': self.planner, 'planner/clock': self.clock}

    @property
    def _now(self) -> Stamp:
        return self.actor.episode, self.actor.epoch

    def instruct(self, instruction: str) -> list[str]:
        """Take an instruction and return its plan; an error changes nothing."""
        plan = list(self.planner.start(instruction))
        self.clock.start()
        return plan

    def post_current(self) -> None:
        """Post the plan's first subgoal, before the first tick."""
        self.actor.post(self.planner.plan[0])
        self._announcer.tell(self._now, self.planner, 0)

    def tell_current(self) -> None:
        """Say which subgoal is current, after a restore."""
        self._announcer.tell(self._now, self.planner, self.planner.index)

    def decide(self, msg: RobotState) -> None:
        """Go on to the next subgoal when the robot's state says that the current is reached."""
        self._announcer.decide(self._now, self.planner, msg, self.clock.at(msg.tick))


def main() -> None:
    """Run the brain."""
    run(Brain, threads=3)


if __name__ == '__main__':
    main()
