"""The launcher: the driver reads exactly the arguments of the kernel, wherever it was compiled."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flashrt_ros.capsule import launcher
from flashrt_ros.capsule.launcher import Config, Launcher

WIDE, NARROW = 2**40 + 16, 7  # an address, a count


class Kernel:
    """Stands in for a compiled Triton kernel; counts launches that go Triton's own way."""

    def __init__(self) -> None:
        self.function = 0xABC
        self.metadata = SimpleNamespace(num_warps=8, shared=32, num_ctas=1, global_scratch_size=0)
        self.own: list[tuple[int, tuple[Any, ...]]] = []

    def __getitem__(self, grid: tuple[int, int, int]) -> Any:
        def launch(*args: Any, **options: Any) -> Kernel:
            self.own.append((grid[0], args))
            return self

        return launch


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A driver that notes what it reads; `[0]` is the code it returns."""
    seen: list[Any] = [0]
    kind = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.POINTER(Config), ctypes.c_void_p,
        ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p,
    )  # fmt: skip

    def launch(config: Any, function: int, params: Any, extra: Any) -> int:
        types = (ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_uint64)
        values = [of.from_address(params[i]).value for i, of in enumerate(types)]
        c = config.contents
        seen.append((c.grid_x, c.block_x, c.shared_bytes, c.stream, function, values))
        return int(seen[0])

    fake = kind(launch)
    monkeypatch.setattr(launcher, '_driver', lambda: fake)
    cuda = launcher.torch.cuda
    monkeypatch.setattr(cuda, 'device_count', lambda: 1)
    monkeypatch.setattr(cuda, 'device', lambda device: contextlib.nullcontext())
    monkeypatch.setattr(cuda, 'current_stream', lambda device: SimpleNamespace(query=lambda: True))
    return seen


def make() -> tuple[Kernel, Launcher]:
    """A kernel of two arguments, and its launcher."""
    kernel = Kernel()
    stream: Any = SimpleNamespace(
        use=contextlib.nullcontext, native=SimpleNamespace(cuda_stream=0x55)
    )
    device = launcher.torch.device('cuda', 0)
    return kernel, Launcher(kernel, stream, device, (WIDE, NARROW), warps=8, SAVE=True)


def test_the_driver_reads_grid_stream_and_arguments(driver: list[Any]) -> None:
    """Wide and narrow ones, and null for the scratch that Triton appends."""
    kernel, made = make()
    assert kernel.own == [(1, (WIDE, NARROW))]  # compiled by running once
    made.start(99, WIDE + 16, 2**31 - 1)
    assert driver[-1] == (99, 256, 32, 0x55, 0xABC, [WIDE + 16, 2**31 - 1, 0, 0])
    assert len(kernel.own) == 1


def test_a_refused_launch_goes_tritons_own_way(driver: list[Any]) -> None:
    """Planted fault: a thread without a context. Nothing is lost, and nothing runs twice."""
    kernel, made = make()
    driver[0] = 201
    made.start(3, WIDE, NARROW)
    assert kernel.own[1:] == [(3, (WIDE, NARROW, True))]


def test_the_kernels_take_the_arguments_that_are_written() -> None:
    """Compiled for a GPU that is not here: addresses wide, counts narrow, two scratch pointers."""
    pytest.importorskip('triton', reason='the kernels need Triton')
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from flashrt_ros.capsule import mover_triton as kernels

    narrow = {'fixed_rows', 'begin', 'count', 'first', 'many', 'chunks', 'rows'}
    for kernel in (kernels.copy_both, kernels.copy_many):
        names = kernel.arg_names
        constants = {'SAVE': False, 'CHUNK': 4096}
        if 'MANY' in names:
            constants['MANY'] = 32768
        source = ASTSource(
            fn=kernel,
            signature={
                name: 'constexpr' if name in constants else 'i32' if name in narrow else 'i64'
                for name in names
            },
            constexprs={(names.index(name),): value for name, value in constants.items()},
            attrs={
                (index,): [['tt.divisibility', 16]]
                for index, name in enumerate(names)
                if name not in constants and name not in narrow
            },
        )
        made = triton.compile(source, target=GPUTarget('cuda', 90, 32), options={'num_warps': 8})
        found = re.findall(r'\.param \.(\w+)', made.asm['ptx'])
        expected = ['u32' if n in narrow else 'u64' for n in names if n not in constants]
        assert found == [*expected, 'u64', 'u64']
        assert 'ld.global.v4.b32' in made.asm['ptx']  # 16 bytes a thread
        assert (made.metadata.num_ctas, made.metadata.global_scratch_size) == (1, 0)
        assert _registers(made) <= 64  # more, and too few bytes are under way at once


def _registers(kernel: Any) -> int:
    """Registers per thread, by the assembler that comes with Triton."""
    import triton

    assembler = Path(triton.__file__).parent / 'backends' / 'nvidia' / 'bin' / 'ptxas'
    command = [str(assembler), '-v', '-arch=sm_90a', '-', '-o', os.devnull]
    done = subprocess.run(
        command, input=kernel.asm['ptx'], capture_output=True, text=True, check=True
    )
    used = re.search(r'Used (\d+) registers', done.stderr + done.stdout)
    assert used is not None, done.stderr
    return int(used[1])
