"""The actor: one policy, one mailbox, one queue, one session, and the rules between them.

It knows neither ROS nor which policy it drives. Nodes give it threads; a rollout calls it
synchronously; both get the same actions for the same ticks.

Replays, snapshots and restores belong to one thread, the *replay thread*: the first that calls.
`act`, `wants`, `post` and `pause` may be called from any thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from flashrt_ros.capsule.closure import Closure
from flashrt_ros.capsule.fingerprint import Fingerprint
from flashrt_ros.capsule.session import Session
from flashrt_ros.contract.context import Context
from flashrt_ros.contract.stream import Stream
from flashrt_ros.control.chunk_queue import ChunkQueue
from flashrt_ros.control.guards import GuardError, Guards
from flashrt_ros.control.mailbox import Mailbox
from flashrt_ros.control.pace import Pace
from flashrt_ros.control.protocols import Host, Policy
from flashrt_ros.control.text import encode
from flashrt_ros.control.types import DELAY, EXECUTE, Chunk, Command, HoldRule, Observation
from flashrt_ros.errors import FlashrtError

if TYPE_CHECKING:
    from flashrt_ros.capsule.capsule import Capsule
    from flashrt_ros.capsule.registry import Registry


class ActorError(FlashrtError, RuntimeError):
    """A call in the wrong state, on the wrong thread, or parameters that do not fit together."""


class Actor:
    """Observation in, one command per control tick out.

    A chunk is asked for at every tick that is a multiple of ``execute``, and at the first
    observation after a start or a restore. The chunk of tick ``t`` takes effect at ``t + delay``.
    A subgoal posted at tick ``t`` becomes live at the first request at or after
    ``t + subgoal_delay``.

    Args:
        ctx: The context that holds the policy's buffers.
        policy: See `Policy`.
        mailbox: Where the subgoal comes from; its port is the one the policy was made with.
        guards: Checks on what comes in and what goes out.
        execute: Ticks from one request to the next.
        delay: Ticks from an observation to its chunk's first use.
        session_fingerprint: The deployment capsules belong to; by default what the policy says
            of itself, with closure and device.
        subgoal_delay: Ticks from a post to the first request that may use it.
        hold: How the robot stands still; by default zeros and the last entry (the gripper) kept.
        stream: The stream that replays go to; None = the current one.
        hosts: Name -> host state that the capsule carries beside the actor's own.
        registry: Where capsules live; by default the device's memory, while they are referenced.

    Raises:
        ActorError: The chunk is too short for ``execute`` and ``delay``.
    """

    def __init__(
        self,
        ctx: Context,
        policy: Policy,
        mailbox: Mailbox,
        guards: Guards,
        execute: int = EXECUTE,
        delay: int = DELAY,
        session_fingerprint: Fingerprint | None = None,
        subgoal_delay: int = 1,
        hold: HoldRule | None = None,
        stream: Stream | None = None,
        hosts: Mapping[str, Host] | None = None,
        registry: Registry | None = None,
    ) -> None:
        horizon, dim = policy.spec.horizon, policy.spec.action_dim
        if execute < 1 or delay < 0 or execute + delay > horizon:
            raise ActorError(
                f'a chunk of {horizon} actions cannot cover execute {execute} + delay {delay} '
                f'ticks; their sum must be between 1 and {horizon}'
            )
        self.ctx, self.policy, self.mailbox, self.guards = ctx, policy, mailbox, guards
        self.execute, self.delay, self.subgoal_delay = execute, delay, subgoal_delay
        self.queue = ChunkQueue(hold or HoldRule(dim, keep=(dim - 1,)), horizon)
        self.refused = 0  # observations and chunks refused by a guard
        self._restored: Capsule | None = None
        self._stream = stream
        self._gap = max(1, min(delay, horizon - execute - delay + 1))
        self._paused = 'no episode has been started'
        self._request = -1  # tick of the newest request
        self._fresh = True  # the next observation must be answered, whatever its tick
        self._tick = -1  # tick acted last
        self._thread: int | None = None
        self._lock = threading.RLock()
        self.closure = Closure('brain')
        policy.close_over(self.closure)
        mailbox.close_over(self.closure)
        self.closure.host('actor/queue', get=self.queue.state, set=self.queue.set_state)
        self.closure.host('actor/clock', get=self._clock, set=self._set_clock)
        self._pace = Pace(delay, horizon) if hasattr(policy, 'pace') else None
        if self._pace is not None:
            self.closure.host('actor/pace', get=self._pace.state, set=self._pace.set_state)
        for name, host in (hosts or {}).items():
            self.closure.host(name, get=host.state, set=host.set_state)
        fingerprint = session_fingerprint or Fingerprint.of(
            self.closure, device=ctx.device, **policy.fingerprint()
        )
        self.session = Session(ctx, self.closure, fingerprint, stream=stream, registry=registry)

    @property
    def episode(self) -> int:
        """The episode in force."""
        return self.queue.episode

    @property
    def epoch(self) -> int:
        """The epoch in force."""
        return self.queue.epoch

    @property
    def capsule(self) -> str:
        """Digest of the capsule restored last in this episode; empty if none was."""
        # Worked out when somebody asks: it costs more than a restore.
        return self._restored.digest if self._restored is not None else ''

    @property
    def paused(self) -> str:
        """Why the actor holds; empty while it runs."""
        return self._paused

    # -- the replay thread ------------------------------------------------------------------

    def start(self, episode: int, epoch: int, seed: int, paused: str = '') -> None:
        """Begin an episode at its first tick: fresh noise, no subgoal, empty queue.

        With ``paused`` it waits for `go` (so that a snapshot comes before the first replay).
        """
        self._own_thread()
        with self._replaying():
            self.policy.reset(seed)
            self.mailbox.clear()
        with self._lock:
            self.queue.start(episode, epoch)
            self._request, self._tick, self._fresh = -1, -1, True
            self._paused, self._restored = paused, None
            self._begin_pace()

    def infer(self, observation: Observation) -> Chunk:
        """Turn one observation into a chunk and queue it.

        Raises:
            GuardError: The observation is stale or refused (then no buffer was written), or the
                policy's chunk is; the next observation will be asked for instead.
        """
        self._own_thread()
        began = time.perf_counter()
        tick = observation.tick
        stamp = (self.episode, self.epoch)
        try:
            if (observation.episode, observation.epoch) != stamp:
                raise GuardError(
                    'epoch',
                    f'observation of episode {observation.episode}, epoch {observation.epoch}; '
                    f'it must be of episode {stamp[0]}, epoch {stamp[1]}',
                )
            self.guards.observation(observation)
            with self._lock:
                self._request, self._fresh = tick, False
            with self._replaying():
                if tick >= self.mailbox.posted_tick + self.subgoal_delay:
                    self.mailbox.flip()
                self.policy.observe(observation.images, observation.proprio)
                if self._pace is not None:
                    self.policy.pace(*self._pace.next(tick))  # type: ignore[attr-defined]
                actions = self.policy.plan()  # [H, A]
                # Read behind the replay: a planner on the device tells the host nothing before.
                generation = self.mailbox.generation
            actions = self.guards.action(actions)
        except GuardError:
            with self._lock:
                self._fresh = True
                self.refused += 1
                if self._pace is not None:
                    self._pace.refuse()
            raise
        latency = (time.perf_counter() - began) * 1e3
        chunk = Chunk(actions, tick, tick + self.delay, *stamp, generation, latency)
        queued = self.queue.push(chunk)
        if self._pace is not None:
            if queued is None:
                self._pace.refuse()
            else:
                self._pace.took(tick, max(chunk.due, self.queue.last_tick + queued.late))
        # One that came when its last action was due is told as late, too.
        return queued or replace(chunk, late=chunk.due <= self.queue.last_tick)

    def snapshot(self, boundary: str) -> Capsule:
        """Freeze everything the next step depends on, between two replays."""
        self._own_thread()
        with self._lock:
            return self.session.snapshot(boundary=boundary, position=max(0, self._tick))

    def restore(
        self,
        capsule: Capsule,
        epoch: int,
        keep_queue: bool = False,
        episode: int | None = None,
        seed: int = -1,
        paused: str = '',
    ) -> None:
        """Go back to ``capsule``. One path for reset, rollback and warm re-entry.

        ``epoch += 1 -> flush -> restore -> fresh observation -> resume``.

        Args:
            capsule: Where to.
            epoch: The epoch that starts now.
            keep_queue: Keep the actions that were queued, and the place in the request rhythm:
                the robot or simulator goes back too. Otherwise the queue stays empty.
            episode: The episode from now on; None = the current one.
            seed: New noise from here on; negative = exactly as the capsule has it.
            paused: Hold for this reason until `go`.

        Raises:
            ActorError: The epoch does not rise.
            FingerprintError: The capsule belongs to another deployment. The live buffers are as
                they were, and the robot holds.
        """
        self._own_thread()
        if epoch <= self.epoch:
            raise ActorError(f'restore into epoch {epoch}: it must be above epoch {self.epoch}')
        with self._lock:
            self._paused = 'restoring'
            self.queue.flush(epoch, episode)
            self.session.restore(capsule)
            if seed >= 0:
                with self._replaying():
                    self.policy.reset(seed)
            if not keep_queue:
                self.queue.flush(epoch, episode)
                self._request, self._fresh = -1, True
                self._begin_pace()
            self._paused, self._restored = paused, capsule

    # -- any thread -------------------------------------------------------------------------

    def post(self, subgoal: str | np.ndarray, tick: int = -1) -> int:
        """Post a subgoal (text or row) decided at ``tick``; return its generation."""
        row = encode(subgoal, self.mailbox.length) if isinstance(subgoal, str) else subgoal
        return self.mailbox.post(row, tick)

    def works_on(self, subgoal: str) -> bool:
        """Whether ``subgoal`` is the one posted last, live already or not."""
        return self.mailbox.holds(encode(subgoal, self.mailbox.length))

    def pause(self, epoch: int, reason: str) -> None:
        """Hold from now on, in a new epoch: what is queued or being inferred never comes out."""
        with self._lock:
            if epoch < self.epoch:
                raise ActorError(f'pause in epoch {epoch}: epoch {self.epoch} is in force')
            self._paused = reason
            if epoch > self.epoch:
                self.queue.flush(epoch)

    def go(self) -> None:
        """End a pause of `start` or `restore`."""
        with self._lock:
            self._paused = ''

    def wants(self, tick: int) -> bool:
        """Whether the observation of ``tick`` should be turned into a chunk."""
        with self._lock:
            if self._paused or self.mailbox.empty:
                return False
            if self._fresh:
                return True
            return tick % self.execute == 0 and tick - self._request >= self._gap

    def ask_again(self) -> None:
        """A wanted observation was lost: take the next one instead."""
        with self._lock:
            self._fresh = True

    def act(self, tick: int, fault: str = '') -> Command:
        """Return the command for ``tick``.

        While paused it is a hold for no tick in particular (-1). With a ``fault`` of the
        observation it is a hold for this tick, and the queue goes on with the next.
        """
        with self._lock:
            if self._paused:
                return self.queue.holding(-1, self._paused)
            self._tick = tick
            command = self.queue.take(tick)
            return self.queue.holding(tick, fault) if fault else command

    # -- inside -----------------------------------------------------------------------------

    def _begin_pace(self) -> None:
        if self._pace is not None:
            self._pace.begin()

    def _clock(self) -> dict[str, int | bool]:
        with self._lock:
            return {'request': self._request, 'fresh': self._fresh, 'tick': self._tick}

    def _set_clock(self, state: dict) -> None:
        with self._lock:
            self._request = int(state['request'])
            self._fresh = bool(state['fresh'])
            self._tick = int(state['tick'])

    def _replaying(self) -> Any:
        return nullcontext() if self._stream is None else self._stream.use()

    def _own_thread(self) -> None:
        here = threading.get_ident()
        if self._thread is None:
            self._thread = here
            self.ctx.bind_thread()
        if here != self._thread:
            raise ActorError(
                f'called from thread {threading.current_thread().name!r}: start, infer, snapshot '
                'and restore belong to the thread that called first'
            )
