"""What the three families share: images to tokens, tokens to keys, noise to actions.

A family (`pi0`, `pi05`, `smolvla`) says what surrounds the stacks: how the prefix is laid out, how
noisy actions become tokens, which norms and layers there are. Everything here works on tensors of
fixed sizes and reads what changes (prompt length, elapsed ticks) from tensors, so that it can be
captured in a graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from flashrt_policies.kernels.vla.frame import Layout, frame, prefix_ranks
from flashrt_policies.kernels.vla.linear import Euler, project_flow
from flashrt_policies.kernels.vla.matrix import Matrix
from flashrt_policies.kernels.vla.rope import rotary
from flashrt_policies.vla import flow
from flashrt_policies.vla.preprocess import fit_images
from flashrt_policies.vla.sizes import Sizes
from flashrt_policies.vla.tensors import Source
from flashrt_policies.vla.tower import ImageTower

if TYPE_CHECKING:
    from flashrt_policies.vla.expert import Expert, Norm
    from flashrt_policies.vla.text import Prefix

THETA = 10_000.0  # base of the rotary positions, in all three
BUCKET = 64  # prompts are padded to multiples of it


class Network:
    """A vision-language-action network; its families fill in what differs.

    Args:
        source: the tensors.
        sizes: of the network.
        views: cameras.
        prompt: tokens of the longest prompt.
        horizon: actions in a chunk.
        steps: Euler steps.
        periods: shortest and longest period of the time's sines.
        float8: store the expert's products in one byte a number.
        every: SmolVLA: one of so many layers attends to the actions as well; 0 = none.
    """

    prefix: Prefix
    expert: Expert
    norm: Norm
    leading = 0  # tokens before the actions in the expert
    trailing = 0  # tokens behind the prompt in the prefix
    centred = True  # how images are padded
    averaged = False  # how they change size
    smol = False

    def __init__(
        self,
        source: Source,
        sizes: Sizes,
        views: int,
        prompt: int,
        horizon: int,
        steps: int,
        periods: tuple[float, float],
        float8: bool = False,
        every: int = 2,
    ) -> None:
        self.float8, self.every = float8, every
        self.sizes, self.views, self.prompt = sizes, views, prompt
        self.horizon, self.steps = horizon, steps
        self.dtype = source.dtype
        self.tower = ImageTower(source, sizes.tower, self.smol)
        self.image_tokens = views * sizes.tower.tokens
        self.layout = Layout(self.image_tokens, prompt, self.trailing)
        self.prefix_tokens = self.layout.tokens
        self.suffix_tokens = horizon + self.leading
        self.suffix = self.suffix_ranks(source.device)
        heads = sizes.text.heads
        span = self.prefix_tokens + self.suffix_tokens
        self.table = rotary(span, heads.dim, THETA, source.device)
        wide = time_table(steps, sizes.expert.width, periods, source.device)
        self._build(source, wide)
        action, width = sizes.action, sizes.expert.width
        out = source.take('model.action_out_proj.weight', action, width)
        self.leave = Matrix(out)
        bias = source.take('model.action_out_proj.bias', action, dtype=torch.float32)
        shift = self.norm.bias  # of the last norm, by step
        self.leave_bias = bias.expand(steps, -1) if shift is None else shift + bias  # [S, A]

    @property
    def kv_shape(self) -> tuple[int, int, int, int, int]:
        """Shape of the keys and values: [L, 2, P + T, KV, D]; the last T rows are the actions'."""
        heads = self.sizes.text.heads
        span = self.prefix_tokens + self.suffix_tokens
        return (self.sizes.text.layers, 2, span, heads.kv, heads.dim)

    # -- what a family fills in --------------------------------------------------------------

    def _build(self, source: Source, times: Tensor) -> None:
        """Read the stacks; `times` are the features of the flow's times, float32 [S, W]."""
        raise NotImplementedError

    def embed(self, features: Tensor, words: Tensor, state: Tensor) -> Tensor:
        """Return the prefix tokens [P, W] of image tokens, prompt tokens [n] and state."""
        raise NotImplementedError

    def open(self, state: Tensor) -> tuple[Tensor, ...]:
        """Return the expert's tokens [n, W] before the actions, the same for every step."""
        return ()

    def enter(self, x: Tensor, step: int, first: tuple[Tensor, ...]) -> Tensor:
        """Return the expert's tokens [T, W] of noisy actions [H, A], float32, at a step.

        Args:
            x: the noisy actions.
            step: which Euler step.
            first: what `open` returned.
        """
        raise NotImplementedError

    def suffix_ranks(self, device: torch.device) -> Tensor:
        """Return who sees whom among the expert's tokens, int32 [T]."""
        raise NotImplementedError

    # -- the three graphs --------------------------------------------------------------------

    def vision(self, images: Sequence[Tensor]) -> Tensor:
        """Return image tokens [V * N, W] of uint8 images [H, W, 3]."""
        side = self.sizes.tower.side
        return self.tower(fit_images(images, side, side, self.centred, self.averaged))

    def positions(self, length: Tensor) -> Tensor:
        """Return positions in the prefix, int32 [P]: padding counts for nothing."""
        index = torch.arange(self.prefix_tokens, device=length.device)
        if self.trailing:
            behind = index - self.prompt + length
            index = torch.where(index >= self.prefix_tokens - self.trailing, behind, index)
        return index.int()

    def buckets(self) -> tuple[int, ...]:
        """Return the prompt lengths that a prefix is captured for, rising; the last is all."""
        if self.trailing:
            return (self.prompt,)
        return (*range(BUCKET, self.prompt, BUCKET), self.prompt)

    def fill(
        self, features: Tensor, words: Tensor, length: Tensor, state: Tensor, kv: Tensor
    ) -> None:
        """Run the prefix: keys and values of images, prompt and state into their cache.

        Args:
            features: [V * N, W].
            words: int32 [n], prompt tokens, whatever behind `length`; n is one of `buckets`, and
                what a longer prompt would fill stays as it is, unseen.
            length: int64 [1], tokens of the prompt that count.
            state: float32 [P], normalised, zeros behind its end.
            kv: see `kv_shape`; the prefix's rows are written.
        """
        x = self.embed(features, words, state)
        rows = x.shape[0]
        keys, values = [layer[0, :rows] for layer in kv], [layer[1, :rows] for layer in kv]
        ranks = prefix_ranks(self.layout, length)[:rows]
        self.prefix(x, self.table.at(self.positions(length)[:rows]), ranks, keys, values)
        self.expert.make_cross(kv, rows)

    def denoise(
        self,
        x: Tensor,
        length: Tensor,
        state: Tensor,
        kv: Tensor,
        previous: Tensor,
        pace: Tensor,
    ) -> None:
        """Integrate the flow from noise to actions, in place.

        Args:
            x: noise [H, A], float32; becomes the chunk in the network's units.
            length: int64 [1], tokens of the prompt that count.
            state: float32 [P].
            kv: keys and values of the prefix; the actions' rows are free to write to.
            previous: the chunk before, float32 [H, A], in the network's units.
            pace: int64 [2], ticks since its observation (0 = there is none), ticks until the new
                chunk takes effect.
        """
        shared = frame(self.layout, self.suffix, length, previous, pace)
        turns = self.table.at(shared.places), self.table.first(self.suffix_tokens)
        ranks = self.suffix, shared.ranks
        first = self.open(state)
        for step, time in enumerate(flow.times(self.steps)):
            scale = self.norm.at(step)[0]
            h = self.enter(x, step, first)
            stream = self.expert(h, step, turns, ranks, kv, scale)
            euler = Euler(x, shared.target, shared.held, time, flow.pull(time), 1.0 / self.steps)
            project_flow(
                stream.behind(self.leading), self.leave, self.leave_bias[step], scale,
                self.expert.eps, euler,
            )  # fmt: skip


def time_table(
    steps: int, width: int, periods: tuple[float, float], device: torch.device
) -> Tensor:
    """Return the features of the flow's times on a device, float32 [S, width]."""
    return flow.time_features(steps, width, *periods).to(device)
