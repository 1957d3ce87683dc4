"""Writer: capsules to disk, by the calling thread or behind it, one after the other.

A capsule that is being written keeps its blocks, whatever else happens: hashing and writing need
no lock. Behind the caller it stays in its tiers until its file is safe, then it leaves those of
memory. When writing fails, it stays where it is, and the next `wait` says why. A process that
ends by itself finishes what it was asked to write; one that is killed leaves whole files or none.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from flashrt_ros.capsule.capsule import Capsule
from flashrt_ros.capsule.disk import Disk
from flashrt_ros.capsule.memory import Memory
from flashrt_ros.capsule.roster import Roster
from flashrt_ros.capsule.segment import MEMORY


class Writer:
    """The way to disk of one registry.

    Args:
        disk: the tier.
        memory: where the bytes come from.
        roster: knows who is at work and who is leaving.
        lock: of the registry; `wait` lets go of it.
    """

    def __init__(self, disk: Disk, memory: Memory, roster: Roster, lock: threading.RLock) -> None:
        self._disk = disk
        self._memory = memory
        self._roster = roster
        self._lock = lock
        self._turn = threading.Condition(lock)
        self._pool = ThreadPoolExecutor(1, 'capsule-writer')
        self._pool.submit(int)  # its thread starts here, not within the first demotion
        self.pending: list[Capsule] = []  # asked for and not done
        self._staying: set[int] = set()  # of these, who was used meanwhile
        self._failures: list[Exception] = []

    def commit(self, capsule: Capsule) -> str:
        """Write a capsule; it stays in its tiers too. Returns its digest when the file is safe.

        Raises:
            BudgetError: the quota does not allow it.
        """
        with self._lock:
            while capsule in self.pending and not self._in_pool():
                self._turn.wait()
            if 'disk' in capsule.tiers:
                return capsule.digest
        with self._roster.at_work(capsule):
            digest = capsule.digest
            self._disk.write(capsule, digest, self._memory.reader(str(capsule.tier)))
        with self._lock:
            capsule.tiers.add('disk')
            self._roster.keep(capsule)
            capsule.renew_holds()
        return digest

    def submit(self, capsule: Capsule) -> None:
        """Write a capsule behind the caller; afterwards it leaves the tiers of memory."""
        with self._lock:
            self._staying.discard(id(capsule))
            if capsule in self.pending:
                return
            self.pending.append(capsule)
            self._roster.begin(capsule)
            self._pool.submit(self._behind, capsule)

    def stay(self, capsule: Capsule) -> None:
        """It is in use again: it is written, and leaves no tier."""
        if capsule in self.pending:
            self._staying.add(id(capsule))

    def wait(self) -> None:
        """Return when nothing is pending; call it with the lock, which others get meanwhile."""
        while self.pending:
            self._turn.wait()

    def wait_for_next(self) -> None:
        """Return when one more is done; call it with the lock, which others get meanwhile."""
        before = len(self.pending)
        while self.pending and len(self.pending) >= before:
            self._turn.wait()

    def tell(self) -> None:
        """Raise why a capsule could not be written behind; each reason once."""
        if self._failures:
            raise self._failures.pop(0)

    def _in_pool(self) -> bool:
        return threading.current_thread().name.startswith('capsule-writer')

    def _behind(self, capsule: Capsule) -> None:
        failure: Exception | None = None
        try:
            self.commit(capsule)
        except Exception as error:
            failure = error
        with self._lock:
            self.pending.remove(capsule)
            self._roster.finish(capsule)
            if failure is not None:
                self._failures.append(failure)
            elif not capsule.pinned and id(capsule) not in self._staying:
                for tier in MEMORY:
                    if tier in capsule.tiers:
                        self._roster.leave_after_copies(capsule, tier)
            self._staying.discard(id(capsule))
            self._turn.notify_all()
