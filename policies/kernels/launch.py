"""What a launch must know of the device: its number of processors and its shared memory."""

from __future__ import annotations

import functools

import torch
from torch import Tensor


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
