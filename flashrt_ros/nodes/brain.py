"""The brain: policy and planner in one process, sharing the device's subgoal buffer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flashrt_interfaces.msg import RobotState, Subgoal
from flashrt_ros.control.planner import DONE, FAILED, NEXT, Planner, ScriptedPlanner
from flashrt_ros.nodes import names, qos
from flashrt_ros.nodes.params import Param
from flashrt_ros.nodes.policy_node import PARAMS, PolicyNode
from flashrt_ros.nodes.spin import run

PLANNER_PARAMS = (
    Param('done_ticks', 1, 'ticks in a row a subgoal must be reached before it is over', 1, 1000),
    Param('subgoal_max_ticks', 400, 'ticks after which a subgoal has failed; 0 = never', 0, 10**6),
)


class Brain(PolicyNode):
    """A policy node with a planner of its own: the subgoal never leaves the device's buffer."""

    hosts_planner = True
    planner: Planner

    def __init__(self, name: str = 'brain', **options: Any) -> None:
        super().__init__(name, **options)
        self._subgoals = self.create_publisher(Subgoal, names.SUBGOAL, qos.TELEMETRY)

    def parameters(self) -> Sequence[Param]:
        """Return the parameters of policy and planner."""
        return (*PARAMS, *PLANNER_PARAMS)

    def hosts(self, skills: Sequence[str]) -> dict[str, Any]:
        """Make the planner for what the policy can do; its state belongs to the capsules."""
        self.planner = ScriptedPlanner(skills, self.p.done_ticks, self.p.subgoal_max_ticks)
        return {'planner': self.planner}

    def instruct(self, instruction: str) -> list[str]:
        """Take an instruction and return its plan; an error changes nothing."""
        return list(self.planner.start(instruction))

    def post_current(self) -> None:
        """Post the plan's first subgoal, before the first tick."""
        self.actor.post(self.planner.plan[0])
        self._tell(0, Subgoal.STATUS_POSTED, -1)

    def tell_current(self) -> None:
        """Say which subgoal is current, after a restore."""
        if self.planner.index < len(self.planner.plan):
            self._tell(self.planner.index, Subgoal.STATUS_POSTED, -1)

    def decide(self, msg: RobotState) -> None:
        """Go on to the next subgoal when the robot's state says that the current is reached."""
        planner = self.planner
        before = planner.index
        reached = dict(zip(msg.subgoals, msg.subgoal_done, strict=False))
        decision = planner.decide(msg.tick, reached)
        if decision.kind == NEXT:
            self._tell(before, Subgoal.STATUS_DONE, msg.tick)
            self.actor.post(decision.subgoal, msg.tick)
            self._tell(planner.index, Subgoal.STATUS_POSTED, msg.tick)
        elif decision.kind == DONE and before < len(planner.plan):
            self._tell(before, Subgoal.STATUS_DONE, msg.tick)
        elif decision.kind == FAILED:
            self._tell(before, Subgoal.STATUS_FAILED, msg.tick)

    def _tell(self, index: int, status: str, tick: int) -> None:
        msg = Subgoal()
        msg.header.stamp = self.get_clock().now().to_msg()
        msg.episode, msg.epoch = self.actor.episode, self.actor.epoch
        msg.generation = index + 1  # an episode begins with none, and each is posted once
        msg.tick, msg.index, msg.total = tick, index, len(self.planner.plan)
        msg.text, msg.status = self.planner.plan[index], status
        self._subgoals.publish(msg)


def main() -> int:
    """Run the brain."""
    return run(Brain, threads=3)


if __name__ == '__main__':
    raise SystemExit(main())
