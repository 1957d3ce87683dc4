"""Compile every launch of the language model's kernels for a GPU that is not there.

The launchers are called at a real model's dimensions while the kernels' `run` only records what
it is given; each recorded launch is then compiled for a compute capability.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

# Shared memory one program may use, bytes.
SHARED = {87: 166912, 90: 232448, 110: 232448, 121: 101376}
TYPES = {
    torch.float32: 'fp32', torch.bfloat16: 'bf16', torch.float16: 'fp16',
    torch.int32: 'i32', torch.int64: 'i64',
}  # fmt: skip

Launch = tuple[Any, tuple[Any, ...], dict[str, Any]]


@contextlib.contextmanager
def recorded(shared: int, processors: int = 132, hopper: bool = True) -> Iterator[list[Launch]]:
    """Within the block Triton kernels are recorded instead of launched, as for a GPU like that."""
    from triton.runtime.jit import JITFunction

    from flashrt_policies.kernels import launch

    seen: list[Launch] = []

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        seen.append((self, args, kwargs))

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(JITFunction, 'run', run))
        launch.shared_bytes.cache_clear()
        launch.processors.cache_clear()
        stack.enter_context(mock.patch.object(launch, 'overlaps', lambda _: hopper))
        for name in ('attention_triton', 'linear_triton', 'launch'):
            module = __import__(f'flashrt_policies.kernels.{name}', fromlist=['x'])
            for function, value in (('shared_bytes', shared), ('processors', processors)):
                if hasattr(module, function):
                    fake = mock.Mock(return_value=value)
                    stack.enter_context(mock.patch.object(module, function, fake))
        yield seen


def prefill_launches(
    rows: int, shared: int, dtype: torch.dtype, hopper: bool = True
) -> list[Launch]:
    """Return every launch of a replay of `rows` tokens through one layer of each kind."""
    from flashrt_policies.kernels import (
        activation_triton,
        attention_triton,
        embed_triton,
        gated_delta_triton,
        linear_triton,
        norm_triton,
        place_triton,
    )

    def new(*shape: int, kind: torch.dtype = dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=kind)

    wide, one = torch.float32, new(1, kind=torch.int64)
    hidden, heads, kv, dim = 1024, 8, 2, 256
    lin = (16, 16, 128, 128)
    channels = 6144
    with recorded(shared, hopper=hopper) as seen:
        state, freq, scale = new(16, 128, 128, kind=wide), new(32, kind=wide), new(256, kind=wide)
        conv, window, vector = new(4, channels), new(3, channels), new(16, kind=wide)
        keys = new(kv, 32768, dim)
        x = new(rows, hidden)
        norm_triton.add_rms_norm(x, x, new(hidden, kind=wide), 1e-6)
        o = new(rows, 16, 128)
        norm_triton.gated_rms_norm(o, o, new(128, kind=wide), 1e-6)
        activation_triton.silu_mul(new(rows, 7168))
        proj = new(rows, channels + 2048 + 32)
        gated_delta_triton.mix(
            proj, window, state, conv, vector, vector, new(128, kind=wide), 1e-6, one, lin
        )
        q, gate = new(rows, heads, 2 * dim).split(dim, -1)
        k = new(rows, kv, dim)
        place_triton.place(q, k, k, keys, keys, one, one, freq, scale, scale, 1e-6)
        attention_triton.attend(new(rows, heads, dim), keys, keys, one, one, gate)
        embed_triton.take(
            rows, new(99, kind=torch.int32), new(2, kind=torch.int64), new(500, hidden),
            new(99, kind=torch.int32), one, one, one, new(4096, kind=torch.int64),
        )  # fmt: skip
        for columns, depth in ((8224, 1024), (1024, 1024)):
            linear_triton.matmul(new(rows, depth), new(columns, depth))
        linear_triton.matmul(new(rows, 1024), new(7168, 1024), pair=True)
        for depth in (2048, 3584):
            y, weight = new(rows, depth), new(hidden, depth)
            with mock.patch.object(linear_triton, 'LIBRARY_ROWS', 1 << 30):
                linear_triton.project(y, weight, None, x, new(hidden, kind=wide), 1e-6)
    return seen


def launches(
    shared: int,
    dtype: torch.dtype = torch.bfloat16,
    hopper: bool = True,
    replays: tuple[int, ...] = (64, 256, 2048),
) -> list[Launch]:
    """Return every launch that Qwen3.5-0.8B's dimensions give, one per distinct kernel setting.

    Args:
        shared: bytes of shared memory that one program may use.
        dtype: of activations and weights.
        hopper: the GPU launches kernels early.
        replays: prefill replays, tokens.
    """
    from flashrt_policies.kernels import (
        decode_triton,
        embed_triton,
        linear_triton,
        sampling_triton,
    )

    def new(*shape: int, kind: torch.dtype = dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=kind)

    wide, one = torch.float32, new(1, kind=torch.int64)
    hidden, heads, kv, dim = 1024, 8, 2, 256
    lin = (16, 16, 128, 128)
    channels = 6144
    with recorded(shared, hopper=hopper) as seen:
        state, freq, scale = new(16, 128, 128, kind=wide), new(32, kind=wide), new(256, kind=wide)
        conv, window, vector = new(4, channels), new(3, channels), new(16, kind=wide)
        keys = new(kv, 32768, dim)
        token = new(1, kind=torch.int32)
        linear_triton.matmul(new(64, 70), new(50, 70), new(50))
        x, norm = new(1, hidden), new(hidden, kind=wide)
        linear_triton.row(x, new(8224, hidden), scale=norm, eps=1e-6)
        linear_triton.row(new(1, 2048), new(1024, 2048), add=x)
        linear_triton.row(x, new(7168, hidden), scale=norm, eps=1e-6, pair=True)
        linear_triton.row(new(1, 3584), new(1024, 3584), add=x)
        linear_triton.row(x, new(248320, hidden), out=new(1, 248320, kind=wide))
        decode_triton.delta_step(
            new(1, 8224), window, state, conv, vector, vector, new(128, kind=wide), 1e-6, lin
        )
        q, gate = new(1, heads, 2 * dim).split(dim, -1)
        k = new(1, kv, dim)
        decode_triton.attend_one(q, k, k, keys, keys, one, freq, scale, scale, 1e-6, gate)
        decode_triton.attend_one(q, k, k, keys, keys, one, freq, scale, scale, 1e-6, gate, one)
        embed_triton.take_one(token, new(500, hidden), new(99, kind=torch.int32), one, one)
        embed_triton.pick(new(64, hidden), one)
        embed_triton.finish(x, norm, 1e-6, x, one, new(2, kind=torch.int64), one)
        embed_triton.finish(x, norm, 1e-6, x, one)
        logits, hot = new(248320, kind=wide), new(1, kind=wide)
        sampling_triton.greedy(logits, token)
        sampling_triton.draw(logits, token, hot, hot, one, one)
    prefill = [x for rows in replays for x in prefill_launches(rows, shared, dtype, hopper)]
    distinct: dict[str, Launch] = {}
    for kernel, args, kwargs in prefill + seen:
        distinct.setdefault(
            f'{kernel.fn.__name__} {sorted(kwargs.items())}', (kernel, args, kwargs)
        )
    return list(distinct.values())


def compile_launch(launch: Launch, capability: int) -> Any:
    """Compile one recorded launch; raises what Triton raises."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel, args, kwargs = launch
    values = dict(zip(kernel.arg_names, args, strict=False))
    options = {k: v for k, v in kwargs.items() if k not in kernel.arg_names}
    values.update({k: v for k, v in kwargs.items() if k in kernel.arg_names})
    signature, constants, attributes = {}, {}, {}
    plain = {x.num for x in kernel.params if x.do_not_specialize}
    for index, (name, parameter) in enumerate(zip(kernel.arg_names, kernel.params, strict=True)):
        value = values[name]
        if parameter.is_constexpr:
            signature[name], constants[(index,)] = 'constexpr', value
        elif isinstance(value, torch.Tensor):
            signature[name] = '*' + TYPES[value.dtype]
            attributes[(index,)] = [['tt.divisibility', 16]]
        elif isinstance(value, float):
            signature[name] = 'fp32'
        elif value == 1 and index not in plain:
            signature[name], constants[(index,)] = 'constexpr', 1
        else:
            signature[name] = 'i32'
            if value % 16 == 0 and index not in plain:
                attributes[(index,)] = [['tt.divisibility', 16]]
    source = ASTSource(kernel, signature, constexprs=constants, attrs=attributes)
    return triton.compile(source, target=GPUTarget('cuda', capability, 32), options=options)


