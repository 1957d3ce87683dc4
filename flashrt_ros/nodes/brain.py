"""The brain: policy and planner in one process, sharing the device's subgoal buffer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flashrt_interfaces.msg import RobotState, Subgoal
from flashrt_ros.control.planner import Planner
from flashrt_ros.control.planner_clock import PlannerClock
from flashrt_ros.nodes import names, qos
from flashrt_ros.nodes import policy_node as policy
from flashrt_ros.nodes.desk import Desk
from flashrt_ros.nodes.judging import asks
from flashrt_ros.nodes.params import Param
from flashrt_ros.nodes.planning import PLANNER_PARAMS, Announcer, Stamp, due, planner_of
from flashrt_ros.nodes.spin import run

PARAMS = (*policy.PARAMS, *PLANNER_PARAMS)


class Brain(policy.PolicyNode):
    """A policy node with a planner of its own: the subgoal never leaves the device's buffer."""

    hosts_planner = True
    planner: Planner

    def __init__(self, name: str = 'brain', **options: Any) -> None:
        super().__init__(name, **options)
        out = self.create_publisher(Subgoal, names.SUBGOAL, qos.TELEMETRY)
        self._announcer = Announcer(
            self, out, lambda text, tick: self.actor.post(text, tick), lockstep=self.p.lockstep
        )
        self._deciding = False

    def parameters(self) -> Sequence[Param]:
        """Return the parameters of policy and planner."""
        return PARAMS

    def configure(self) -> None:
        """Make policy and planner, and answer questions."""
        super().configure()
        Desk(self, lambda: self.planner, self.worker.call, aside=True)
        self._announcer.listen()

    def hosts(self, skills: Sequence[str], ctx: Any, mailbox: Any) -> dict[str, Any]:
        """Make the planner for what the policy can do; its state belongs to the capsules."""
        self.planner = self.make(skills, ctx, mailbox)
        self.clock = PlannerClock()
        return {'planner': self.planner, 'planner/clock': self.clock}

    def make(self, skills: Sequence[str], ctx: Any, mailbox: Any) -> Planner:
        """Return the planner; tests put another here."""
        return planner_of(self.p, skills, ctx, mailbox)

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
        """Go on to the next subgoal when the current is reached: at once, or where graphs run."""
        now = self.clock.at(msg.tick)
        if not asks(self.planner):
            self._announcer.decide(self._now, self.planner, msg, now)
        elif due(self.p, msg.tick) and not self._deciding:
            self._deciding = True
            stamp = self._now
            if self.p.lockstep:  # graphs run here already, and the tick waits
                self._ask(stamp, msg, now)
            else:
                self.worker.submit(lambda: self._ask(stamp, msg, now))

    def _ask(self, stamp: Stamp, msg: RobotState, now: int) -> None:
        """Ask the planner on the replay thread, unless an interrupt came between."""
        try:
            if stamp == self._now and not self.actor.paused:
                self._announcer.decide(stamp, self.planner, msg, now)
        except Exception as error:
            self.log.error(f'the planner failed: {type(error).__name__}: {error}')
        finally:
            self._deciding = False


def main() -> None:
    """Run the brain."""
    run(Brain)


if __name__ == '__main__':
    main()
