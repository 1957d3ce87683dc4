"""What the supervisor asks of the brain: begin an episode, freeze it, put it back.

Each runs on the replay thread, between two replays, and holds back the ticks only while the
state that they change is read or written.
"""

from __future__ import annotations

import time
from typing import Any

from flashrt_interfaces.msg import CapsuleInfo
from flashrt_interfaces.srv import BeginEpisode, ListCapsules, Restore, Snapshot
from flashrt_ros.control.shelf import Shelf
from flashrt_ros.errors import FlashrtError
from flashrt_ros.nodes import names
from flashrt_ros.nodes.base import Managed, answers

WAITING = 'waiting for the supervisor'


class BrainServices(Managed):
    """The services of a brain; `PolicyNode` is the node that has them.

    It must have ``actor``, ``worker``, ``ticking`` and ``lease``, and the four methods that a
    planner fills in.
    """

    actor: Any
    worker: Any
    ticking: Any  # a lock: a tick, or a change of everything that a tick reads
    lease: Any

    def instruct(self, instruction: str) -> list[str]:
        """Take an instruction and return its plan; an error changes nothing."""
        return []

    def post_current(self) -> None:
        """Post the plan's first subgoal, before the first tick."""

    def tell_current(self) -> None:
        """Say which subgoal is current, after a restore."""

    def offer_services(self, capsules: int) -> None:
        """Offer them; called when the node is configured."""
        self._shelf: Shelf[Any] = Shelf('the brain', capsules)
        self.offer(BeginEpisode, names.BRAIN_BEGIN, self._begin, aside=True)
        self.offer(Snapshot, names.BRAIN_SNAPSHOT, self._snapshot, aside=True)
        self.offer(Restore, names.BRAIN_RESTORE, self._restore, aside=True)
        self.offer(ListCapsules, names.BRAIN_LIST, self._list, aside=True)

    @property
    def capsules(self) -> list[Any]:
        """Every capsule that is kept, oldest first."""
        return self._shelf.all()

    @answers
    def _begin(self, request: BeginEpisode.Request, response: BeginEpisode.Response) -> str:
        actor = self.actor
        if request.epoch <= actor.epoch:
            raise FlashrtError(f'epoch {request.epoch} must be above epoch {actor.epoch}')

        def job() -> None:
            with self.ticking:
                response.subgoals = self.instruct(request.instruction)
                actor.start(request.episode, request.epoch, request.seed, WAITING)
                self.lease.renew()
                self.post_current()

        self.worker.call(job)
        return f'ready for episode {request.episode}: ' + ', then '.join(response.subgoals)

    @answers
    def _snapshot(self, request: Snapshot.Request, response: Snapshot.Response) -> str:
        def job() -> Any:
            with self.ticking:
                capsule = self.actor.snapshot(request.boundary)
            response.digest = capsule.digest
            return capsule

        capsule = self.worker.call(job)
        response.nbytes = capsule.nbytes
        self._shelf.put(response.digest, request.boundary, capsule)
        return f'{request.boundary!r} frozen at tick {capsule.position}'

    @answers
    def _restore(self, request: Restore.Request, response: Restore.Response) -> str:
        capsule = self._shelf.find(request.capsule)

        def job() -> float:
            began = time.perf_counter()
            with self.ticking:
                self.actor.restore(
                    capsule,
                    request.epoch,
                    request.keep_queue,
                    request.episode,
                    request.seed,
                    paused=WAITING,
                )
                spent = (time.perf_counter() - began) * 1e3
                self.lease.renew()
                self.tell_current()
            return spent

        response.restore_ms = self.worker.call(job)
        return f'restored {capsule.boundary!r} of tick {capsule.position}'

    @answers
    def _list(self, request: ListCapsules.Request, response: ListCapsules.Response) -> str:
        kept = [c for c in self.capsules if c.boundary.startswith(request.prefix)]
        for capsule in kept:
            above = capsule.lineage.parent
            parent = above.capsule if above is not None else None
            info = CapsuleInfo(name=capsule.boundary, digest=capsule.digest)
            info.parent = parent.digest if parent is not None else ''
            info.tick, info.nbytes, info.tier = (
                capsule.position,
                capsule.nbytes,
                capsule.tier or '',
            )
            response.capsules.append(info)
        return f'{len(kept)} capsules'
