"""The end of the deciding graph: the chosen subgoal's row goes where the policy will read it.

The planner's round asks what comes next, whether the subgoal is done, whether it is safe and
whether to stop, in this order. `HandOff.tail` runs in the same graph behind the logits: where all
four agree, and surely enough, the subgoal's row is gathered into the idle slot of the mailbox.
From the decision to the policy's next replay nothing is read by the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flashrt_policies.planner_lm.questions import MOST, QuestionError

if TYPE_CHECKING:
    from flashrt_ros.contract.buffer import Buffer
    from flashrt_ros.contract.context import Context

SAME, NOTHING = -1, -2  # in place of a row: keep the live subgoal, touch nothing
Gather = Callable[[Tensor, Tensor], None]


class HandOff:
    """Tells the policy what the planner decided, on the device.

    Args:
        ctx: the device's context, not frozen yet.
        rows: int32 [N, L], the row of each subgoal that can ever be chosen.
        gather: writes ``rows[index]`` into the mailbox's idle slot, `SAME` and `NOTHING` included.
        writes: the buffers that `gather` writes.
        name: first part of the buffers' names.

    Attributes:
        writes: what a graph that ends with `tail` writes.
    """

    def __init__(
        self,
        ctx: Context,
        rows: NDArray[np.int32],
        gather: Gather,
        writes: Sequence[Buffer],
        name: str = 'handoff',
    ) -> None:
        self._gather = gather
        self._rows = ctx.buffer(f'{name}/rows', rows.shape, torch.int32)
        self._rows.tensor.copy_(torch.from_numpy(rows))
        self._row_of = ctx.buffer(f'{name}/row_of', (MOST,), torch.int64)
        self._count = ctx.buffer(f'{name}/count', (1,), torch.int64)
        self._least = ctx.buffer(f'{name}/least', (1,), torch.float32)
        self._index = ctx.buffer(f'{name}/index', (1,), torch.int64)
        self._place = torch.arange(MOST, device=ctx.device)
        self._pairs = torch.arange(6, device=ctx.device)
        self.writes = (*writes, self._index)

    @property
    def chosen(self) -> int:
        """The row handed over by the last pass, or `SAME` or `NOTHING`; waits for the device."""
        return int(self._index.tensor)

    @contextmanager
    def armed(self, row_of: Sequence[int], least: float) -> Iterator[None]:
        """Around a round whose first four questions are next, done, safe and stop.

        Args:
            row_of: for each option of the first question the row that is handed over when it is
                chosen, or `SAME`.
            least: how sure every answer must be, 0.5 to 1; otherwise all stays the same.

        Raises:
            QuestionError: too many options.
        """
        if len(row_of) > MOST:
            raise QuestionError(f'{len(row_of)} options; want at most {MOST}')
        table = torch.full((MOST,), SAME, dtype=torch.int64)
        table[: len(row_of)] = torch.tensor(row_of)
        self._row_of.tensor.copy_(table)
        self._least.tensor.fill_(least)
        self._count.tensor.fill_(len(row_of))
        try:
            yield
        finally:
            self._count.tensor.zero_()

    def tail(self, tables: object, logits: Tensor) -> None:
        """Gather the row; what a `ForkEngine` runs at the end of every pass.

        Args:
            tables: of the round; not needed.
            logits: float32 [O], the options of all questions one after the other.
        """
        count, least = self._count.tensor, self._least.tensor
        seen = logits[:MOST]
        place = self._place[: len(seen)]
        chances = seen.masked_fill(place >= count, float('-inf')).softmax(0)
        sure, best = torch.where(place < count, chances, 0.0).max(0, keepdim=True)
        at = (count + self._pairs).clamp(max=len(logits) - 1)
        done, safe, stop = logits.index_select(0, at).view(3, 2).softmax(1)[:, 0].split(1)
        agreed = (sure >= least) & (done >= least) & (safe >= least) & (stop <= 1 - least)
        row = torch.where(agreed, self._row_of.tensor.index_select(0, best), SAME)
        index = torch.where(count > 0, row, NOTHING)
        self._index.tensor.copy_(index)
        self._gather(self._rows.tensor, index)
