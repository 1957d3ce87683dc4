"""VlaPolicy: a network bound to static buffers and three graphs, each of its own cadence.

``vision`` (images to tokens) runs when something was seen; ``prefix`` (image tokens, prompt and
state to keys and values) when that or the prompt has changed; ``denoise`` (noise to actions, all
Euler steps) for every chunk. They hand over through shared buffers. A new subgoal is a row in the
subgoal port's buffer: the next `plan` tokenises it and runs the prefix alone.

What the next chunk depends on, and a capsule therefore holds: image tokens, state, keys and values
with the length of their prompt, the previous chunk and its pace, the noise's seed and counter, and
on the host the prompt that the keys are of. Everything else is written before it is read.

Actions may be offsets from the state that was seen. The `anchor` is that state in the units of
the network's actions; the previous chunk is kept with its anchor added, so that a new chunk is
guided by where the robot was going, wherever it is now.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from flashrt_policies.base import PolicySpec, SubgoalPort, check_observation
from flashrt_policies.checkpoint import CheckpointError
from flashrt_policies.kernels import sources
from flashrt_policies.kernels.vla import noise as vla_noise
from flashrt_policies.vla import aloha
from flashrt_policies.vla.network import Network
from flashrt_policies.vla.preprocess import Words
from flashrt_policies.vla.statistics import Scale
from flashrt_ros.contract.context import Context
from flashrt_ros.contract.graph import ShapeKey
from flashrt_ros.contract.plan import Plan

if TYPE_CHECKING:
    from flashrt_ros.capsule.closure import Closure

KERNELS = 'vla/8'  # raised whenever the same weights and noise would act differently
Prompt = Callable[[str, np.ndarray], str]


@dataclass(frozen=True)
class Parts:
    """What a policy is made of, besides its context.

    Attributes:
        spec: what it sees and does.
        network: on the context's device.
        state: how the proprioception is normalised.
        action: how the actions are.
        words: the tokenizer.
        prompt: a task and a normalised state to the text the network reads.
        digest: of the weights.
        name: of the family and what else decides how it acts.
        relative: indices of the actions that are offsets from the state.
        aloha: states and actions are ALOHA's; see `vla.aloha`.
    """

    spec: PolicySpec
    network: Network
    state: Scale
    action: Scale
    words: Words
    prompt: Prompt
    digest: str
    name: str
    relative: tuple[int, ...] = ()
    aloha: bool = False

    def seen(self, proprio: np.ndarray) -> np.ndarray:
        """Return the proprioception [P] as the network knows it."""
        return aloha.seen(proprio).astype(np.float32) if self.aloha else np.asarray(proprio)

    @property
    def restoring(self) -> tuple[np.ndarray, np.ndarray]:
        """Gain and shift, float32 [A] each, from the network's numbers to the robot's actions."""
        gain, shift = self.action.restoring
        if not self.aloha:
            return gain, shift
        turn, move = aloha.done()
        return gain * turn, shift * turn + move


class VlaPolicy:
    """A policy for the robot loop; see `flashrt_policies.base.Policy`.

    Args:
        ctx: the device; its graphs are captured here.
        parts: what the policy is made of.
        subgoal: where the subgoal arrives; slots int32 [2, L], live int64 [1].

    Raises:
        CheckpointError: the subgoal port's rows are longer or shorter than the spec's.
    """

    def __init__(self, ctx: Context, parts: Parts, subgoal: SubgoalPort) -> None:
        self.spec, self._parts, self._port = parts.spec, parts, subgoal
        spec, net = parts.spec, parts.network
        if subgoal.slots.shape[-1] != spec.subgoal_length:
            raise CheckpointError(
                f'the subgoal buffer has rows of {subgoal.slots.shape[-1]} bytes; '
                f'want {spec.subgoal_length}'
            )
        wide, whole = torch.float32, torch.int64
        sizes, dtype = net.sizes, net.dtype
        self.images = {
            name: ctx.buffer(f'vla/image/{name}', (*spec.hw(name), 3), torch.uint8)
            for name in spec.cameras
        }
        self.features = ctx.buffer('vla/features', (net.image_tokens, sizes.tower.out), dtype)
        self.words = ctx.buffer('vla/words', (net.prompt,), torch.int32)
        self.length = ctx.buffer('vla/length', (1,), whole)
        self.state = ctx.buffer('vla/state', (max(1, sizes.state),), wide)
        self.kv = ctx.buffer('vla/kv', net.kv_shape, dtype)
        self.seed = ctx.buffer('vla/seed', (1,), whole)
        self.counter = ctx.buffer('vla/counter', (1,), whole)
        self.chunk = ctx.buffer('vla/chunk', (spec.horizon, sizes.action), wide)
        self.previous = ctx.buffer('vla/previous', (spec.horizon, sizes.action), wide)
        self.pacing = ctx.buffer('vla/pace', (2,), whole)
        self.anchors = tuple(  # one where actions are offsets
            ctx.buffer('vla/anchor', (sizes.action,), wide) for _ in parts.relative[:1]
        )
        self.action = ctx.buffer('vla/action', (spec.horizon, spec.action_dim), wide)
        self._capture(ctx)
        self._ran: list[str] = []  # graphs run since the newest chunk
        self._last: tuple[str, ...] = ()  # and those it took
        self._room = max(net.buckets())  # prompt tokens the prefix ran for
        self._prompt = ''  # what the keys and values are of
        self._forget()

    def _capture(self, ctx: Context) -> None:
        net, used = self._parts.network, self.spec.action_dim
        images = [buffer.tensor for buffer in self.images.values()]
        gain, shift = (
            torch.from_numpy(np.ascontiguousarray(part)).to(ctx.device)
            for part in self._parts.restoring
        )

        def vision() -> None:
            self.features.tensor.copy_(net.vision(images))

        def prefix(tokens: int) -> None:
            net.fill(
                self.features.tensor, self.words.tensor[:tokens], self.length.tensor,
                self.state.tensor, self.kv.tensor,
            )  # fmt: skip

        def denoise() -> None:
            x, before = self.chunk.tensor, self.previous.tensor
            vla_noise.normal_(x, self.seed.tensor, self.counter.tensor)
            for anchor in self.anchors:
                before = before - anchor.tensor
            net.denoise(
                x, self.length.tensor, self.state.tensor, self.kv.tensor, before,
                self.pacing.tensor,
            )  # fmt: skip
            for anchor in self.anchors:
                x.add_(anchor.tensor)
            self.previous.tensor[:, :used].copy_(x[:, :used])
            self.pacing.tensor.zero_()
            self.action.tensor.copy_(x[:, :used] * gain + shift)

        key = ShapeKey(views=len(images), steps=net.steps, horizon=net.horizon)
        graph = ctx.graph('vla/vision', self.images, {'features': self.features})
        graph.capture(key, vision)
        self._vision = Plan(ctx, 'vla/vision')
        self._vision.add('vision', graph, key)
        common = (self.length, self.state)
        graph = ctx.graph('vla/prefix', (self.features, self.words, *common), (self.kv,))
        self._prefix: dict[int, Plan] = {}  # prompt tokens it has room for -> plan
        for room in net.buckets():
            exact = ShapeKey(views=len(images), words=room)
            graph.capture(exact, functools.partial(prefix, room))
            self._prefix[room] = Plan(ctx, f'vla/prefix/{room}')
            self._prefix[room].add('prefix', graph, exact)
        graph = ctx.graph(
            'vla/denoise', (*common, self.seed, *self.anchors),
            (self.kv, self.counter, self.chunk, self.previous, self.pacing, self.action),
        )  # fmt: skip
        graph.capture(key, denoise)
        self._denoise = Plan(ctx, 'vla/denoise')
        self._denoise.add('denoise', graph, key)

    def preprocess(
        self, images: Mapping[str, np.ndarray], proprio: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Return what `observe` writes, by buffer name; see `Policy.preprocess`."""
        check_observation(self.spec, images, proprio)
        seen = self._parts.seen(proprio)
        state = self._parts.state.normalise(seen)
        row = np.zeros(self.state.shape, np.float32)
        if self._parts.network.sizes.state:
            row[: state.size] = state
        ready = {f'vla/image/{name}': np.ascontiguousarray(images[name]) for name in self.images}
        for anchor in self.anchors:
            ready[anchor.name] = self._anchored(seen)
        return {**ready, 'vla/state': row, 'normalised': state.astype(np.float32)}

    def _anchored(self, seen: np.ndarray) -> np.ndarray:
        """Return what the actions are offsets from, in their own units, float32 [A]."""
        index = list(self._parts.relative)
        found = np.zeros(self._parts.network.sizes.action, np.float32)
        found[index] = seen[index] / self._parts.action.restoring[0][index]
        return found

    def observe(self, images: Mapping[str, np.ndarray], proprio: np.ndarray) -> None:
        """Copy one observation into the buffers and run the image tower."""
        ready = self.preprocess(images, proprio)
        for buffer in (*self.images.values(), self.state, *self.anchors):
            buffer.write(ready[buffer.name])
        self._seen, self._stale = ready['normalised'], True
        self.replay_vision()
        self._ran = ['vision']

    def pace(self, elapsed: int, delay: int) -> None:
        """Say how the next chunk follows the one before; see `Policy.pace`."""
        self.pacing.write(torch.tensor([elapsed, delay], dtype=torch.int64))

    def plan(self) -> np.ndarray:
        """Run what has changed, and the denoiser; return the chunk, float32 [horizon, A]."""
        self.plan_prefix()
        self.replay_denoise()
        self._last, self._ran = (*self._ran, 'denoise'), []
        return self.action.tensor.to('cpu', copy=True).numpy()

    def plan_prefix(self) -> None:
        """Bring keys and values up to date with what was seen and with the live subgoal."""
        prompt = self._parts.prompt(self._instruction(), self._seen)
        if not self._stale and prompt == self._prompt:
            return
        tokens = self._parts.words(prompt)
        row = np.zeros(self.words.shape, np.int32)
        row[: tokens.size] = tokens
        self.words.write(row)
        self.length.write(torch.tensor([tokens.size], dtype=torch.int64))
        self._room = next(room for room in self._prefix if room >= tokens.size)
        self.replay_prefix()
        self._prompt, self._stale = prompt, False
        self._ran.append('prefix')

    def replay_vision(self) -> None:
        """Run the image tower on what the image buffers hold."""
        self._vision.run()

    def replay_prefix(self) -> None:
        """Run the prefix on the prompt that it ran on last."""
        self._prefix[self._room].run()

    def replay_denoise(self) -> None:
        """Run all Euler steps on new noise."""
        self._denoise.run()

    def replay(self) -> None:
        """Run the three graphs on what the buffers hold; does not wait for them."""
        self.replay_vision()
        self.replay_prefix()
        self.replay_denoise()

    @property
    def ran(self) -> tuple[str, ...]:
        """Graphs that the newest chunk took since the one before."""
        return self._last

    def _instruction(self) -> str:
        """Return the text of the live subgoal."""
        live = int(self._port.live.tensor.clamp(0, 1))
        row = self._port.slots.tensor.cpu().numpy()[live]
        used = row[row > 0] - 1
        return used.clip(0, 255).astype(np.uint8).tobytes().decode('utf-8', 'replace')

    def _forget(self) -> None:
        self._prompt, self._stale = '', True
        self._seen = np.zeros(self.spec.proprio_dim, np.float32)
        self._last = ()

    def reset(self, seed: int) -> None:
        """Set the noise seed, put its counter to zero and forget everything seen and planned."""
        for buffer in (
            *self.images.values(), self.features, self.words, self.length, self.state, self.kv,
            self.counter, self.chunk, self.previous, self.pacing, self.action, *self.anchors,
        ):  # fmt: skip
            buffer.tensor.zero_()
        self.seed.write(torch.tensor([seed], dtype=torch.int64))
        self._forget()

    def close_over(self, closure: Closure) -> None:
        """Name what the next chunk depends on; see the module's docstring."""
        closure.fixed(self.features, self.kv, self.length, self.seed, self.counter)
        closure.fixed(self.previous, self.pacing, *self.anchors)
        if self._parts.network.sizes.state:
            closure.fixed(self.state)
        closure.host('vla/prompt', get=self._get, set=self._set)

    def _get(self) -> dict[str, Any]:
        return {'prompt': self._prompt, 'stale': self._stale, 'seen': self._seen.copy()}

    def _set(self, state: dict[str, Any]) -> None:
        self._prompt, self._stale = str(state['prompt']), bool(state['stale'])
        self._seen = np.array(state['seen'], np.float32)

    def fingerprint(self) -> dict[str, str]:
        """Return digests of weights and architecture, the type computed in, and the kernels."""
        parts = self._parts
        text = json.dumps([parts.name, asdict(parts.spec), str(parts.network.sizes)])
        return {
            'weights': parts.digest,
            'architecture': hashlib.sha256(text.encode()).hexdigest(),
            'dtype': str(parts.network.dtype),
            'kernels': f'{KERNELS} {vla_noise.KERNEL} {sources.digest()[:16]}',
        }
