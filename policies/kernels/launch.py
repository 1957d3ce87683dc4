"""What a launch must know of the device: its number of processors and its shared memory."""

from __future__ import annotations

import functools

import torch
import triton
from torch import Tensor

# Shortest side of a tile in a kernel of several matrix products. On Hopper, Triton 3.6 reads past
# its shared memory when such a kernel has sides of 16 or 32: an illegal access, or wrong numbers
# (triton-lang/triton 11366, pytorch/helion 1905). Padding is masked, so it changes no sum.
LEAST_SIDE = 64


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
