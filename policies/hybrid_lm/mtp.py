"""A language model that drafts: its own head guesses a few tokens ahead, one pass checks them.

The text is that of plain greedy decode, token by token and logits bit for bit: a guess is taken
only where the model chose the same (Leviathan et al., arXiv 2211.17192, at temperature zero). A
round (guess, check, roll back what was wrong) is one captured graph; the host reads the accepted
tokens and nothing else. Drawn text goes step by step; the head's cache is kept up all the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from flashrt_policies.checkpoint import CheckpointError
from flashrt_policies.hybrid_lm.config import LMConfig
from flashrt_policies.hybrid_lm.layers import Stretch
from flashrt_policies.hybrid_lm.model import HybridLM, TextError
from flashrt_policies.hybrid_lm.mtp_head import draft, remember
from flashrt_policies.hybrid_lm.mtp_verify import verify
from flashrt_policies.hybrid_lm.weights import Weights
from flashrt_policies.kernels import embed, sampling
from flashrt_policies.kernels.linear import head_logits
from flashrt_ros.capsule.cursor import Cursor
from flashrt_ros.contract.graph import ShapeKey

if TYPE_CHECKING:
    from flashrt_ros.capsule.closure import Closure
    from flashrt_ros.contract.context import Context

STOPS = 32  # most tokens that can end a text
MOST_DRAFTS = 8


class Ahead:
    """The buffers of the drafting head.

    Args:
        ctx: where they live.
        config: the model's dimensions.
        capacity: longest text, tokens.
        dtype: of keys and values.
        name: first part of the buffers' names.
        drafts: D, tokens guessed in a round.

    Attributes:
        kv: keys and values [2 * KV, T, D], valid over [0, tokens consumed - 1).
        cursor: the host's count of valid slots.
        rows: int32 [D + 1], the chosen token and the guesses after it.
        chosen: int32 [D + 1], what the model chose after each of them.
        told: int32 [D + 2], how many guesses were right, then `chosen`: what the host reads.
        logits: float32 [D + 1, vocab], after each of them.
        limit: int64 [1], most guesses that a round may take.
        stops: int32 [STOPS], tokens that end the text; -1 for none.
    """

    def __init__(
        self, ctx: Context, config: LMConfig, capacity: int, dtype: torch.dtype, name: str,
        drafts: int,
    ) -> None:  # fmt: skip
        shape = (2 * config.kv_heads, capacity, config.head_dim)
        self.kv = ctx.buffer(f'{name}/mtp kv', shape, dtype)
        self.cursor = Cursor(f'{name}/mtp length')
        self.cursor.attach(self.kv, 1)
        rows = drafts + 1
        self.rows = ctx.buffer(f'{name}/mtp rows', (rows,), torch.int32)
        self.chosen = ctx.buffer(f'{name}/mtp chosen', (rows,), torch.int32)
        self.told = ctx.buffer(f'{name}/mtp told', (rows + 1,), torch.int32)
        self.logits = ctx.buffer(f'{name}/mtp logits', (rows, config.vocab), torch.float32)
        self.limit = ctx.buffer(f'{name}/mtp limit', (1,), torch.int64)
        self.stops = ctx.buffer(f'{name}/mtp stops', (STOPS,), torch.int32)
        self.all = (
            self.kv, self.rows, self.chosen, self.told, self.logits, self.limit, self.stops,
        )  # fmt: skip

    @property
    def keys_values(self) -> tuple[Tensor, Tensor]:
        """Keys and values [KV, T, D]."""
        keys, values = self.kv.tensor.chunk(2)
        return keys, values


class DraftingLM(HybridLM):
    """`HybridLM` whose greedy text comes in rounds of up to D + 1 tokens.

    Args:
        ctx: as `HybridLM`.
        config: as `HybridLM`.
        weights: with `drafts`.
        capacity: as `HybridLM`.
        units: as `HybridLM`.
        name: as `HybridLM`.
        drafts: D, tokens guessed in a round.

    Attributes:
        guessed: tokens guessed so far.
        right: how many of them the model chose too.

    Raises:
        CheckpointError: the weights have no head that drafts.
        TextError: `drafts` is out of range.
    """

    def __init__(
        self,
        ctx: Context,
        config: LMConfig,
        weights: Weights,
        capacity: int = 4096,
        units: Sequence[int] | None = None,
        name: str = 'lm',
        drafts: int = 2,
    ) -> None:
        if weights.drafts is None:
            raise CheckpointError('the weights have no mtp.* head; want them loaded with drafts')
        if not 1 <= drafts <= MOST_DRAFTS:
            raise TextError(f'{drafts} drafts; want 1 to {MOST_DRAFTS}')
        self.drafts, self.drafting = drafts, weights.drafts
        self.ahead = Ahead(ctx, config, capacity, weights.embed.dtype, name, drafts)
        self.ahead.stops.tensor.fill_(-1)
        self._more = self.ahead.all
        self._ending: tuple[int, ...] = ()
        self.guessed = self.right = 0
        super().__init__(ctx, config, weights, capacity, units, name)

    _noting = True

    def _capture(self, name: str) -> None:
        super()._capture(name)
        ports = (*self.state.growing, *self.state.fixed, *self._more)
        more = (self.logits, self._span, self._valid)
        self._rounds = self.ctx.graph(f'{name}/round', writes=(*ports, *more), pool=name)
        self._rounds.capture(ShapeKey(drafts=self.drafts), self._round)

    # What the graphs hold.

    def _remember(self, tokens: Tensor, hidden: Tensor, position: Tensor, valid: Tensor) -> None:
        embedded = self.weights.embed.index_select(0, tokens.long())
        remember(
            self.config, self.drafting, embedded, hidden, *self.ahead.keys_values,
            Stretch(position, valid, self._at.freq),
        )  # fmt: skip

    def _note(self, made: Tensor) -> None:
        """Pair each token of a stretch with the hidden state before it."""
        state, count = self.state, made.shape[0]
        before = torch.cat((state.hidden.tensor, made[:-1]))
        first = (state.position.tensor == 0).long()  # the very first token has none before it
        index = (torch.arange(count, device=made.device) + first).clamp(max=count - 1)
        spot = (state.position.tensor + index).clamp(max=self.capacity - 1)
        self._remember(
            state.history.tensor[0].index_select(0, spot), before.index_select(0, index),
            state.position.tensor - 1 + first, (self._valid.tensor - first).clamp(min=0),
        )  # fmt: skip

    def _step_fused(self) -> None:
        state = self.state
        slot = (state.position.tensor - 1).clamp(min=0)
        some = state.position.tensor.clamp(max=1)
        self._remember(state.token.tensor, state.hidden.tensor, slot, some)
        super()._step_fused()

    def _round(self) -> None:
        """Guess D tokens, choose after each, take what agrees and roll the rest back."""
        state, ahead, weights = self.state, self.ahead, self.weights
        rows, chosen = ahead.rows.tensor, ahead.chosen.tensor
        position, one = state.position.tensor, self._one[1:]
        rows[:1].copy_(state.token.tensor)
        slot, hidden = (position - 1).clamp(min=0), state.hidden.tensor
        for index in range(self.drafts):
            embedded = weights.embed.index_select(0, rows[index : index + 1].long())
            at = Stretch(slot + index, one, self._at.freq)
            hidden = draft(
                self.config, self.drafting, embedded, hidden, *ahead.keys_values, at
            )  # fmt: skip
            head_logits(hidden, weights.head, ahead.logits.tensor[0])
            sampling.greedy(ahead.logits.tensor[0], rows[index + 1 : index + 2])
        embedded = weights.embed.index_select(0, rows.long())
        at = Stretch(position, one, self._at.freq)
        made, kept = verify(self.config, weights, state, embedded, at)
        head_logits(made, weights.head, ahead.logits.tensor)
        for index in range(self.drafts + 1):
            sampling.greedy(ahead.logits.tensor[index], chosen[index : index + 1])
        right = self._agreed(rows[1:], chosen[:-1])
        kept.settle(right)
        state.hidden.tensor.copy_(made.index_select(0, right))
        state.token.tensor.copy_(chosen.index_select(0, right))
        self.logits.tensor.copy_(ahead.logits.tensor.index_select(0, right)[0])
        ahead.told.tensor[:1].copy_(right)
        ahead.told.tensor[1:].copy_(chosen)
        self._remember(rows[1:], made[:-1], position, right)  # guessed states become true ones
        self._span.tensor.copy_(torch.cat((right * 0, right + 1)))
        embed.take(
            self.drafts + 1, rows, self._span.tensor, weights.embed, state.history.tensor[0],
            position, self._valid.tensor, state.digest.tensor, self._power,
        )  # fmt: skip
        embed.advance(self._span.tensor, position, self._valid.tensor)

    def _agreed(self, guessed: Tensor, chosen: Tensor) -> Tensor:
        """Return how many leading guesses were chosen too, end nothing, and are wanted."""
        order = torch.arange(self.drafts, device=guessed.device)
        ends = (chosen[:, None] == self.ahead.stops.tensor).any(1)
        taken = (guessed == chosen) & ~ends & (order < self.ahead.limit.tensor)
        return taken.long().cumprod(0).sum(0, keepdim=True)

    # What callers do.

    def forget(self) -> None:
        """Forget the text, but not how tokens are chosen."""
        super().forget()
        self.ahead.cursor.truncate(0)

    @contextmanager
    def _appending(self, count: int) -> Iterator[None]:
        fewer = int(self.length == 0)  # the first token of a text makes no pair
        with self.ahead.cursor.appending(count - fewer), super()._appending(count):
            yield

    def round(self, most: int) -> list[int]:
        """Consume the chosen token and what was guessed right after it; waits for the device.

        Args:
            most: tokens wanted, 1 or more.

        Returns:
            The tokens chosen, in order, 1 to D + 1 of them; the last is not consumed yet.

        Raises:
            TextError: the text is too long for a whole round, or tokens are to be drawn.
        """
        start, slots = self.length, self.ahead.cursor.length
        if start + self.drafts + 1 > self.capacity or self._drawing:
            raise TextError(
                f'{self.capacity - start} tokens fit, drawn: {self._drawing}; want '
                f'{self.drafts + 1}, greedy'
            )
        self.ahead.limit.tensor.fill_(most - 1)
        with self._appending(self.drafts + 1):
            self._rounds.replay(ShapeKey(drafts=self.drafts))
        right, *chosen = self.ahead.told.tensor.tolist()
        self.state.cursor.truncate(start + right + 1)
        self.ahead.cursor.truncate(slots + right + 1)
        self.guessed += self.drafts
        self.right += right
        return chosen[: right + 1]

    def generate(self, count: int, stops: Collection[int] | None = None) -> Iterator[int]:
        """Yield the chosen token and up to `count` - 1 after it, until one ends the text.

        As `HybridLM.generate`, but a round's tokens are consumed before its first one is yielded:
        a caller that leaves early finds up to D more of them in the state.

        Raises:
            TextError: there are more than 32 `stops`.
        """
        stops = self.config.eos if stops is None else stops
        if self._drawing:
            yield from super().generate(count, stops)
            return
        self._end_with(stops)
        left = count - 1
        yield (token := self.token)
        while left > 0 and token not in stops and self.length < self.capacity:
            if self.length + self.drafts + 1 <= self.capacity:
                told = self.round(left)
            else:
                self.step()
                told = [self.token]
            yield from told
            left, token = left - len(told), told[-1]

    def _end_with(self, stops: Collection[int]) -> None:
        wanted = tuple(sorted(stops))
        if len(wanted) > STOPS:
            raise TextError(f'{len(wanted)} tokens end the text; want at most {STOPS}')
        if wanted != self._ending:
            padded = [*wanted, *[-1] * (STOPS - len(wanted))]
            self.ahead.stops.tensor.copy_(torch.tensor(padded))
            self._ending = wanted

    def close_over(self, closure: Closure) -> None:
        """Name everything the next token depends on, and the next guess."""
        super().close_over(closure)
        closure.append(self.ahead.kv, dim=1, length=self.ahead.cursor)
