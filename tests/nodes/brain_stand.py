"""A policy process alone, between a robot, cameras and a supervisor that the test plays itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from builtin_interfaces.msg import Time
from harness import HERE, LONG, looked_for, toy_environment
from sensor_msgs.msg import Image

from flashrt_interfaces.msg import ControlCommand, EpisodeState, RobotState, Subgoal
from flashrt_interfaces.srv import BeginEpisode
from flashrt_ros.nodes import names, qos
from flashrt_ros.nodes.convert import image_to_msg
from flashrt_ros.nodes.lifecycle import Lifecycle
from flashrt_ros.nodes.operator import Operator
from flashrt_ros.nodes.runner import System, free_domain
from flashrt_ros.nodes.system import Process

FASTEST_S = 0.01  # from one tick of the robot to the next
PIXELS = np.full((8, 8, 3), 7, np.uint8)
CAMERAS = ('front', 'wrist')


class BrainStand:
    """What a test shows to a policy, and what the policy commands."""

    def __init__(self, system: System, operator: Operator, cameras: dict[str, str]) -> None:
        self.system, self.operator = system, operator
        self.lifecycle = Lifecycle(operator.node, system.check)
        self.sent: list[ControlCommand] = []
        make = operator.node.create_publisher
        self.states = make(RobotState, names.ROBOT_STATE, qos.STATE)
        self.images = {
            c: make(Image, cameras.get(c, names.IMAGE.format(camera=c)), qos.IMAGE_PUB)
            for c in CAMERAS
        }
        self.episodes = make(EpisodeState, names.EPISODE, qos.LATCHED)
        self.subgoals = make(Subgoal, names.SUBGOAL, qos.TELEMETRY)
        operator.node.create_subscription(
            ControlCommand, names.COMMAND, self._heard, qos.TELEMETRY
        )
        operator.peers.add(BeginEpisode, names.BRAIN_BEGIN)
        self.tick = -1
        self.shift_s = 0.0  # the robot's clock is ahead by so much

    def _heard(self, msg: ControlCommand) -> None:
        self.sent.append(msg)
        self.operator.changed.notify()

    def poll(self, holds: Callable[[], bool]) -> bool:
        """Wait for what no message tells of."""
        return looked_for(self.operator, holds)

    def begin(self, valid_ticks: int = 0) -> None:
        """Play the supervisor: begin an episode and post a subgoal."""
        self.lifecycle.bring_up(['brain'], LONG)
        for topic in (self.states, self.episodes, self.subgoals, *self.images.values()):
            assert self.poll(lambda t=topic: t.get_subscription_count() > 0), topic.topic_name
        self.operator.peers.call(names.BRAIN_BEGIN, BeginEpisode.Request(episode=1, epoch=1))
        subgoal = Subgoal(episode=1, epoch=1, tick=-1, text='open the drawer', status='posted')
        subgoal.valid_ticks = valid_ticks
        self.subgoals.publish(subgoal)
        self.episodes.publish(EpisodeState(episode=1, epoch=1, state='running'))

    def stamp(self) -> Time:
        """Return the robot's present time."""
        at = self.operator.node.get_clock().now().nanoseconds + round(self.shift_s * 1e9)
        return Time(sec=at // 10**9, nanosec=at % 10**9)

    def show(self, proprioception: Any = (0.1, 0.2, 0.3, 0.4), images: bool = True) -> Time:
        """Report the robot's next tick, and what its cameras see."""
        self.tick += 1
        stamp = self.stamp()
        msg = RobotState(episode=1, epoch=1, tick=self.tick)
        msg.header.stamp = stamp
        msg.proprioception = list(proprioception)
        self.states.publish(msg)
        for camera, topic in self.images.items() if images else ():
            topic.publish(image_to_msg(PIXELS, stamp, camera))
        return stamp

    def answered(self, **how: Any) -> ControlCommand | None:
        """Show a tick and return its command; None while the brain is paused."""
        seen = len(self.sent)
        self.show(**how)
        tick = self.tick

        def answer() -> list[ControlCommand]:
            return [m for m in self.sent[seen:] if m.tick in (tick, -1)]

        assert self.operator.until(lambda: bool(answer()), LONG), f'no answer to tick {tick}'
        return next((m for m in answer() if m.tick == tick), None)

    def until(self, good: Callable[[ControlCommand], bool], **how: Any) -> ControlCommand | None:
        """Show ticks until a command is as wanted; more and more slowly, if that takes long."""
        period, end = FASTEST_S, time.monotonic() + LONG
        while time.monotonic() < end:
            for _ in range(50):
                command = self.answered(**how)
                if command is not None and good(command):
                    return command
                self.operator.until(lambda: False, period)
            period *= 2
        return None

    def moves(self, **how: Any) -> bool:
        """Show ticks until the policy commands something."""
        return self.until(lambda m: not m.held, **how) is not None

    def holds(self, words: str, **how: Any) -> bool:
        """Show ticks until the policy holds with ``words``."""
        return self.until(lambda m: m.held and words in m.reason, **how) is not None

    def lines(self, words: str) -> list[str]:
        """Return the brain's log lines with ``words``."""
        return [line for line in self.system.lines('brain') if words in line]

    def says_once(self, words: str) -> bool:
        """Wait for a log line with ``words``, which may come after what it tells of; just one."""
        return self.poll(lambda: bool(self.lines(words))) and len(self.lines(words)) == 1


@contextmanager
def brain_stand(cameras: dict[str, str] | None = None, **params: Any) -> Iterator[BrainStand]:
    """Run a policy node with ``params``, not configured yet."""
    domain = free_domain()
    process = Process('brain', str(HERE / 'toy_policy_node.py'), ('policy.yaml',))
    own = {'max_age_s': 60.0, **params}  # a busy machine must not trip it
    with (
        toy_environment(),
        Operator(domain, patience=LONG) as operator,
        System([process], {'brain': own}, domain) as system,
    ):
        yield BrainStand(system, operator, cameras or {})