def blackwell_ptxas() -> str | None:
    """Return an assembler of CUDA 13, which alone knows sm_110."""
    named = os.environ.get('TRITON_PTXAS_BLACKWELL_PATH')
    places = [Path(named)] if named else []
    places += [Path(p) / 'nvidia/cu13/bin/ptxas' for p in sys.path if p]
    found = next((str(p) for p in places if p.is_file()), None) or shutil.which('ptxas')
    if found is None:
        return None
    version = subprocess.run([found, '--version'], capture_output=True, text=True).stdout
    return found if 'release 13' in version else None


def assert_compiles(capability: int) -> None:
    """Compile every launch for a GPU and hold it to that GPU's shared memory."""
    with contextlib.ExitStack() as stack:
        if capability == 110:
            ptxas = blackwell_ptxas()
            if ptxas is None:
                pytest.skip('no ptxas of CUDA 13 (nvidia-cuda-nvcc): sm_110 needs it')
            stack.enter_context(
                mock.patch.dict(os.environ, {'TRITON_PTXAS_BLACKWELL_PATH': ptxas})
            )
        shared = SHARED[capability]
        # Replays of other sizes differ in tiles alone; they are compiled for one GPU.
        replays = (64, 256, 2048) if capability == 90 else (256,)
        for launch in launches(shared, hopper=capability >= 90, replays=replays):
            compiled = compile_launch(launch, capability)
            name = f'{launch[0].fn.__name__} {launch[2]}'
            assert compiled.metadata.shared <= shared, f'{name}: {compiled.metadata.shared} bytes'
