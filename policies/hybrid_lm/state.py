"""The buffers that are one text's state: everything the next token depends on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from flashrt_policies.hybrid_lm.config import LMConfig
from flashrt_ros.capsule.cursor import Cursor

if TYPE_CHECKING:
    from flashrt_ros.capsule.closure import Closure
    from flashrt_ros.contract.buffer import Buffer
    from flashrt_ros.contract.context import Context


class LMState:
    """State of one text, in buffers named ``NAME/...``.

    Args:
        ctx: where the buffers live.
        config: the model's dimensions.
        capacity: T, longest text in tokens.
        dtype: of keys, values, window and hidden state; the recurrent state is float32.
        name: first part of the buffers' names.

    Attributes:
        kv: keys and values of the full layers [F * 2 * KV, T, D], valid over [0, position).
        recurrent: float32 [L, HV, K, V], states of the linear layers.
        window: [L, W - 1, C], last inputs of their convolutions.
        history: int32 [1, T], tokens consumed, valid over [0, position).
        position: int64 [1], number of tokens consumed.
        hidden: [1, hidden], normed last hidden state of the last token consumed.
        token: int32 [1], the token chosen to come next, not consumed yet.
        digest: int64 [1], hash of the history (`kernels.embed.digest`).
        seed: int64 [1] of the generator.
        counter: int64 [1], blocks drawn from the generator.
        temperature: float32 [1] of the seeded draw.
        min_p: float32 [1] of the seeded draw.
        cursor: the host's count of consumed tokens; equals `position` whenever the device is idle.
    """

    def __init__(
        self, ctx: Context, config: LMConfig, capacity: int, dtype: torch.dtype, name: str
    ) -> None:
        self.config = config
        c = config

        def buffer(label: str, shape: tuple[int, ...], kind: torch.dtype) -> Buffer:
            return ctx.buffer(f'{name}/{label}', shape, kind)

        self.kv: Buffer | None = None
        self.recurrent: Buffer | None = None
        self.window: Buffer | None = None
        if c.full_layers:
            rows = c.full_layers * 2 * c.kv_heads
            self.kv = buffer('kv', (rows, capacity, c.head_dim), dtype)
        if c.linear_layers:
            matrix = (c.linear_layers, c.lin_v_heads, c.lin_k_dim, c.lin_v_dim)
            self.recurrent = buffer('recurrent', matrix, torch.float32)
            series = (c.linear_layers, c.conv_width - 1, c.conv_dim)
            self.window = buffer('window', series, dtype)
        self.history = buffer('history', (1, capacity), torch.int32)
        self.position = buffer('position', (1,), torch.int64)
        self.hidden = buffer('hidden', (1, c.hidden), dtype)
        self.token = buffer('token', (1,), torch.int32)
        self.digest = buffer('digest', (1,), torch.int64)
        self.seed = buffer('seed', (1,), torch.int64)
        self.counter = buffer('counter', (1,), torch.int64)
        self.temperature = buffer('temperature', (1,), torch.float32)
        self.min_p = buffer('min_p', (1,), torch.float32)
        self.cursor = Cursor(f'{name}/length')
        for grown in self.growing:
            self.cursor.attach(grown, 1)

    @property
    def growing(self) -> tuple[Buffer, ...]:
        """Buffers that are appended to, valid over [0, position) along dimension 1."""
        return tuple(b for b in (self.kv, self.history) if b is not None)

    @property
    def fixed(self) -> tuple[Buffer, ...]:
        """Buffers that are rewritten whole."""
        return tuple(
            b
            for b in (
                self.recurrent, self.window, self.position, self.hidden, self.token, self.digest,
                self.seed, self.counter, self.temperature, self.min_p,
            )
            if b is not None
        )  # fmt: skip

    @property
    def choosing(self) -> tuple[Buffer, ...]:
        """Those of `fixed` that say how the next token is chosen."""
        return (self.seed, self.counter, self.temperature, self.min_p)

    def keys_values(self, index: int) -> tuple[Tensor, Tensor]:
        """Return keys and values [KV, T, D] of the index-th full layer."""
        assert self.kv is not None
        n = self.config.kv_heads
        part = self.kv.tensor[2 * n * index : 2 * n * (index + 1)]
        return part[:n], part[n:]

    def close_over(self, closure: Closure) -> None:
        """Name every buffer in `closure`."""
        closure.fixed(*self.fixed)
        for buffer in self.growing:
            closure.append(buffer, dim=1, length=self.cursor)
