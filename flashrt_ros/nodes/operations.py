"""What the supervisor does: start, interrupt, re-enter, roll back, reset, finish, fail.

Every stop is the same path: raise the epoch, close the gate (which holds at once), wait until the
robot reports the new epoch as applied. Every way on is the same path: restore or begin at a new
epoch, then open the gate. One operation runs at a time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from flashrt_interfaces.msg import EpisodeState
from flashrt_ros.control import episode
from flashrt_ros.control.episode import EpisodeMachine, TransitionError
from flashrt_ros.control.shelf import INTERRUPTED, START, SUBGOAL
from flashrt_ros.errors import FlashrtError
from flashrt_ros.nodes.hearing import Hearing
from flashrt_ros.nodes.links import Boundary, Links
from flashrt_ros.nodes.peers import PeerSilent

MOVING = (episode.RUNNING, episode.RECOVERING)


class Operations:
    """The episode, and everything that changes it.

    Args:
        p: The supervisor's parameters.
        links: The services of brain, robot and gate.
        hearing: What the peers say.
        announce: Called after every change; publishes where the episode stands.
        log: The supervisor's log.
        clock: Nanoseconds of ROS time.
        behind: Runs a function on another thread, after the answer has gone out.
    """

    def __init__(
        self,
        p: SimpleNamespace,
        links: Links,
        hearing: Hearing,
        announce: Callable[[], None],
        log: Any,
        clock: Callable[[], int],
        behind: Callable[[Callable[[], None]], Any],
    ) -> None:
        self._p, self._links, self._hearing, self._log = p, links, hearing, log
        self._announce, self._clock, self._behind = announce, clock, behind
        self._busy = threading.Lock()  # one operation at a time
        self.machine = EpisodeMachine()
        self.instruction = self.subgoal = self.outcome = ''
        self.plan: list[str] = []
        self._retries: dict[int, int] = {}  # place in the plan -> retries so far

    # -- asked for by people ----------------------------------------------------------------

    def start(self, instruction: str, seed: int) -> str:
        """Begin an episode; a refusal of the brain changes nothing."""
        with self._busy:
            self._require('start')
            seed = seed if seed >= 0 else self._p.seed
            stamp = self._next('start')
            plan = self._links.begin_brain(stamp, instruction, seed)  # refuses, or begins
            self.instruction, self.outcome, self.plan = instruction, '', plan
            self.subgoal = plan[0] if plan else ''
            self._apply('start', f'start: {instruction}')
            with self._or_fault():
                self._new_episode('starting')
                self._links.begin_robot(stamp, seed)
                self._freeze(START)
                self._gate(True)
            self._apply('ready', 'started')
            return f'episode {self.machine.episode} runs: ' + ', then '.join(plan)

    def interrupt(self, reason: str) -> tuple[str, int]:
        """Stop in mid-motion; return the sentence and the ticks still carried out."""
        self._busy.acquire()
        try:
            self._require('interrupt')
            ticks = self._halt(reason or 'interrupted')
        except BaseException:
            self._busy.release()
            raise
        # The robot holds, and that is the answer. Freezing waits for an inference that is under
        # way, so it goes on behind the answer; the operation lasts until it is done.
        self._behind(self._freeze_interrupt)
        return f'interrupted at tick {self._hearing.applied[1]}; the robot holds', ticks

    def _freeze_interrupt(self) -> None:
        try:
            with self._or_fault():
                digest = self._freeze(INTERRUPTED).brain
            self._log.info(f'frozen as {digest[:16]}')
        except FlashrtError:
            pass  # said, and gone to fault
        finally:
            self._busy.release()

    def resume(self, capsule: str) -> tuple[str, float]:
        """Warm re-entry; return the sentence and the milliseconds to the first action."""
        began = time.perf_counter()
        with self._busy:
            self._require('resume')
            boundary = self._links.find(capsule or INTERRUPTED)
            self._go_on_from(boundary, robot=False)
        return self._moving(began)

    def rollback(self, boundaries: int) -> tuple[str, str, float]:
        """Go back by boundaries; return the sentence, the boundary's name and milliseconds."""
        began = time.perf_counter()
        with self._busy:
            if self.machine.state not in MOVING:
                self._require('resume', 'roll back')
            boundary = self._links.back(boundaries)
            if self.machine.state in MOVING:
                self._halt(f'rollback to {boundary.name}')
            self._go_on_from(boundary, robot=True)
        text, ms = self._moving(began)
        return f'back at {boundary.name}, {text}', boundary.name, ms

    def reset(self, capsule: str, seed: int) -> tuple[str, float]:
        """Begin an episode from a capsule; return the sentence and the milliseconds it took."""
        began = time.perf_counter()
        with self._busy:
            self._require('reset')
            boundary = self._links.find(capsule or START)
            if self.machine.state in MOVING:
                self._halt('reset')
            stamp = self._next('reset')
            self._links.restore_brain(boundary, stamp, seed)
            self.outcome = ''
            self._apply('reset', 'reset')
            with self._or_fault():
                self._new_episode('resetting')
                self._links.restore_robot(boundary, stamp, seed)
                spent = (time.perf_counter() - began) * 1e3
                self._links.mark(boundary)
                self._gate(True)
            self._apply('ready', 'reset')
            return f'episode {self.machine.episode} runs from {boundary.name!r}', spent

    def snapshot(self, name: str) -> Boundary:
        """Freeze brain, and simulator where there is one, under a name of one's own."""
        if not name or name in (START, INTERRUPTED) or name.startswith(SUBGOAL):
            raise FlashrtError(
                f'{name!r} is no name for a capsule: it must not be empty, {START}, '
                f'{INTERRUPTED}, or begin with {SUBGOAL}'
            )
        with self._busy:
            if self.machine.state not in (*MOVING, episode.INTERRUPTED):
                state = self.machine.state
                raise TransitionError(f'cannot snapshot while {state}: {episode.ADVICE[state]}')
            return self._freeze(name)

    # -- seen by the supervisor -------------------------------------------------------------

    def subgoal_changed(self, epoch: int, index: int, text: str) -> None:
        """A new subgoal is posted: a boundary."""
        self.subgoal = text
        self._announce()
        if index == 0 or not self._busy.acquire(blocking=False):
            return  # the episode's start is the first one's boundary; another operation has it
        try:
            if self.machine.epoch == epoch and self.machine.state in MOVING:
                boundary = self._freeze(f'{SUBGOAL}{index + 1}')
                self._links.mark(boundary)
        except FlashrtError as error:
            self._log.warning(f'no boundary at "{text}": {error}; the episode goes on')
        finally:
            self._busy.release()

    def subgoal_failed(self, epoch: int, index: int, text: str) -> None:
        """The planner gave a subgoal up: again from its boundary, or the episode has failed."""
        with self._busy:
            if self.machine.epoch != epoch or self.machine.state not in MOVING:
                return
            tried = self._retries.get(index, 0)
            boundary = self._links.boundary_of(index)
            if tried < self._p.retries and boundary is not None:
                self._retries[index] = tried + 1
                self._halt(f'"{text}" failed: retry {tried + 1} of {self._p.retries}')
                with self._said():
                    self._go_on_from(boundary, robot=self._p.retry_resets_robot)
            else:
                boundary = None
        if boundary is not None:
            with self._said():
                self._moving(time.perf_counter())
            return
        after = f' after {tried + 1} attempts' if tried else ''
        self.finish(epoch, EpisodeState.OUTCOME_FAILED, f'"{text}" was not reached{after}')

    def finish(self, epoch: int, outcome: str, reason: str) -> None:
        """End the episode of ``epoch``."""
        with self._busy:
            if self.machine.epoch != epoch or not self.machine.may('finish'):
                return
            self.outcome = outcome
            self._apply('finish', reason, announce=False)
            with self._said(), self._or_fault():
                self._gate(False, f'{outcome}: {reason}')
            self._announce()

    def fail(self, reason: str) -> None:
        """Go to fault, unless an operation is under way (it notices by itself)."""
        if self._busy.acquire(blocking=False):
            try:
                self._fail(reason)
            finally:
                self._busy.release()

    # -- steps; the operation's lock is held -------------------------------------------------

    def _halt(self, reason: str) -> int:
        """Stop in mid-motion; return the ticks still carried out after this was called."""
        asked = self._clock()
        step = self.machine.apply('interrupt', reason)
        epoch, limit = self.machine.epoch, self._p.confirm_timeout_s
        with self._or_fault():
            self._gate(False, reason)  # before anything is said: the robot still moves
            self._said_of(step)
            if not self._hearing.wait.until(lambda: self._hearing.applied[0] >= epoch, limit):
                raise PeerSilent(
                    f'the robot did not apply the hold of epoch {epoch} within {limit:.1f} s'
                )
        self._announce()
        return self._hearing.carried_out_since(asked, epoch)

    def _go_on_from(self, boundary: Boundary, robot: bool) -> None:
        """Restore ``boundary``, in the simulated robot too if ``robot``, and open the gate."""
        stamp = self._next('resume')
        self._links.restore_brain(boundary, stamp, -1)  # refuses, or restores
        self.subgoal = boundary.subgoal
        self._apply('resume', f'warm re-entry to {boundary.name}')
        with self._or_fault():
            if robot:
                self._links.restore_robot(boundary, stamp, -1)
            else:
                self._links.tell_robot(stamp)
            self._links.mark(boundary)
            self._gate(True)

    def _moving(self, began: float) -> tuple[str, float]:
        """Wait for the first action; another operation may cut that short, so no lock is held."""
        epoch, limit = self.machine.epoch, self._p.reentry_timeout_s
        hearing, machine = self._hearing, self.machine
        moved = hearing.wait.until(
            lambda: hearing.moving >= epoch or machine.epoch != epoch, limit
        )
        spent = (time.perf_counter() - began) * 1e3
        with self._busy:
            if machine.epoch != epoch:
                raise FlashrtError(f'the re-entry was cut short: {machine.reason}')
            if not moved:
                self._fail(f'no action within {limit:.1f} s of the re-entry')
                raise FlashrtError(machine.reason)
            self._apply('moving', 're-entered')
            return f'goes on in epoch {epoch}', spent

    def _freeze(self, name: str) -> Boundary:
        boundary = self._links.freeze(name, self._stamp, self._hearing.tick, self.subgoal)
        if name == START:
            self._links.mark(boundary)
        return boundary

    def _new_episode(self, reason: str) -> None:
        self._links.forget_marks()
        self._retries.clear()
        self._gate(False, reason)
        self._hearing.forgive(**self._stamp)

    def _fail(self, reason: str) -> None:
        """Close the gate if it still answers, and say why."""
        self._log.error(f'fault: {reason}')
        self._apply('fail', reason)
        try:
            self._gate(False, f'fault: {reason}', timeout=1.0)
        except FlashrtError as error:
            self._log.error(f'and the gate does not answer: {error}')

    @contextmanager
    def _or_fault(self) -> Iterator[None]:
        """Within the block, a peer that fails leads to fault; the error goes on to the caller."""
        try:
            yield
        except FlashrtError as error:
            self._fail(str(error))
            raise

    @contextmanager
    def _said(self) -> Iterator[None]:
        """Within the block, an error that went to fault is over with that: nobody is asking."""
        try:
            yield
        except FlashrtError as error:
            if self.machine.state == episode.INTERRUPTED and self._busy.locked():
                self._fail(f'the brain refused to go back: {error}')

    def _require(self, event: str, word: str = '') -> None:
        refusal = self.machine.refuse(event)
        if refusal:
            raise TransitionError(refusal.replace(f'cannot {event}', f'cannot {word or event}'))

    @property
    def _stamp(self) -> dict[str, int]:
        return {'episode': self.machine.episode, 'epoch': self.machine.epoch}

    def _next(self, event: str) -> dict[str, int]:
        """Return episode and epoch as they will be after ``event``."""
        new = event in episode.NEW_EPISODE
        return {'episode': self.machine.episode + new, 'epoch': self.machine.epoch + 1}

    def _apply(self, event: str, reason: str, announce: bool = True) -> None:
        self._said_of(self.machine.apply(event, reason))
        if announce:
            self._announce()

    def _said_of(self, step: Any) -> None:
        self._log.info(f'{step.before} -> {step.after}: {step.reason}')

    def _gate(self, running: bool, reason: str = '', timeout: float | None = None) -> None:
        self._links.gate(self._stamp, running, reason, timeout)
