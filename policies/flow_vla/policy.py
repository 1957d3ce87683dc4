"""FlowPolicy: the network bound to static buffers and three graphs.

``vision`` (images to features) and ``prefix`` (features, proprioception and ``slots[live]`` to
keys and values) run once per chunk; ``denoise`` draws its noise and takes all Euler steps in one
graph. They hand over through shared buffers. The next chunk depends on the images, the
proprioception, the noise seed and its counter (and on the subgoal port, which its owner closes
over); features, keys, noise and action are always written before they are read, so they are no
part of the closure.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from flashrt_policies import checkpoint
from flashrt_policies.base import PolicySpec, SubgoalPort, check_observation
from flashrt_policies.checkpoint import CheckpointError
from flashrt_policies.flow_vla.config import FlowSizes
from flashrt_policies.flow_vla.model import STATISTICS, FlowVLA
from flashrt_policies.kernels import sources
from flashrt_policies.kernels.vla import noise
from flashrt_policies.recipes import RecipeError
from flashrt_ros.contract.context import Context
from flashrt_ros.contract.graph import ShapeKey
from flashrt_ros.contract.plan import Plan

if TYPE_CHECKING:
    from flashrt_ros.capsule.closure import Closure
    from flashrt_ros.contract.buffer import Buffer

ARCHITECTURE = 'flow_vla'
DENOISER = 'flow-euler/2'  # raised whenever the same weights and noise would act differently


class FlowPolicy:
    """A policy for the robot loop; see `flashrt_policies.base.Policy`.

    Args:
        ctx: the device; its graphs are captured here.
        model: the network on that device, statistics set.
        subgoal: where the subgoal arrives; slots int32 [2, L], live int64 [1].
        digest: digest of the weights, for the fingerprint.

    Raises:
        CheckpointError: the subgoal port's rows are longer or shorter than the policy's.
    """

    def __init__(
        self, ctx: Context, model: FlowVLA, subgoal: SubgoalPort, digest: str = ''
    ) -> None:
        self.spec = model.spec
        self._model = model.eval().requires_grad_(False)
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._digest = digest or model_digest(model)
        self._device = ctx.device
        spec, sizes = model.spec, model.sizes
        if subgoal.slots.shape[-1] != spec.subgoal_length:
            raise CheckpointError(
                f'the subgoal buffer has rows of {subgoal.slots.shape[-1]} bytes; '
                f'want {spec.subgoal_length}, as this policy was trained'
            )
        self._dtype = model.trunk.stem.weight.dtype
        height, width = spec.image_hw
        seen = (len(spec.cameras), height, width, 3)
        self.images = ctx.buffer('flow/images', seen, torch.uint8)  # cameras in the spec's order
        self.proprio = ctx.buffer('flow/proprio', (spec.proprio_dim,), torch.float32)
        self.seed = ctx.buffer('flow/seed', (1,), torch.int64)
        self.counter = ctx.buffer('flow/counter', (1,), torch.int64)
        chunk = (spec.horizon, spec.action_dim)
        self.features = ctx.buffer('flow/features', model.feature_shape, self._dtype)
        self.kv = ctx.buffer('flow/kv', model.kv_shape, self._dtype)
        self.summary = ctx.buffer('flow/summary', (1, sizes.width), self._dtype)
        self.noise = ctx.buffer('flow/noise', chunk, self._dtype)
        self.action = ctx.buffer('flow/action', chunk, torch.float32)
        # Pinned where there is a GPU: uploads need no wait, and each camera is copied once.
        self._ctx = ctx
        self._pictures, self._vector, self._chunk = (
            _beside(ctx, buffer) for buffer in (self.images, self.proprio, self.action)
        )
        self._plan = self._capture(ctx, subgoal)

    def _capture(self, ctx: Context, subgoal: SubgoalPort) -> Plan:
        model, sizes = self._model, self._model.sizes
        with torch.no_grad():
            moments = self._moments = model.moments()  # a captured graph does not keep it alive

        def vision() -> None:
            self.features.tensor.copy_(model.vision(self.images.tensor[None])[0])

        def prefix() -> None:
            live = subgoal.live.tensor.clamp(0, subgoal.slots.shape[0] - 1)
            row = subgoal.slots.tensor.index_select(0, live)  # [1, L]
            kv, summary = model.prefix(self.features.tensor[None], self.proprio.tensor[None], row)
            self.kv.tensor.copy_(kv)
            self.summary.tensor.copy_(summary)

        def denoise() -> None:
            noise.normal_(self.noise.tensor, self.seed.tensor, self.counter.tensor)
            x = self.noise.tensor[None]
            chunk = model.denoise(x, self.kv.tensor, self.summary.tensor, moments)
            self.action.tensor.copy_(chunk[0])

        key = ShapeKey(steps=sizes.steps, views=len(model.spec.cameras))
        plan = Plan(ctx, 'flow/chunk')
        graph = ctx.graph(
            'flow/vision', reads={'images': self.images}, writes={'features': self.features}
        )
        graph.capture(key, vision)
        plan.add('vision', graph, key)
        graph = ctx.graph(
            'flow/prefix',
            reads={
                'features': self.features,
                'proprio': self.proprio,
                'slots': subgoal.slots,
                'live': subgoal.live,
            },
            writes={'kv': self.kv, 'summary': self.summary},
        )
        graph.capture(key, prefix)
        plan.add('prefix', graph, key, after=('vision',))
        graph = ctx.graph(
            'flow/denoise',
            reads={'kv': self.kv, 'summary': self.summary, 'seed': self.seed},
            writes={'counter': self.counter, 'noise': self.noise, 'action': self.action},
        )
        graph.capture(key, denoise)
        plan.add('denoise', graph, key, after=('prefix',))
        return plan

    def preprocess(
        self, images: Mapping[str, np.ndarray], proprio: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Return what `observe` writes, by buffer name; see `Policy.preprocess`."""
        check_observation(self.spec, images, proprio)
        pictures = [images[name] for name in self.spec.cameras]
        return {self.images.name: np.stack(pictures), self.proprio.name: np.array(proprio)}

    def observe(self, images: Mapping[str, np.ndarray], proprio: np.ndarray) -> None:
        """Copy one observation into the buffers; see `Policy.observe`."""
        check_observation(self.spec, images, proprio)
        self._ctx.current_stream().synchronize()  # the upload before may still be read from here
        np.stack([images[name] for name in self.spec.cameras], out=self._pictures.numpy())
        np.copyto(self._vector.numpy(), proprio)
        self.images.tensor.copy_(self._pictures, non_blocking=True)
        self.proprio.tensor.copy_(self._vector, non_blocking=True)

    def plan(self) -> np.ndarray:
        """Replay vision, prefix and denoise; return the chunk, float32 [horizon, A]."""
        self._plan.run()
        return self._chunk.copy_(self.action.tensor).numpy().copy()

    def reset(self, seed: int) -> None:
        """Set the noise seed, put its counter to zero and clear every cache."""
        self.seed.write(torch.tensor([seed], dtype=torch.int64))
        self.counter.write(torch.zeros(1, dtype=torch.int64))
        for buffer in (
            self.images,
            self.proprio,
            self.features,
            self.kv,
            self.summary,
            self.noise,
            self.action,
        ):
            buffer.write(torch.zeros(buffer.shape, dtype=buffer.dtype))

    def close_over(self, closure: Closure) -> None:
        """Name the buffers the next chunk depends on; see the module's docstring."""
        closure.fixed(self.images, self.proprio, self.seed, self.counter)

    def fingerprint(self) -> dict[str, str]:
        """Return digests of weights and architecture, the type computed in, and the kernels."""
        sizes = dataclasses.asdict(self._model.sizes)
        text = json.dumps([ARCHITECTURE, sizes, dataclasses.asdict(self.spec)], sort_keys=True)
        return {
            'weights': self._digest,
            'architecture': hashlib.sha256(text.encode()).hexdigest(),
            'dtype': str(self._dtype),
            'kernels': f'{DENOISER} {noise.KERNEL} {sources.digest()[:16]}',
        }


