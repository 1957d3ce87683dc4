"""Launcher: a Triton kernel started by its handle, without the way there.

Triton's own launch looks up the variant, asks for a stream and parses every argument: longer than
a small copy takes. Here the arguments stand in memory that the driver reads, so a launch is a
write of a few numbers and one call of the driver.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import torch

from flashrt_ros.contract.stream import Stream

_SCRATCH = 2  # pointers that Triton appends to a kernel's arguments; null where none is needed


class Config(ctypes.Structure):
    """CUlaunchConfig of the CUDA driver."""

    _fields_ = [
        *((f'grid_{axis}', ctypes.c_uint) for axis in 'xyz'),
        *((f'block_{axis}', ctypes.c_uint) for axis in 'xyz'),
        ('shared_bytes', ctypes.c_uint),
        ('stream', ctypes.c_void_p),
        ('attributes', ctypes.c_void_p),
        ('attribute_count', ctypes.c_uint),
    ]


class Launcher:
    """One kernel with its constants on one stream.

    Args:
        kernel: a function under `triton.jit` whose arguments are integers, then constants.
        stream: where it runs.
        device: of the stream.
        args: integers like those of later calls (which are multiples of 16, which are wide);
            with them it must copy nothing, since it is compiled by running it.
        warps: of 32 threads, per program.
        constants: values of its constants, by name.
    """

    def __init__(
        self,
        kernel: Any,
        stream: Stream,
        device: torch.device,
        args: tuple[int, ...],
        warps: int,
        **constants: Any,
    ) -> None:
        self._stream = stream
        self._device = device
        self._values = tuple(constants.values())
        self._alone = torch.cuda.device_count() == 1
        with stream.use():
            self._compiled = kernel[(1, 1, 1)](*args, num_warps=warps, **constants)
        metadata = self._compiled.metadata
        self._pack = struct.Struct(f'={len(args)}q').pack_into
        # Narrow arguments take the front half of their place: the driver knows their size.
        self._places = (ctypes.c_int64 * (len(args) + _SCRATCH))()
        first, size = ctypes.addressof(self._places), ctypes.sizeof(ctypes.c_int64)
        self._params = (ctypes.c_void_p * len(self._places))(
            *(first + size * index for index in range(len(self._places)))
        )
        self._config = Config(
            1, 1, 1, 32 * metadata.num_warps, 1, 1, metadata.shared, stream.native.cuda_stream
        )
        self._front = ctypes.byref(self._config)
        self._function = ctypes.c_void_p(self._compiled.function)
        self._driver: Any = _driver()
        if getattr(metadata, 'global_scratch_size', 0) or metadata.num_ctas != 1:
            self._driver = None  # needs what only Triton's launch provides
        self.start(1, *args)

    def start(self, programs: int, *args: int) -> None:
        """Start so many programs."""
        if self._driver is not None and (
            self._alone or torch.cuda.current_device() == self._device.index
        ):
            self._pack(self._places, 0, *args)
            self._config.grid_x = programs
            if not self._driver(self._front, self._function, self._params, None):
                return
            # Refused, in a thread that has not used the device yet: Triton's launch sets it up,
            # or says what is wrong.
        with torch.cuda.device(self._device):
            torch.cuda.current_stream(self._device).query()
            self._compiled[(programs, 1, 1)](
                *args, *self._values, stream=self._stream.native.cuda_stream
            )


def _driver() -> Any:
    """cuLaunchKernelEx, None where it is not to be had."""
    try:
        return ctypes.CDLL('libcuda.so.1').cuLaunchKernelEx
    except (OSError, AttributeError):
        return None
