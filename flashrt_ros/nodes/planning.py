"""What a planner decides, told on the Subgoal topic; shared by brain and planner node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from std_msgs.msg import String

from flashrt_interfaces.msg import RobotState, Subgoal
from flashrt_ros.control.planner import DONE, FAILED, NEXT, Facts, Planner
from flashrt_ros.nodes import names, qos
from flashrt_ros.nodes.judging import SURE, make_planner
from flashrt_ros.nodes.params import Param

PLANNER_PARAMS = (
    Param('planner', 'shipped', 'who plans: checkpoint of a language model, shipped, or rules'),
    Param('skills', [''], 'subgoals that are planned with, in place of those of the policy'),
    Param('sure', SURE, 'how sure an answer must be to count', 0.5, 1.0),
    Param('decide_every', 8, 'control ticks from one round of questions to the next', 1, 1000),
    Param('decide_at', 4, 'the tick of them that is asked at', 0, 999),
    Param('planner_device', 'cpu', 'where a planner apart runs: cpu, cuda or cuda:N'),
    Param('done_ticks', 1, 'rules: ticks in a row a subgoal must be reached', 1, 1000),
    Param('subgoal_max_ticks', 400, 'ticks after which a subgoal has failed; 0 = never', 0, 10**6),
)
Stamp = tuple[int, int]  # episode and epoch


def planner_of(
    params: Any, skills: Sequence[str], ctx: Any = None, mailbox: Any = None
) -> Planner:
    """Return the planner that a node's `PLANNER_PARAMS` ask for; see `make_planner`."""
    from flashrt_ros.contract.context import Context

    skills = tuple(skill for skill in params.skills if skill) or skills
    if ctx is None and params.planner_device != 'cpu':
        ctx = Context(params.planner_device)
    return make_planner(
        params.planner, skills, sure=params.sure, max_ticks=params.subgoal_max_ticks,
        done_ticks=params.done_ticks, ctx=ctx, mailbox=mailbox,
    )  # fmt: skip


def due(params: Any, tick: int) -> bool:
    """Whether a planner that takes its time is asked at this tick, between two inferences."""
    return bool(tick % params.decide_every == params.decide_at % params.decide_every)


class Announcer:
    """Asks a planner at every tick and tells what became of each subgoal.

    Args:
        node: Whose clock stamps the messages.
        out: Publisher of Subgoal.
        post: Called with a new subgoal and its tick, before it is told.
        valid_ticks: Ticks a subgoal counts unless it is renewed; it is renewed in time.
        lockstep: The robot waits: nothing it reports grows old, and a planner apart has its say
            on every tick.
    """

    def __init__(
        self,
        node: Any,
        out: Any,
        post: Callable[[str, int], Any] | None = None,
        valid_ticks: int = 0,
        lockstep: bool = False,
    ) -> None:
        self._node, self._out, self._post = node, out, post
        self._valid, self._lockstep = valid_ticks, lockstep
        self._every_tick = lockstep and post is None
        self._renewed = -1  # tick at which the current subgoal was told last
        self._missed = 0  # ticks missed up to the last state
        self.note = ''  # what people say

    def listen(self) -> None:
        """Hear what people say."""

        def on_note(msg: String) -> None:
            self.note = msg.data

        self._node.listen(String, names.NOTE, on_note, qos.TELEMETRY)

    def decide(self, stamp: Stamp, planner: Planner, msg: RobotState, now: int) -> None:
        """Go on to the next subgoal when the robot's state says that the current is reached.

        ``now`` is the planner's time, in ticks under way; see `PlannerClock`.
        """
        before = planner.index
        decision = planner.decide(now, self.facts(msg))
        if decision.kind == NEXT:
            self.tell(stamp, planner, before, Subgoal.STATUS_DONE, msg.tick)
            if self._post is not None and not decision.handed:
                self._post(decision.subgoal, msg.tick)
            self.tell(stamp, planner, planner.index, Subgoal.STATUS_POSTED, msg.tick)
        elif decision.kind == DONE and before < len(planner.plan):
            self.tell(stamp, planner, before, Subgoal.STATUS_DONE, msg.tick)
        elif decision.kind == FAILED:
            self.tell(stamp, planner, before, Subgoal.STATUS_FAILED, msg.tick)
        elif self._every_tick or self._soon_over(msg.tick):
            self.renew(stamp, planner, msg.tick)

    def _soon_over(self, tick: int) -> bool:
        return bool(self._valid) and abs(tick - self._renewed) >= max(1, self._valid // 4)

    def renew(self, stamp: Stamp, planner: Planner, tick: int) -> None:
        """Say at ``tick`` that the current subgoal is still meant."""
        self._renewed = tick
        self.tell(stamp, planner, planner.index, Subgoal.STATUS_LIVE, tick)

    def facts(self, msg: RobotState) -> Facts:
        """Return what a planner is told of the robot's state; ticks missed count from the last."""
        missed, self._missed = max(0, msg.missed_ticks - self._missed), msg.missed_ticks
        body = tuple(msg.proprioception)
        return Facts(
            dict(zip(msg.subgoals, msg.subgoal_done, strict=False)),
            body[:3],
            body[3] if len(body) > 3 else 1.0,
            self._age_ms(msg),
            missed,
            msg.hold_reason if msg.held else '',
            self.note,
        )

    def _age_ms(self, msg: RobotState) -> float:
        if self._lockstep:
            return 0.0
        stamp = msg.header.stamp
        read = stamp.sec * 1_000_000_000 + stamp.nanosec
        return max(0.0, (self._node.get_clock().now().nanoseconds - read) / 1e6)

    def tell(
        self,
        stamp: Stamp,
        planner: Planner,
        index: int,
        status: str = Subgoal.STATUS_POSTED,
        tick: int = -1,
    ) -> None:
        """Publish what became of subgoal ``index`` of the plan; nothing where there is none."""
        if index >= len(planner.plan):
            return
        self._publish(stamp, planner.plan[index], index, len(planner.plan), status, tick)

    def _publish(
        self, stamp: Stamp, text: str, index: int, total: int, status: str, tick: int
    ) -> None:
        msg = Subgoal()
        msg.header.stamp = self._node.get_clock().now().to_msg()
        msg.episode, msg.epoch = stamp
        msg.generation = index + 1  # an episode begins with none, and each is posted once
        msg.tick, msg.index, msg.total = tick, index, total
        msg.text, msg.status, msg.valid_ticks = text, status, self._valid
        self._out.publish(msg)
