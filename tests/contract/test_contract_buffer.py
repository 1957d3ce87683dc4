"""Buffers: static, zero-filled, and written only with what fits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flashrt_ros.contract.context import Context
from flashrt_ros.contract.errors import (
    DeviceError,
    DuplicateNameError,
    ReboundError,
    WriteError,
)


def test_a_buffer_is_zero_filled_contiguous_and_stays_where_it_is(ctx: Context) -> None:
    """The address, shape and dtype given at birth hold after any write."""
    buffer = ctx.buffer('flow/action', (16, 4), torch.float32)
    address = buffer.address
    assert buffer.tensor.is_contiguous()
    assert not buffer.tensor.any()
    assert (buffer.name, buffer.shape, buffer.nbytes) == ('flow/action', (16, 4), 256)
    buffer.write(np.ones((16, 4), np.float32))
    assert buffer.tensor.sum().item() == 64
    assert buffer.address == buffer.tensor.data_ptr() == address


def test_a_scalar_buffer_works(ctx: Context) -> None:
    """Shape () is one element."""
    buffer = ctx.buffer('live', (), torch.int64)
    buffer.write(torch.tensor(3, device=ctx.device))
    assert (buffer.nbytes, buffer.tensor.item()) == (8, 3)


@pytest.mark.parametrize(
    ('value', 'says'),
    [
        (np.zeros((4, 3), np.float32), 'shape'),
        (np.zeros((3, 4), np.float64), 'float64'),
        (torch.zeros(3, 4, dtype=torch.float16), 'float16'),
        (torch.zeros(4, 3).t(), 'contiguous'),
        (np.zeros((4, 3), np.float32).T, 'contiguous'),
        ([[0.0] * 4] * 3, 'list'),
        (np.array([['x'] * 4] * 3), 'does not fit'),
    ],
)
def test_a_value_that_does_not_fit_is_refused_and_nothing_is_written(
    ctx: Context, value: object, says: str
) -> None:
    """Planted faults: wrong shape, dtype, layout and kind; the message names the buffer."""
    buffer = ctx.buffer('image', (3, 4), torch.float32)
    buffer.write(torch.full((3, 4), 7.0))
    with pytest.raises(WriteError, match=rf"(?s)'image'.*{says}"):
        buffer.write(value)
    assert bool((buffer.tensor == 7).all())


def test_a_read_only_array_is_taken(ctx: Context) -> None:
    """Camera images often are read-only views."""
    image = np.full((3, 4), 5, np.uint8)
    image.flags.writeable = False
    buffer = ctx.buffer('image', (3, 4), torch.uint8)
    buffer.write(image)
    assert bool((buffer.tensor == 5).all())


def test_names_are_unique_and_shapes_not_empty(ctx: Context) -> None:
    """Planted faults: a name twice, a size of 0."""
    ctx.buffer('a', (1,), torch.int32)
    with pytest.raises(DuplicateNameError, match="'a' exists"):
        ctx.buffer('a', (1,), torch.int32)
    with pytest.raises(WriteError, match='no size below 1'):
        ctx.buffer('b', (2, 0), torch.int32)


def test_the_tensor_cannot_be_replaced(ctx: Context) -> None:
    """Assigning is impossible; replacing the memory behind the tensor is found out."""
    buffer = ctx.buffer('a', (4,), torch.float32)
    with pytest.raises(AttributeError):
        buffer.tensor = torch.zeros(4)
    keep = buffer.tensor.clone()
    buffer.tensor.set_(keep)
    with pytest.raises(ReboundError, match="'a' was rebound"):
        buffer.write(torch.ones(4, device=ctx.device))


def test_version_grows_with_every_write_that_torch_or_the_contract_sees(ctx: Context) -> None:
    """`write`, in-place operations, also through views; reading leaves it."""
    buffer = ctx.buffer('a', (4,), torch.float32)
    versions = [buffer.version]
    buffer.write(torch.ones(4))
    versions.append(buffer.version)
    buffer.tensor[1:].zero_()
    versions.append(buffer.version)
    with torch.inference_mode():
        buffer.tensor.add_(1)
    versions.append(buffer.version)
    buffer.touch()
    versions.append(buffer.version)
    assert versions == sorted(set(versions))
    buffer.tensor.sum()
    assert buffer.version == versions[-1]


@pytest.mark.parametrize('device', ['cpu:1', 'gpu', '', 'cuda:x'])
def test_an_unknown_device_is_refused(device: str) -> None:
    """Planted fault: a misspelt device; the message lists what there is."""
    with pytest.raises(DeviceError, match="use 'cpu', 'cuda'"):
        Context(device)


def test_a_missing_device_is_refused() -> None:
    """Planted fault: a GPU that is not there."""
    with pytest.raises(DeviceError, match='is not there'):
        Context('cuda:99')
