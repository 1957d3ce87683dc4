"""A planner and an actor in one process, tick by tick, with a link between them that has faults.

What runs is what runs on the robot: the mailbox, the actor, the chunk queue, the guards, and the
rule by which the policy node takes subgoals. Missing are ROS, threads and wall time, so a test
gives the same result every time. `race` alone uses a second thread.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flashrt_ros.contract.context import Context
from flashrt_ros.control.actor import Actor
from flashrt_ros.control.guards import Guards
from flashrt_ros.control.inbox import SubgoalInbox
from flashrt_ros.control.mailbox import Mailbox
from flashrt_ros.control.planner import NEXT, Planner, ScriptedPlanner
from flashrt_ros.control.text import LENGTH, encode
from flashrt_ros.control.types import DELAY, EXECUTE, Observation

from .link import Fault, Link, Message
from .toy import ToyPolicy
from .trace import Change, Given, Post, Read, Trace
from .world import World

if TYPE_CHECKING:
    from flashrt_ros.capsule.capsule import Capsule

MakePolicy = Callable[[Context, Any], Any]


class Pair:
    """Planner, link, mailbox, actor, policy and world; `trace` holds what happened.

    Args:
        policy: makes a policy of a context and a subgoal port, or names a checkpoint as
            `flashrt_policies.registry.load` knows it; `ToyPolicy` if left out.
        planner: whoever decides; `ScriptedPlanner` with the policy's skills if left out.
        world: what is seen and reached, made from the policy's spec; `World` if left out.
        fault: what goes wrong with subgoals on their way.
        execute: ticks from one request for a chunk to the next.
        delay: ticks from an observation to its chunk's first use.
        subgoal_delay: ticks from a post to the first inference that may see it.
        mailbox: makes the mailbox of a context and a length of rows.
    """

    def __init__(
        self,
        policy: MakePolicy | str | Path = ToyPolicy,
        planner: Planner | None = None,
        world: Callable[[Any], Any] = World,
        fault: Fault | None = None,
        execute: int = EXECUTE,
        delay: int = DELAY,
        subgoal_delay: int = 1,
        mailbox: Callable[[Context, int], Mailbox] = Mailbox,
    ) -> None:
        context = Context('cpu')
        if callable(policy):
            box = mailbox(context, LENGTH)
            made = policy(context, box.port)
        else:
            from flashrt_policies import registry

            box = mailbox(context, registry.spec(policy).subgoal_length)
            made = registry.load(policy, context, box.port)
        self.policy, self.mailbox = made, box
        self._probe = _Probe(made, box)
        self.actor = Actor(
            context,
            self._probe,
            box,
            Guards.of(made.spec),
            execute,
            delay,
            subgoal_delay=subgoal_delay,
        )
        context.freeze()
        self.planner = planner or ScriptedPlanner(made.spec.skills)
        self.world = world(made.spec)
        self.link, self.trace = Link(fault), Trace(subgoal_delay)
        self._inbox = SubgoalInbox()
        self.tick = 0
        self._during: Callable[[], object] | None = None

    # What a supervisor does -----------------------------------------------------------------

    def start(self, instruction: str, seed: int = 0) -> tuple[str, ...]:
        """Begin an episode and decide on its first subgoal; returns the plan.

        Raises:
            PlannerError: the instruction is not understood.
        """
        plan = tuple(self.planner.start(instruction))
        self.tick = 0
        self.actor.start(self.actor.episode + 1, self.actor.epoch + 1, seed)
        self._changed('start')
        self._send(plan[0], -1)
        self._deliver()
        return plan

    def interrupt(self, reason: str = 'interrupt') -> None:
        """Stop at once, in a new epoch; the robot holds until `resume` or `restore`."""
        self.actor.pause(self.actor.epoch + 1, reason)
        self._changed('interrupt')

    def resume(self) -> None:
        """Go on after an interrupt: the current subgoal is told again, an observation is taken."""
        self.actor.go()
        self.actor.ask_again()
        self._tell_again()

    def snapshot(self, boundary: str = 'here') -> tuple[Capsule, dict[str, object]]:
        """Freeze actor and planner between two ticks."""
        return self.actor.snapshot(boundary), self.planner.state()

    def restore(self, frozen: tuple[Capsule, dict[str, object]]) -> None:
        """Go back, as the robot does: a new epoch, an empty queue, a fresh observation."""
        capsule, state = frozen
        self.actor.restore(capsule, self.actor.epoch + 1)
        self.planner.set_state(dict(state))
        self._changed('restore')
        self._tell_again()

    # Ticks ----------------------------------------------------------------------------------

    def run(self, ticks: int) -> Trace:
        """Let so many control ticks pass."""
        for _ in range(ticks):
            self._decide()
            self._deliver()
            if self.actor.wants(self.tick):
                self._infer()
            command = self.actor.act(self.tick)
            self.trace.given.append(Given(command, self.actor.epoch))
            self.world.step(command, self.trace.text_of(command.generation))
            self.tick += 1
        return self.trace

    def during(self, action: Callable[[], object]) -> None:
        """Call `action` in the middle of the next inference, as another thread might."""
        self._during = action

    def post(self, text: str) -> int:
        """Write a subgoal into the mailbox past planner and link; returns its generation."""
        number = len(self.trace.sent) + 1
        message = Message(text, number, self.tick, self.actor.episode, self.actor.epoch)
        self.trace.sent.append(message)
        return self._post(message)

    def race(self, posts: int, seed: int = 0) -> Trace:
        """Hand over `posts` subgoals from another thread, at random phases of the inferences.

        Each post is followed by an inference before the next one; apart from that the two threads
        run as they like. `seed` draws the phases.
        """
        self.trace.raced = True
        rng, begun, wake = random.Random(seed), 0, threading.Condition()
        failed: list[BaseException] = []

        def plan() -> None:
            try:
                for number in range(posts):
                    for _ in range(rng.randrange(2000)):  # any phase of what runs beside this
                        pass
                    self.post((f'{number:05d} ' * self.mailbox.length)[: self.mailbox.length])
                    with wake:
                        wake.wait_for(lambda after=begun + 1: begun >= after)  # type: ignore[misc]
            except BaseException as error:
                failed.append(error)

        thread, interval = threading.Thread(target=plan, name='planner'), sys.getswitchinterval()
        sys.setswitchinterval(1e-5)  # threads take turns in the middle of things
        thread.start()
        try:
            while thread.is_alive():
                with wake:
                    begun += 1
                    wake.notify()
                self._infer()
                self.trace.given.append(Given(self.actor.act(self.tick), self.actor.epoch))
                self.tick += 1
        finally:
            thread.join()
            sys.setswitchinterval(interval)
        if failed:
            raise failed[0]
        return self.trace

    # Inside ---------------------------------------------------------------------------------

    def _decide(self) -> None:
        if self.actor.paused:
            return
        decision = self.planner.decide(self.tick, self.world.facts())
        if decision.kind == NEXT:
            self._send(decision.subgoal, self.tick)

    def _send(self, text: str, tick: int) -> None:
        number = self.planner.index + 1
        message = Message(text, number, tick, self.actor.episode, self.actor.epoch)
        self.trace.sent.append(message)
        self.link.send(message, self.tick)

    def _tell_again(self) -> None:
        if self.planner.index < len(self.planner.plan):
            self._send(self.planner.plan[self.planner.index], -1)

    def _deliver(self) -> None:
        for message in self.link.arrived(self.tick):
            why = self._inbox.refuse(
                (message.episode, message.epoch),
                (self.actor.episode, self.actor.epoch),
                message.number,
                message.tick,
                self.actor.works_on(message.text),
            )
            if why:
                self.trace.refused.append((message, why))
            else:
                self._post(message)

    def _post(self, message: Message) -> int:
        row = encode(message.text, self.mailbox.length)
        generation = self.actor.post(row, message.tick)
        post = Post(generation, row, message, self.tick, self.actor.epoch)
        self.trace.posts.append(post)
        return generation

    def _infer(self) -> None:
        images, proprio = self.world.observe(self.tick)
        epoch, posts = self.actor.epoch, len(self.trace.posts)
        seen = Observation(images, proprio, self.tick, self.actor.episode, epoch)
        self._probe.during, self._during = self._during, None
        chunk = self.actor.infer(seen)
        before, after = self._probe.rows
        self.trace.reads.append(
            Read(self.tick, epoch, chunk.generation, before, after, chunk.actions, posts)
        )

    def _changed(self, why: str) -> None:
        self.link.over(self.tick)
        self.trace.changes.append(Change(self.tick, self.actor.epoch, why))


class _Probe:
    """The policy, and beside it what of the subgoal it could see while it planned."""

    def __init__(self, policy: Any, mailbox: Mailbox) -> None:
        self._policy, self._mailbox = policy, mailbox
        self.rows: tuple[np.ndarray, np.ndarray] = (np.empty(0), np.empty(0))
        self.during: Callable[[], object] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def plan(self) -> np.ndarray:
        """Replay, and look at the live row before and after."""
        before = self._mailbox.row()
        if self.during is not None:
            action, self.during = self.during, None
            action()
        actions: np.ndarray = self._policy.plan()
        self.rows = (before, self._mailbox.row())
        return actions