def _beside(ctx: Context, buffer: Buffer) -> Tensor:
    """Return memory of the host, of a buffer's type and shape, for copies from and to it."""
    return ctx.backend.allocate_host(buffer.nbytes).view(buffer.dtype).view(buffer.shape)


def model_digest(model: nn.Module) -> str:
    """Return the digest of a live network's parameters and statistics."""
    state = model.state_dict()
    return checkpoint.weights_digest(
        {name: checkpoint.tensor_digest(name, tensor) for name, tensor in state.items()}
    )


def load_model(
    folder: Path, config: Mapping[str, Any], spec: PolicySpec, device: torch.device | str = 'cpu'
) -> tuple[FlowVLA, str]:
    """Build the network of a checkpoint, float32; return it and the digest of its weights.

    Raises:
        CheckpointError: the sizes are impossible, or a tensor does not fit; see `checkpoint`.
    """
    try:
        with torch.random.fork_rng(devices=[]):  # loading draws nothing from the caller's numbers
            model = FlowVLA(spec, FlowSizes.of(config['model']))
    except RecipeError as error:
        raise CheckpointError(f'{folder / "config.json"}: {error}') from None
    model.requires_grad_(False)
    want = model.state_dict()
    stored = getattr(torch, config['dtype'])
    types = {name: torch.float32 if name in STATISTICS else stored for name in want}
    digest = checkpoint.load_tensors(folder, config['shards'], want, types)
    for name in STATISTICS:
        if name.endswith('_std') and not bool((want[name] > 0).all()):
            raise CheckpointError(f'{folder}: tensor {name!r} has zeros; want positive spreads')
    return model.to(device), digest


def load(
    folder: Path, config: Mapping[str, Any], spec: PolicySpec, ctx: Context, subgoal: SubgoalPort
) -> FlowPolicy:
    """Load a checkpoint folder onto `ctx`; called by the registry.

    Raises:
        CheckpointError: see `load_model`.
    """
    model, digest = load_model(folder, config, spec, ctx.device)
    return FlowPolicy(ctx, model, subgoal, digest)


def export(folder: Path, model: FlowVLA, dtype: str = 'float16') -> None:
    """Write a checkpoint folder that `load` reads.

    Args:
        folder: where to.
        model: a trained network.
        dtype: element type of the weights on disk; statistics stay float32.

    Raises:
        CheckpointError: a weight or a statistic is not finite in that type.
    """
    if dtype not in checkpoint.DTYPES:
        raise CheckpointError(f'dtype is {dtype!r}; want one of {", ".join(checkpoint.DTYPES)}')
    tensors = {
        name: tensor.to(torch.float32 if name in STATISTICS else getattr(torch, dtype))
        for name, tensor in model.state_dict().items()
    }
    checkpoint.save(
        folder,
        tensors,
        architecture=ARCHITECTURE,
        dtype=dtype,
        model=dataclasses.asdict(model.sizes),
        spec=dataclasses.asdict(model.spec),
    )
