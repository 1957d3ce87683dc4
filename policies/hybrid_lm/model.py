"""The language model as captured graphs: prefill units, one decode graph, one head.

Everything that changes from call to call (how many tokens, where they stand, which noise) lies in
device buffers, so one graph serves every position. The state is an `LMState`; name it in a
closure with `close_over` and it can be frozen, restored and forked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import torch

from flashrt_policies.hybrid_lm import schedule
from flashrt_policies.hybrid_lm.config import LMConfig
from flashrt_policies.hybrid_lm.layers import Stretch, run_layers
from flashrt_policies.hybrid_lm.state import LMState
from flashrt_policies.hybrid_lm.weights import Weights
from flashrt_policies.kernels import embed, sampling, sources
from flashrt_policies.kernels.attention import inverse_frequencies
from flashrt_policies.kernels.gated_delta import CHUNK
from flashrt_policies.kernels.linear import head_logits
from flashrt_ros.contract.graph import ShapeKey
from flashrt_ros.errors import FlashrtError

if TYPE_CHECKING:
    from flashrt_ros.capsule.closure import Closure
    from flashrt_ros.contract.buffer import Buffer
    from flashrt_ros.contract.context import Context

Tokens: TypeAlias = 'Sequence[int] | torch.Tensor'  # one dimension, integers, on the host
KERNELS = 'hybrid-lm/5'  # grows when other launches of the kernels change bits
GREEDY, DRAWN = ShapeKey(choice='greedy'), ShapeKey(choice='drawn')


class TextError(FlashrtError):
    """Tokens that this model cannot take: none, too many, or outside the vocabulary."""


@dataclass(frozen=True)
class Choice:
    """How the next token is chosen.

    Attributes:
        seed: of the generator.
        counter: blocks drawn from the generator.
        temperature: zero chooses the likeliest token; above zero, tokens are drawn.
        min_p: when drawing, leave out tokens less likely than this share of the likeliest.
    """

    seed: int
    counter: int
    temperature: float
    min_p: float


class HybridLM:
    """One model and one text's state on one device.

    Args:
        ctx: the device's context, not frozen yet; the graphs are captured here.
        config: dimensions.
        weights: parameters, on the context's device.
        capacity: longest text, tokens.
        units: tokens per prefill replay, ascending multiples of 64; None for the device's own.
        name: first part of the names of buffers and graphs.

    Attributes:
        chunk: C; at a position that is a multiple of it, restoring and going on gives the bits
            of a cold prefill.
        state: the text's buffers.
        logits: float32 [vocab], of the last token consumed.
    """

    chunk = CHUNK
    _more: tuple[Buffer, ...] = ()  # what a model that does more than this one writes
    _noting = False  # whether `_note` wants to see every stretch

    def __init__(
        self,
        ctx: Context,
        config: LMConfig,
        weights: Weights,
        capacity: int = 4096,
        units: Sequence[int] | None = None,
        name: str = 'lm',
    ) -> None:
        self.ctx, self.config, self.weights, self.name = ctx, config, weights, name
        cuda = ctx.device.type == 'cuda'
        default = schedule.CUDA_UNITS if cuda else schedule.CPU_UNITS
        fitting = [unit for unit in (units or default) if unit < capacity + CHUNK]
        self.units = tuple(fitting or [CHUNK])
        self.capacity = capacity
        self.state = LMState(ctx, config, capacity, weights.embed.dtype, name)
        self.logits = ctx.buffer(f'{name}/logits', (config.vocab,), torch.float32)
        self._prompt = ctx.buffer(f'{name}/prompt', (capacity,), torch.int32)
        self._span = ctx.buffer(f'{name}/span', (2,), torch.int64)
        self._valid = ctx.buffer(f'{name}/valid', (1,), torch.int64)
        device = ctx.device
        self._power = embed.powers(max(self.units)).to(device)
        scaling = config.rope_scaling
        freq = inverse_frequencies(config.rotary_dim, config.rope_theta, scaling)
        self._at = Stretch(self.state.position.tensor, self._valid.tensor, freq.to(device))
        self._one = torch.tensor([0, 1], device=device)
        self._drawing = False
        self.reset()
        self._capture(name)

    def _capture(self, name: str) -> None:
        state = self.state
        ports = (*state.growing, *state.fixed, *self._more, self.logits, self._span, self._valid)
        # The graphs never run at once, so they share scratch memory.
        self._prefill = self.ctx.graph(
            f'{name}/prefill',
            reads=(self._prompt,),
            writes=ports,
            bound=len(self.units),
            pool=name,
        )
        self._head = self.ctx.graph(f'{name}/head', writes=ports, pool=name)
        self._decode = self.ctx.graph(f'{name}/decode', writes=(*ports, self._prompt), pool=name)
        for key in (GREEDY, DRAWN):
            self._head.capture(key, partial(self._choose, key is DRAWN))
            self._decode.capture(key, partial(self._step, key is DRAWN))
        for unit in reversed(self.units):
            self._prefill.capture(ShapeKey(tokens=unit), partial(self._consume, unit))

    # What the graphs hold.

    def _consume(self, rows: int) -> None:
        """Consume up to `rows` tokens of the prompt and keep the last one's hidden state."""
        state = self.state
        x = embed.take(
            rows, self._prompt.tensor, self._span.tensor, self.weights.embed,
            state.history.tensor[0], state.position.tensor, self._valid.tensor,
            state.digest.tensor, self._power,
        )  # fmt: skip
        if self.ctx.device.type == 'cuda':
            self._consume_fused(x)
            return
        made = run_layers(self.config, self.weights, state, x, self._at)
        self._note(made)
        state.hidden.tensor.copy_(made.index_select(0, (self._valid.tensor - 1).clamp(min=0)))
        embed.advance(self._span.tensor, state.position.tensor, self._valid.tensor)

    def _consume_fused(self, x: torch.Tensor) -> None:
        from flashrt_policies.hybrid_lm.step import consume

        consume(
            self.config, self.weights, self.state, x, self._at, self._span.tensor,
            self._note if self._noting else None,
        )  # fmt: skip

    def _note(self, made: torch.Tensor) -> None:
        """See the last hidden states [M, hidden] of a stretch, before its position moves."""

    def _choose(self, drawn: bool) -> None:
        """Turn the hidden state into logits and choose the next token."""
        state = self.state
        head_logits(state.hidden.tensor, self.weights.head, self.logits.tensor)
        if drawn:
            sampling.draw(
                self.logits.tensor, state.token.tensor, state.temperature.tensor,
                state.min_p.tensor, state.seed.tensor, state.counter.tensor,
            )  # fmt: skip
        else:
            sampling.greedy(self.logits.tensor, state.token.tensor)

    def _step(self, drawn: bool) -> None:
        """Consume the token chosen last and choose the next."""
        if self.ctx.device.type == 'cuda':
            self._step_fused()
        else:
            self._prompt.tensor[:1].copy_(self.state.token.tensor)
            self._span.tensor.copy_(self._one)
            self._consume(1)
        self._choose(drawn)

    def _step_fused(self) -> None:
        from flashrt_policies.hybrid_lm.step import decode

        decode(self.config, self.weights, self.state, self._at)

    # What callers do.

    def reset(self, seed: int = 0, temperature: float = 0.0, min_p: float = 0.0) -> None:
        """Forget the text and say how tokens are chosen.

        Args:
            seed: of the generator.
            temperature: zero chooses the likeliest token; above zero, tokens are drawn.
            min_p: when drawing, leave out tokens less likely than this share of the likeliest.

        Raises:
            TextError: a value is out of its range.
        """
        self.forget()
        self.choice = Choice(seed, 0, temperature, min_p)

    def forget(self) -> None:
        """Forget the text, but not how tokens are chosen."""
        state = self.state
        for buffer in state.fixed:
            if buffer not in state.choosing:
                buffer.tensor.zero_()
        state.cursor.truncate(0)

    @property
    def choice(self) -> Choice:
        """How the next token is chosen; reading it waits for the device."""
        state = self.state
        temperature = float(state.temperature.tensor) if self._drawing else 0.0
        return Choice(
            int(state.seed.tensor), int(state.counter.tensor), temperature,
            float(state.min_p.tensor),
        )  # fmt: skip

    @choice.setter
    def choice(self, choice: Choice) -> None:
        if not 0.0 <= choice.temperature < float('inf') or not 0.0 <= choice.min_p <= 1.0:
            raise TextError(
                f'temperature {choice.temperature}, min_p {choice.min_p}; '
                'want 0 or more, and 0 to 1'
            )
        state = self.state
        state.seed.tensor.fill_(choice.seed)
        state.counter.tensor.fill_(choice.counter)
        state.temperature.tensor.fill_(choice.temperature)
        state.min_p.tensor.fill_(choice.min_p)
        self._drawing = choice.temperature > 0

    @property
    def length(self) -> int:
        """Tokens consumed."""
        return self.state.cursor.length

    @property
    def tokens(self) -> list[int]:
        """The tokens consumed, read back from the device."""
        return self.state.history.tensor[0, : self.length].tolist()

    @property
    def token(self) -> int:
        """The token chosen to come next, read back from the device."""
        return int(self.state.token.tensor.item())

    def consume(self, tokens: Tokens) -> None:
        """Take tokens into the state without choosing what comes next.

        Raises:
            TextError: there are none, they do not fit, or one is outside the vocabulary; nothing
                was changed.
        """
        prompt = self.check(tokens, self.capacity - self.length)
        count = len(prompt)
        self._prompt.tensor[:count].copy_(prompt)
        self._span.tensor.copy_(torch.tensor([0, count]))
        with self._appending(count):
            for unit, _ in schedule.cut(count, self.units):
                self._prefill.replay(ShapeKey(tokens=unit))

    def _appending(self, count: int) -> AbstractContextManager[None]:
        return self.state.cursor.appending(count)

    def check(self, tokens: Tokens, room: int) -> torch.Tensor:
        """Return tokens as int32 [M].

        Raises:
            TextError: there are none, more than `room`, or one is outside the vocabulary.
        """
        if not 0 < len(tokens) <= room:
            raise TextError(
                f'{len(tokens)} tokens; want 1 to {room} (capacity {self.capacity}, '
                f'{self.capacity - room} taken)'
            )
        prompt = torch.as_tensor(tokens)
        low, high = int(prompt.min()), int(prompt.max())
        if low < 0 or high >= self.config.vocab:
            raise TextError(f'token {low if low < 0 else high}; want 0 to {self.config.vocab - 1}')
        return prompt.int()

    def choose(self) -> None:
        """Compute the logits of the last token consumed and choose the next."""
        self._head.replay(DRAWN if self._drawing else GREEDY)

    def append(self, tokens: Tokens) -> None:
        """Consume tokens and choose the next one; does not wait for the device.

        Raises:
            TextError: as `consume`.
        """
        self.consume(tokens)
        self.choose()

    def step(self) -> None:
        """Consume the chosen token and choose the next; does not wait for the device.

        Raises:
            TextError: the text is as long as it may get.
        """
        if self.length >= self.capacity:
            raise TextError(f'the text has {self.length} tokens; want a larger capacity')
        with self._appending(1):
            self._decode.replay(DRAWN if self._drawing else GREEDY)

    def generate(self, count: int, stops: Collection[int] | None = None) -> Iterator[int]:
        """Yield the chosen token and up to `count` - 1 after it, until one ends the text.

        Call `append` first. The last token yielded is chosen but not consumed.

        Args:
            count: most tokens yielded.
            stops: tokens that end the text; None for the model's own.
        """
        stops = self.config.eos if stops is None else stops
        for index in range(count):
            if index:
                if self.length >= self.capacity:
                    return
                self.step()
            token = self.token
            yield token
            if token in stops:
                return

    def close_over(self, closure: Closure) -> None:
        """Name everything the next token depends on."""
        self.state.close_over(closure)
        closure.host(f'{self.name}/choice', self._get_choice, self._set_choice)

    def _get_choice(self) -> dict[str, bool]:
        return {'drawing': self._drawing}

    def _set_choice(self, value: dict[str, bool]) -> None:
        self._drawing = bool(value['drawing'])

    def fingerprint(self) -> dict[str, object]:
        """Return what a capsule of this model must match, for `Fingerprint.of`."""
        return {
            'weights': self.weights.digest,
            'architecture': self.config.describe(),
            'dtype': str(self.weights.embed.dtype),
            'kernels': f'{KERNELS} {sources.digest()[:16]}',
        }
