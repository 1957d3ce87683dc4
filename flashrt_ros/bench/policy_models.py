"""Policies with random weights to measure with: full size on a GPU, tiny on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from flashrt_policies.kernels.vla.rope import Heads
from flashrt_policies.vla.folder import Folder
from flashrt_policies.vla.load import SUBGOAL_BYTES, build, spec_of
from flashrt_policies.vla.policy import Parts, VlaPolicy
from flashrt_policies.vla.preprocess import Words, line_prompt
from flashrt_policies.vla.sizes import FULL, Sizes, Stack, Tower
from flashrt_policies.vla.statistics import Scale
from flashrt_policies.vla.tensors import RandomSource
from flashrt_ros.contract.context import Context
from flashrt_ros.control.mailbox import Mailbox
from flashrt_ros.control.text import encode

# Longest prompt in tokens, as the families are trained.
PROMPTS = {'pi0': 48, 'pi05': 200, 'smolvla': 48}
HORIZON, STEPS = 50, 10
TASK = 'put the small red block from the left drawer on the green plate'  # 64 tokens, as letters
TINY = Sizes(
    Tower(32, 1, 1, 32, 4, 16, 1, 40),
    Stack(40, 2, Heads(2, 1, 16), 48),
    Stack(24, 2, Heads(2, 1, 16), 32),
    300, 8, 8,
)  # fmt: skip


class Letters:
    """A stand-in for a tokenizer: every letter is a token."""

    def no_padding(self) -> None:
        """Pads nothing."""

    def no_truncation(self) -> None:
        """Cuts nothing."""

    def encode(self, text: str) -> Any:
        """Return something with `ids`."""
        return type('Encoded', (), {'ids': [ord(letter) % 256 for letter in text]})


def stand_in(family: str, views: int, tiny: bool, steps: int = STEPS) -> Folder:
    """Return what a folder of this family would say."""
    side = 16 if tiny else 224
    return Folder(
        path=Path('random'), family=family, config={},
        cameras={f'view{i}': (side, side) for i in range(views)}, state_dim=8, action_dim=8,
        horizon=10 if tiny else HORIZON, steps=2 if tiny else steps, modes={}, eps=0.0,
        prompt_tokens=PROMPTS[family], tokenizer='', files=(),
    )  # fmt: skip


def plain(size: int) -> Scale:
    """Return statistics that change nothing."""
    one, zero = np.ones(size, np.float32), np.zeros(size, np.float32)
    return Scale('IDENTITY', zero, one, one, -one, one)


class Measured:
    """A policy on a device of its own context, with an observation and a task.

    Args:
        family: 'pi0', 'pi05' or 'smolvla'.
        views: cameras.
        device: where.
        dtype: what it computes in; by default bfloat16 on a GPU.
        float8: the expert's products in one byte a number.
        seed: of the weights.
        steps: of the flow, at full size.
    """

    def __init__(
        self,
        family: str,
        views: int,
        device: str,
        dtype: torch.dtype | None = None,
        float8: bool = False,
        seed: int = 0,
        steps: int = STEPS,
    ) -> None:
        tiny = device == 'cpu'
        self.family, self.views = family, views
        self.ctx = Context(device)
        self.sizes = TINY if tiny else FULL[family]
        dtype = dtype or (torch.float32 if tiny else torch.bfloat16)
        source = RandomSource(self.ctx.device, dtype, seed)
        folder = stand_in(family, views, tiny, steps)
        with torch.no_grad():
            network, digest = build(family, source, self.sizes, folder, float8)
        state, action = plain(folder.state_dim), plain(folder.action_dim)
        words = Words(Letters(), folder.prompt_tokens, self.sizes.vocabulary)
        parts = Parts(
            spec_of(folder, {'STATE': state, 'ACTION': action}),
            network, state, action, words,
            line_prompt, digest, family,
        )  # fmt: skip
        self.mailbox = Mailbox(self.ctx, SUBGOAL_BYTES)
        self.policy = VlaPolicy(self.ctx, parts, self.mailbox.port)
        self.policy.reset(seed)
        self.say(TASK[: PROMPTS[family] - 1])
        rng = np.random.default_rng(seed)
        spec = self.policy.spec
        self.images = {
            name: rng.integers(0, 256, (*spec.hw(name), 3), np.uint8) for name in spec.cameras
        }
        self.proprio = rng.standard_normal(spec.proprio_dim).astype(np.float32)

    def say(self, text: str) -> None:
        """Make a task the live subgoal."""
        self.mailbox.post(encode(text, SUBGOAL_BYTES))
        self.mailbox.flip()

    def act(self) -> np.ndarray:
        """From an observation on the host to a chunk on the host."""
        self.policy.observe(self.images, self.proprio)
        return self.policy.plan()

    def replay(self) -> None:
        """Run the three graphs on what the buffers hold; does not wait."""
        self.policy.replay()

    def wait(self) -> None:
        """The host waits for the device."""
        self.ctx.current_stream().synchronize()


def operations(
    sizes: Sizes, family: str, views: int, prompt: int, float8: bool = False
) -> dict[str, float]:
    """Return operations and bytes of one chunk, each matrix read once per use.

    Args:
        sizes: of the network.
        family: says what the expert attends to, and what the prefix ends with.
        views: cameras.
        prompt: tokens of the prompt, padding included.
        float8: the expert's numbers take one byte each instead of two.
    """
    tower, text, expert = sizes.tower, sizes.text, sizes.expert
    patches = views * (tower.side // tower.patch) ** 2
    per_view = patches // views
    image = tower.layers * (4 * tower.width**2 + 2 * tower.width * tower.mlp)
    prefix = views * tower.tokens + prompt + (family == 'smolvla')
    suffix = HORIZON + (family == 'pi0')
    heads = text.heads

    def stack(kind: Stack) -> int:
        rows = (2 * heads.queries + 2 * heads.kv) * heads.dim
        return kind.layers * (rows * kind.width + 3 * kind.width * kind.mlp)

    width = heads.queries * heads.dim
    before = 2 * patches * image + 4 * tower.layers * patches * per_view * tower.width
    before += 2 * prefix * stack(text) + 4 * text.layers * prefix**2 * width
    step = 2 * suffix * stack(expert) + 4 * expert.layers * suffix * (prefix + suffix) * width
    return {
        'prefix operations': before,
        'prefix bytes': 2.0 * (image + stack(text)),
        'step operations': step,
        'step bytes': (1.0 if float8 else 2.0) * stack(expert),
    }
