"""Every launch of the vision-language-action policies at full size, recorded without a GPU.

The real networks run on tensors that have a shape and hold nothing.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / 'policies_lm'))
import lm_aot

from flashrt_policies.kernels.vla import noise_triton as vla_noise_triton
from flashrt_policies.vla.load import build
from flashrt_policies.vla.network import Network
from flashrt_policies.vla.sizes import FULL
from flashrt_ros.bench.policy_models import PROMPTS, stand_in

lm_aot.TYPES.setdefault(torch.float8_e4m3fn, 'fp8e4nv')
FLOAT8_FROM = 89  # compute capability that converts float8 itself
META = torch.device('meta')  # where no number is
FREE = ('aten.empty', 'aten.new_empty', 'aten.detach')  # beside views: they launch nothing


class Shapes:
    """A source of tensors without numbers."""

    device, dtype = META, torch.bfloat16

    def has(self, name: str) -> bool:
        """There is always such a tensor."""
        return True

    def shape(self, name: str) -> tuple[int, ...]:
        """Sizes are given."""
        raise NotImplementedError

    def take(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return a tensor of this shape."""
        return torch.empty(shape, dtype=dtype or self.dtype, device=META)

    def finish(self, idle: tuple[str, ...]) -> str:
        """Nothing is left over."""
        return ''


class Count(TorchDispatchMode):
    """Counts torch's operations that launch a kernel."""

    launched = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count one."""
        self.launched += not func.is_view and not str(func).startswith(FREE)
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def recorded(shared: int, early: bool) -> Iterator[list[lm_aot.Launch]]:
    """Within the block launches are recorded, for a GPU of so much shared memory.

    Args:
        shared: bytes that one program may use.
        early: it launches a kernel before its predecessor has ended.
    """
    from triton.runtime.jit import JITFunction

    from flashrt_policies.kernels import launch
    from flashrt_policies.kernels.vla import attention_triton as vla_attention_triton
    from flashrt_policies.kernels.vla import linear_triton as vla_linear_triton

    seen: list[lm_aot.Launch] = []

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        seen.append((self, args, kwargs))

    # Counters without numbers must not outlive the block.
    counters = functools.cache(vla_linear_triton.counters.__wrapped__)
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(JITFunction, 'run', run))
        launch.shared_bytes.cache_clear()
        stack.enter_context(mock.patch.object(launch, 'shared_bytes', lambda device: shared))
        stack.enter_context(mock.patch.object(launch, 'overlaps', lambda device: early))
        for module in (vla_attention_triton, vla_linear_triton):
            stack.enter_context(mock.patch.object(module, 'processors', lambda device: 132))
        stack.enter_context(mock.patch.object(vla_linear_triton, 'counters', counters))
        yield seen


def made(family: str, views: int, float8: bool, steps: int = 1) -> Network:
    """Return the network of a family at full size."""
    folder = stand_in(family, views, False)
    source: Any = Shapes()
    network, _ = build(family, source, FULL[family], folder, float8)
    network.steps = min(steps, network.steps)
    return network


def denoise(network: Network) -> None:
    """Run the Euler steps."""
    sizes, whole = network.sizes, torch.int64
    wide = {'dtype': torch.float32, 'device': META}
    x = torch.empty(network.horizon, sizes.action, **wide)
    state = torch.empty(max(1, sizes.state), **wide)
    length, pace = (torch.empty(n, dtype=whole, device=META) for n in (1, 2))
    kv = torch.empty(network.kv_shape, dtype=torch.bfloat16, device=META)
    network.denoise(x, length, state, kv, x.clone(), pace)


def replay(network: Network) -> None:
    """Run everything a chunk takes: images, prefix, noise, steps."""
    side = network.sizes.tower.side
    image = torch.empty(side, side, 3, dtype=torch.uint8, device=META)
    features = network.vision([image] * network.views)
    words = torch.empty(network.prompt, dtype=torch.int32, device=META)
    state = torch.empty(max(1, network.sizes.state), dtype=torch.float32, device=META)
    length = torch.empty(1, dtype=torch.int64, device=META)
    kv = torch.empty(network.kv_shape, dtype=torch.bfloat16, device=META)
    network.fill(features, words, length, state, kv)
    chunk = torch.empty(network.horizon, network.sizes.action, dtype=torch.float32, device=META)
    vla_noise_triton.normal_(chunk, length, length)
    denoise(network)


def launches(shared: int, float8: bool, early: bool) -> list[lm_aot.Launch]:
    """Return one launch of every distinct setting of the three families at full size."""
    with recorded(shared, early) as seen:
        for family in PROMPTS:
            replay(made(family, 2, float8))
    distinct: dict[str, lm_aot.Launch] = {}
    for kernel, args, kwargs in seen:
        types = [a.dtype for a in args if isinstance(a, torch.Tensor)]
        distinct.setdefault(
            f'{kernel.fn.__name__} {sorted(kwargs.items())} {types}', (kernel, args, kwargs)
        )
    return list(distinct.values())


def step_launches(family: str) -> tuple[dict[str, int], int]:
    """Return how often one more Euler step launches each kernel, and torch's own."""
    found: list[tuple[dict[str, int], int]] = []
    for steps in (1, 2):
        with recorded(lm_aot.SHARED[90], True) as seen, torch.no_grad():
            network = made(family, 2, False, steps)
            seen.clear()
            with Count() as count:
                denoise(network)
        names = [kernel.fn.__name__ for kernel, _, _ in seen]
        found.append(({name: names.count(name) for name in set(names)}, count.launched))
    (one, torch_one), (two, torch_two) = found
    return {name: two[name] - one[name] for name in two}, torch_two - torch_one
