"""What a launch must know of the device, and how a launch begins before the one before it ends.

From Hopper on, a kernel may be launched while its predecessor still runs (programmatic dependent
launch): it may do what needs nothing of the predecessor, such as fetching weights into the cache,
and then waits for all of it. Every kernel here begins with `begin`.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

# Shortest side of a tile in a kernel of several matrix products. On Hopper, Triton 3.6 reads past
# its shared memory when such a kernel has sides of 16 or 32: an illegal access, or wrong numbers
# (triton-lang/triton 11366, pytorch/helion 1905). Padding is masked, so it changes no sum.
LEAST_SIDE = 64
# How a kernel of a prefill and one of a decode step begin: 0 after its predecessor has ended,
# 1 beside it once it ends, 2 beside it from its own start.
PREFILL, STEP = 0, 2


def side(count: int) -> int:
    """Return the side of a tile that holds `count` elements: a power of two, 64 or more."""
    return max(LEAST_SIDE, int(triton.next_power_of_2(count)))


@functools.cache
def processors(device: torch.device) -> int:
    """Return the number of streaming multiprocessors; 1 where there is no GPU (interpreter)."""
    if device.type != 'cuda':
        return 1
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@functools.cache
def shared_bytes(device: torch.device) -> int:
    """Return the shared memory that one program may use, bytes; a GPU's usual size elsewhere."""
    if device.type != 'cuda':
        return 96 * 1024
    properties = torch.cuda.get_device_properties(device)
    plain = properties.shared_memory_per_block
    return int(getattr(properties, 'shared_memory_per_block_optin', plain))


def stages(like: Tensor, elements: int, most: int) -> int:
    """Return how many loads deep a loop is pipelined.

    Args:
        like: a tensor of the device and element type that is loaded.
        elements: elements loaded in one turn of the loop.
        most: the depth when shared memory is plenty.
    """
    room = int(0.9 * shared_bytes(like.device))
    return max(1, min(most, room // (elements * like.element_size())))


@functools.cache
def overlaps(device: torch.device) -> bool:
    """Return whether the device launches a kernel before its predecessor has ended."""
    return device.type == 'cuda' and torch.cuda.get_device_capability(device)[0] >= 9


def early(like: Tensor, step: bool = False) -> dict[str, Any]:
    """Return the keywords of a launch whose kernel begins with `begin`.

    Args:
        like: a tensor of the device.
        step: the kernel is one of a decode step.
    """
    level = (STEP if step else PREFILL) if overlaps(like.device) else 0
    return {'PDL': level, 'launch_pdl': True} if level else {'PDL': 0}


@functools.cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device, priority=-1)  # what others wait for goes first


class Aside:
    """Runs launches beside the current stream, in order; also within a capture.

    Args:
        device: where.
        apart: False runs everything on the current stream.
    """

    def __init__(self, device: torch.device, apart: bool) -> None:
        self._side = _side_stream(device) if apart else None

    def __enter__(self) -> Aside:
        return self

    def __exit__(self, *_: object) -> None:
        if self._side is not None:
            torch.cuda.current_stream(self._side.device).wait_stream(self._side)

    def run(self, launch: Callable[..., None], *args: int) -> torch.cuda.Event | None:
        """Call `launch` behind what the current stream was given so far; returns when it is done.

        The result is for `wait`.
        """
        if self._side is None:
            launch(*args)
            return None
        self._side.wait_stream(torch.cuda.current_stream(self._side.device))
        with torch.cuda.stream(self._side):
            launch(*args)
            return self._side.record_event()

    def wait(self, done: torch.cuda.Event | None) -> None:
        """Let the current stream go on when `done` is."""
        if done is not None:
            done.wait()


@triton.jit
def begin(PDL: tl.constexpr):
    """Let the successor be launched, then wait for every effect of the predecessor."""
    if PDL > 1:
        gdc_launch_dependents()
    if PDL > 0:
        gdc_wait()


@triton.jit
def fetch(pointers):
    """Ask for a line of 128 bytes at each pointer to be brought into the second-level cache."""
    tl.inline_asm_elementwise(
        'prefetch.global.L2 [$1]; // $0', '=r,l', [pointers.to(tl.int64)], dtype=tl.int32,
        is_pure=False, pack=1,
    )  # fmt: skip
