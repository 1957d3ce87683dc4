"""The subgoal mailbox: two slots on the device, one writer, a flip between two replays.

The planner writes the slot that is idle, the policy's graphs gather the slot that is live, and
`live` is itself a buffer that the graphs read. So a reader sees the old subgoal or the new one,
never a mix, and handing over a subgoal copies nothing but its row.

A planner on the device does not even tell the host what it chose: its graph ends with `gather`,
and the flip after it shows the choice. Its generation is read when the chunk is there.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from flashrt_ros.contract.buffer import Buffer
from flashrt_ros.contract.context import Context
from flashrt_ros.control.text import LENGTH
from flashrt_ros.errors import FlashrtError

if TYPE_CHECKING:
    from flashrt_ros.capsule.closure import Closure


@dataclass(frozen=True)
class SubgoalPort:
    """What a policy is given to read the subgoal from: ``slots[live]``.

    Attributes:
        slots: int32 [2, L], byte tokens, 0 = padding.
        live: int64 [1], which slot counts.
    """

    slots: Buffer
    live: Buffer


SAME, NOTHING = -1, -2  # what `Mailbox.gather` takes in place of a row's index
_EMPTY = {'live': 0, 'generation': 0, 'posted': 0, 'tick': -1, 'offered': 0, 'unread': 0}


class MailboxError(FlashrtError, RuntimeError):
    """A subgoal would be overwritten before anybody saw it."""


class Mailbox:
    """Hand-over of subgoals from a planner to a policy.

    Args:
        ctx: The context whose device the policy reads from.
        length: Tokens in a row, L.
    """

    def __init__(self, ctx: Context, length: int = LENGTH) -> None:
        self.length = length
        self._ctx = ctx
        self._slots = ctx.buffer('subgoal/slots', (2, length), torch.int32)
        self._live = ctx.buffer('subgoal/live', (1,), torch.int64)
        self._generations = ctx.buffer('subgoal/generation', (2,), torch.int64)
        self._lock = threading.RLock()
        self._host = dict(_EMPTY)

    @property
    def port(self) -> SubgoalPort:
        """The buffers a policy reads."""
        return SubgoalPort(self._slots, self._live)

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """The buffers that `gather` writes."""
        return self._slots, self._generations

    @property
    def generation(self) -> int:
        """Generation of the live subgoal; 0 while none has been posted.

        After the flip of an offer it is read from the device, once.
        """
        with self._lock:
            if self._host['unread']:
                found = int(self._generations.tensor[self._host['live']])
                self._host.update(unread=0, generation=found, posted=found)
            return self._host['generation']

    @property
    def empty(self) -> bool:
        """No subgoal has been posted yet."""
        return not self._host['posted']

    @property
    def pending(self) -> bool:
        """A subgoal has been posted or offered that is not live yet."""
        host = self._host
        return bool(host['offered']) or host['posted'] != host['generation']

    @property
    def posted_tick(self) -> int:
        """Control tick at which the newest subgoal was posted; -1 for before the first tick."""
        return self._host['tick']

    @property
    def settled(self) -> bool:
        """Every posted subgoal has been live, so that an offer overwrites none."""
        host = self._host
        return bool(host['unread']) or host['posted'] == host['generation']

    def post(self, row: np.ndarray | torch.Tensor, tick: int = -1) -> int:
        """Write the idle slot and return its generation. A second post replaces the first.

        Args:
            row: int32 [L], see `control.text.encode`.
            tick: Control tick of the decision.

        Raises:
            ValueError: The row has another length or dtype.
        """
        value = torch.as_tensor(row)
        if tuple(value.shape) != (self.length,) or value.dtype != torch.int32:
            raise ValueError(
                f'subgoal row is {value.dtype} {list(value.shape)}; '
                f'it must be torch.int32 [{self.length}]'
            )
        with self._lock:
            _ = self.generation  # settles what an offer left open
            idle = 1 - self._host['live']
            generation = self._host['posted'] + 1
            with torch.no_grad():
                self._slots.tensor[idle].copy_(value)
                self._generations.tensor[idle] = generation
            self._ctx.current_stream().synchronize()  # the row is there before a flip can be asked
            self._host.update(posted=generation, tick=tick, offered=0)
            return generation

    def gather(self, rows: torch.Tensor, index: torch.Tensor) -> None:
        """Put ``rows[index]`` into the idle slot, on the device alone: the host reads nothing.

        What a planner's graph ends with. A new row has the next generation; `SAME` repeats the
        live row and its generation; `NOTHING` leaves the idle slot as it is.

        Args:
            rows: int32 [N, L].
            index: int64 [1], 0 to N - 1, `SAME` or `NOTHING`.
        """
        slots, live, numbers = self._slots.tensor, self._live.tensor, self._generations.tensor
        idle, new = 1 - live, index >= 0
        kept = torch.where(index == SAME, live, idle)  # the slot that is repeated
        row = rows.index_select(0, index.clamp(min=0))  # [1, L]
        row = torch.where(new[:, None], row, slots.index_select(0, kept))
        number = torch.where(new, numbers.index_select(0, live) + 1, numbers.index_select(0, kept))
        slots.index_copy_(0, idle, row)
        numbers.index_copy_(0, idle, number)

    @contextmanager
    def offering(self, tick: int = -1) -> Iterator[None]:
        """Around the launch of a graph that ends with `gather`; the next flip shows its choice.

        Args:
            tick: Control tick of the decision.

        Raises:
            MailboxError: A posted subgoal is waiting, which the graph would overwrite.
        """
        with self._lock:
            if not self.settled:
                raise MailboxError(
                    f'generation {self._host["posted"]} is posted and not live yet: an offer must '
                    'wait for its flip'
                )
            yield
            self._host.update(offered=1, tick=tick)

    def flip(self) -> bool:
        """Make the posted subgoal live, on the current stream; False when there is none.

        Called by the actor alone, on its replay thread, between two replays.
        """
        with self._lock:
            if not self.pending:
                return False
            idle = 1 - self._host['live']
            with torch.no_grad():
                self._live.tensor.fill_(idle)
            if self._host['offered']:
                self._host.update(live=idle, offered=0, unread=1)
            else:
                self._host.update(live=idle, generation=self._host['posted'])
            return True

    def clear(self) -> None:
        """Forget every subgoal: an episode begins with none."""
        with self._lock, torch.no_grad():
            for buffer in (self._slots, self._live, self._generations):
                buffer.tensor.zero_()
            self._host = dict(_EMPTY)

    def row(self) -> np.ndarray:
        """Return the live row: int32 [L]."""
        with self._lock:
            return self._slots.tensor[self._host['live']].cpu().numpy().copy()

    def holds(self, row: np.ndarray) -> bool:
        """Whether ``row`` is the subgoal posted last, live already or not."""
        with self._lock:
            if not self._host['posted']:
                return False
            slot = 1 - self._host['live'] if self.pending else self._host['live']
            return bool(np.array_equal(self._slots.tensor[slot].cpu().numpy(), row))

    def close_over(self, closure: Closure) -> None:
        """Name everything here that the next step depends on."""
        closure.fixed(self._slots, self._live, self._generations)
        closure.host('subgoal/host', get=self._get, set=self._set)

    def _get(self) -> dict[str, int]:
        with self._lock:
            _ = self.generation
            return dict(self._host)

    def _set(self, state: dict[str, int]) -> None:
        with self._lock:
            self._host = {name: int(state[name]) for name in self._host}
