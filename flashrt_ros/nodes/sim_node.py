"""The simulated robot: a gymnasium environment on wall-clock ticks, behind the robot's topics.

Each tick applies the one gated command that is for it, or holds. In lockstep it waits for that
command instead. The whole world belongs to one thread (an OpenGL context cannot change threads);
the executor only fills the command slot.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from builtin_interfaces.msg import Time
from rclpy.publisher import Publisher
from sensor_msgs.msg import Image

from flashrt_interfaces.msg import ControlCommand, LoopStats, RobotState
from flashrt_interfaces.srv import BeginEpisode, Restore, SetEpoch, Snapshot
from flashrt_ros.control.robot import Applied, RobotClock
from flashrt_ros.control.shelf import Shelf
from flashrt_ros.control.stats import Window
from flashrt_ros.control.types import HoldRule
from flashrt_ros.control.watchdog import TickScheduler
from flashrt_ros.errors import FlashrtError
from flashrt_ros.nodes import names, qos, scheduling
from flashrt_ros.nodes.base import Managed, answers
from flashrt_ros.nodes.convert import floats, image_to_msg, msg_to_command, octets
from flashrt_ros.nodes.params import Param, declare
from flashrt_ros.nodes.scheduling import PROCESS_PARAMS
from flashrt_ros.nodes.spin import run
from flashrt_ros.nodes.worker import Worker
from flashrt_ros.nodes.world import World

PARAMS = (
    Param('env', 'flashrt/Drawer-v0', 'gymnasium id of the simulated world'),
    Param('seed', 0, 'scene shown before the first episode', 0, 2**31 - 1),
    Param('control_hz', 20.0, 'control ticks per second, in Hz', 1.0, 1000.0),
    Param('lockstep', False, 'the next tick waits for its command; see config/lockstep.yaml'),
    Param(
        'grace_s', 0.02, 'a tick may begin this late rather than miss its command, in s', 0.0, 1.0
    ),
    Param('image_every', 8, 'ticks from one pair of images to the next; 1 = every tick', 1, 1000),
    Param('hold_keep', [3], 'entries that keep their last value in a hold; the others become 0'),
    Param('publish_state', True, 'put the exact state of the simulator into every RobotState'),
    Param('lateness_file', '', 'file (.npy) for the lateness of every tick, in ms; empty = none'),
    Param('capsules', 32, 'snapshots kept; the oldest goes first', 1, 10000),
    *PROCESS_PARAMS,
)
AGAIN_S = 0.25  # in lockstep: seconds without a word after which a state is reported again


@dataclass(frozen=True)
class Frozen:
    """A world at one moment."""

    boundary: str
    state: np.ndarray
    reached: dict[str, bool]
    tick: int
    last: np.ndarray


class SimNode(Managed):
    """A robot that is a simulation."""

    def __init__(self, name: str = 'sim', **options: Any) -> None:
        super().__init__(name, **options)
        self.p = declare(self, PARAMS)
        self._lock = threading.Condition()  # guards the clock: executor and world thread use it
        self._states = self.create_publisher(RobotState, names.ROBOT_STATE, qos.STATE_PUB)
        self._cameras: dict[str, Publisher] = {}
        self._frozen: Shelf[Frozen] = Shelf('the robot', self.p.capsules)
        self._count = 0
        self._reported = 0.0  # monotonic second at which the newest state went out
        self._told = (-1, -1, -1)  # its episode, epoch and tick
        self.scheduler = TickScheduler(1.0 / self.p.control_hz)
        self._lateness = Window()  # ms
        self._every: list[float] = []  # the lateness of every tick, where a file is wanted
        self.worker = Worker('world', self.scheduler, self._tick, self._tick_failed)
        self.create_subscription(ControlCommand, names.GATED, self._on_command, qos.STATE)
        # These wait for the thread of the world, which may itself wait for a command.
        for kind, service, answer in (
            (BeginEpisode, names.ROBOT_BEGIN, self._begin),
            (Snapshot, names.ROBOT_SNAPSHOT, self._snapshot),
            (Restore, names.ROBOT_RESTORE, self._restore),
        ):
            self.aside.serve(self.create_service(kind, service, answer))
        self.create_service(SetEpoch, names.ROBOT_SET_EPOCH, self._set_epoch)

    def stamp(self) -> tuple[int, int]:
        """Return the robot's own episode and epoch."""
        return (self.clock.episode, self.clock.epoch) if self.ready else (0, 0)

    def figures(self, msg: LoopStats) -> str:
        """Tell how late ticks begin, and which were missed."""
        msg.ticks, msg.missed_ticks = self.scheduler.served, self.clock.missed
        msg.lateness_p50_ms, msg.lateness_p99_ms, msg.lateness_max_ms = self._lateness.percentiles(
            50, 99, 100
        )
        msg.capsules = len(self._frozen)
        msg.capsule_bytes = sum(frozen.state.nbytes for frozen in self._frozen.all())
        return ''

    def configure(self) -> None:
        """Make the world, reset it once, draw its first frames."""
        self.world = self.worker.call(lambda: World(self.p.env))
        hold = HoldRule(self.world.action_dim, tuple(self.p.hold_keep))
        self.clock = RobotClock(hold, self.p.lockstep)
        began = time.perf_counter()
        pictures = self.worker.call(self._warm_up)
        for camera in pictures:
            topic = names.IMAGE.format(camera=camera)
            if camera not in self._cameras:
                self._cameras[camera] = self.create_publisher(Image, topic, qos.IMAGE_PUB)
        self._drawn = (-1, -1)  # (epoch, tick) of the newest images
        spent = (time.perf_counter() - began) * 1e3
        self.log.info(f'{self.p.env}: first reset and frames took {spent:.0f} ms')

    def _warm_up(self) -> Any:
        self.world.reset(self.p.seed)
        self.world.images()
        return self.world.images()

    def activate(self) -> None:
        """Start the ticks."""
        self.worker.call(lambda: scheduling.prioritise(self))
        self.worker.start_ticking()

    def deactivate(self) -> None:
        """Stop the ticks."""
        self.worker.stop_ticking()
        if self.p.lateness_file:
            np.save(self.p.lateness_file, np.array(self._every, np.float32))

    def cleanup(self) -> None:
        """Close the world."""
        self.worker.call(self.world.close)

    def close(self) -> None:
        """End the world's thread."""
        super().close()
        self.worker.close()

    # -- the world's thread -----------------------------------------------------------------

    def _tick(self, skipped: int) -> None:
        self._lateness.add(self.scheduler.lateness * 1e3)
        if self.p.lateness_file:
            self._every.append(self.scheduler.lateness * 1e3)
        with self._lock:
            if self.clock.under_way or self.p.lockstep:
                self._lock.wait_for(self.clock.served, self._patience())
            heard = self.clock.served()
            applied = self.clock.take()
            if applied is not None and self.clock.under_way and not self.p.lockstep:
                self.clock.missed += skipped
        if applied is not None:
            self._move(applied)
        if heard or not self.p.lockstep or self._to_be_told_again():
            self._report()

    def _to_be_told_again(self) -> bool:
        """Whether a state that waits for its command has changed, or was told a while ago."""
        clock = self.clock
        changed = (clock.episode, clock.epoch, clock.tick) != self._told
        return changed or time.monotonic() - self._reported >= AGAIN_S

    def _patience(self) -> float:
        """Seconds that this tick may still wait for its command.

        It has one period and the grace from the report of its state, so that a tick that was late
        does not shorten the next one's time; but never more than half a period from when it was
        due, so that ticks do not pile up where no command comes. In lockstep it has one period at
        a time, and then another.
        """
        period, now = self.scheduler.period, time.monotonic()
        if self.p.lockstep:
            return period
        due = now - self.scheduler.lateness
        grace = self.p.grace_s
        deadline = min(self._reported + period + grace, due + max(grace, period / 2))
        return max(0.0, deadline - now)

    def _move(self, applied: Applied) -> None:
        try:
            self.world.step(applied.action)
        except FlashrtError as error:
            self.log.error(f'the world refused the action: {error}')
        if applied.missed:
            self.log.warning(f'tick {self.clock.tick - 1} missed: {applied.reason}')

    def _tick_failed(self, error: Exception) -> None:
        self.log.error(f'tick failed: {type(error).__name__}: {error}')

    def _report(self) -> None:
        stamp = self.get_clock().now().to_msg()
        msg = RobotState()
        msg.header.stamp, msg.header.frame_id = stamp, 'base'
        with self._lock:
            clock = self.clock
            msg.episode, msg.epoch, msg.tick = clock.episode, clock.epoch, clock.tick
            msg.applied_epoch, msg.applied_tick = clock.applied_epoch, clock.applied_tick
            msg.held, msg.hold_reason = clock.held, clock.reason
            msg.missed_ticks = clock.missed
            parked = clock.parked and not clock.lockstep
        moment = (msg.epoch, msg.tick)
        fresh = self._drawn[0] != msg.epoch  # whoever re-enters gets a picture at once
        msg.images = parked or fresh or moment == self._drawn or msg.tick % self.p.image_every == 0
        msg.proprioception = floats(self.world.proprioception())
        msg.subgoals = list(self.world.reached)
        msg.subgoal_done = list(self.world.reached.values())
        if self.p.publish_state:
            msg.simulator_state = octets(self.world.get_state())
        self._states.publish(msg)
        self._reported, self._told = time.monotonic(), (msg.episode, *moment)
        if msg.images:
            self._show(stamp, moment)

    def _show(self, stamp: Time, moment: tuple[int, int]) -> None:
        for camera, pixels in self.world.images().items():
            self._cameras[camera].publish(image_to_msg(pixels, stamp, camera))
        self._drawn = moment

    # -- the executor's thread --------------------------------------------------------------

    def _on_command(self, msg: ControlCommand) -> None:
        if self.active:
            with self._lock:
                if self.clock.offer(msg_to_command(msg)):
                    self._lock.notify_all()

    @answers
    def _begin(self, request: BeginEpisode.Request, response: BeginEpisode.Response) -> str:
        def job() -> None:
            with self._lock:
                self.clock.begin(request.episode, request.epoch, 0)
            self.world.reset(int(request.seed))

        self.worker.call(job)
        return f'parked at tick 0 of episode {request.episode}'

    @answers
    def _snapshot(self, request: Snapshot.Request, response: Snapshot.Response) -> str:
        def job() -> Frozen:
            state = self.world.get_state()
            with self._lock:
                tick, last = self.clock.tick, self.clock.last.copy()
            return Frozen(request.boundary, state, dict(self.world.reached), tick, last)

        frozen = self.worker.call(job)
        self._count += 1
        response.digest = f'robot-{self._count}'
        response.nbytes = frozen.state.nbytes
        self._frozen.put(response.digest, request.boundary, frozen)
        return f'{request.boundary!r} frozen at tick {frozen.tick}'

    @answers
    def _restore(self, request: Restore.Request, response: Restore.Response) -> str:
        frozen = self._frozen.find(request.capsule)

        def job() -> float:
            began = time.perf_counter()
            with self._lock:
                self.clock.begin(request.episode, request.epoch, frozen.tick, frozen.last)
            if request.seed >= 0:
                self.world.reset(int(request.seed))
            else:
                self.world.set_state(frozen.state, frozen.reached)
            return (time.perf_counter() - began) * 1e3

        response.restore_ms = self.worker.call(job)
        return f'parked at tick {frozen.tick} of episode {request.episode}'

    @answers
    def _set_epoch(self, request: SetEpoch.Request, response: SetEpoch.Response) -> str:
        with self._lock:
            self.clock.set_epoch(request.epoch)
            response.tick = self.clock.tick
        return f'epoch {request.epoch}'


def main() -> None:
    """Run the simulated robot."""
    run(SimNode)


if __name__ == '__main__':
    main()
