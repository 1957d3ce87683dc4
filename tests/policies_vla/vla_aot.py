"""Every launch of the vision-language-action kernels at full size, recorded without a GPU."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / 'policies_lm'))
import lm_aot

from flashrt_policies.kernels.vla_matrix import Matrix
from flashrt_policies.kernels.vla_rope import Rotary
from flashrt_policies.vla.sizes import FULL, Sizes

lm_aot.TYPES.setdefault(torch.float8_e4m3fn, 'fp8e4nv')
FLOAT8_FROM = 89  # compute capability that converts float8 itself


@contextlib.contextmanager
def recorded(shared: int, early: bool) -> Iterator[list[lm_aot.Launch]]:
    """Within the block launches are recorded, for a GPU of so much shared memory.

    Args:
        shared: bytes that one program may use.
        early: it launches a kernel before its predecessor has ended.
    """
    from triton.runtime.jit import JITFunction

    from flashrt_policies.kernels import launch

    seen: list[lm_aot.Launch] = []

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        seen.append((self, args, kwargs))

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(JITFunction, 'run', run))
        launch.shared_bytes.cache_clear()
        stack.enter_context(mock.patch.object(launch, 'shared_bytes', lambda device: shared))
        stack.enter_context(mock.patch.object(launch, 'overlaps', lambda device: early))
        for name in ('vla_attention_triton', 'vla_linear_triton'):
            module = __import__(f'flashrt_policies.kernels.{name}', fromlist=['x'])
            stack.enter_context(mock.patch.object(module, 'processors', lambda device: 132))
        yield seen


def _family(sizes: Sizes, prefix: int, suffix: int, kind: str, float8: bool) -> None:
    from flashrt_policies.kernels import (
        vla_attention_triton,
        vla_flow_triton,
        vla_linear_triton,
        vla_noise_triton,
        vla_norm_triton,
        vla_rope_triton,
    )

    def new(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype)

    def matrix(rows: int, columns: int) -> Matrix:
        if not float8:
            return Matrix(new(rows, columns))
        return Matrix(new(rows, columns, dtype=torch.float8_e4m3fn), new(rows, dtype=wide))

    wide, whole = torch.float32, torch.int32
    heads, text, expert, tower = sizes.text.heads, sizes.text, sizes.expert, sizes.tower
    queries, keys = heads.queries * heads.dim, heads.kv * heads.dim
    span = prefix + suffix
    table = Rotary(new(span, heads.dim // 2, dtype=wide), new(span, heads.dim // 2, dtype=wide))
    cache = new(span, heads.kv, heads.dim)
    rank = new(span, dtype=whole)
    pixels = new((tower.side // tower.patch) ** 2, tower.width)
    vector = new(tower.width)
    vla_norm_triton.add_layer_norm(pixels, pixels, vector, vector, 1e-6)
    vla_norm_triton.add_layer_norm(pixels, None, vector, vector, 1e-6)
    vla_norm_triton.gated(new(prefix, 2 * text.mlp), kind)
    vla_rope_triton.split_rotate(
        new(prefix, queries + 2 * keys), table, rank, heads, cache[:prefix], cache[:prefix]
    )
    wide_q = new(prefix, heads.queries, heads.dim)
    vla_attention_triton.attend(wide_q, cache[:prefix], cache[:prefix], rank, rank)
    few_q = new(suffix, heads.queries, heads.dim)
    vla_attention_triton.attend(few_q, cache, cache, rank, rank)
    x = new(suffix, expert.width)
    scale = new(expert.width, dtype=wide)
    for width in (queries + 2 * keys, queries):
        bias = new(width, dtype=wide)
        vla_linear_triton.project_heads(
            x, matrix(width, expert.width), bias, scale, 1e-6, table, rank, heads,
            cache[-suffix:], cache[-suffix:],
        )  # fmt: skip
    vla_linear_triton.project_add(x, new(suffix, queries), matrix(expert.width, queries), scale)
    vla_linear_triton.project_add(x, new(suffix, queries), matrix(expert.width, queries), None)
    hidden = new(2 * expert.mlp, dtype=wide)
    weight = matrix(2 * expert.mlp, expert.width)
    vla_linear_triton.project_gated(x, weight, hidden, scale, 1e-6, kind)
    vla_linear_triton.project_gated(x, weight, None, scale, 1e-6, kind)
    down = matrix(expert.width, expert.mlp)
    vla_linear_triton.project_add(x, new(suffix, expert.mlp), down, scale)
    chunk = new(50, sizes.action, dtype=wide)
    first = Matrix(new(expert.width, sizes.action))
    vla_linear_triton.project(chunk, first, scale, None, 0.0, 'silu', None)
    vla_linear_triton.project(chunk[:1], first, scale, None, 0.0, '', None)
    square = Matrix(new(expert.width, expert.width))
    vla_linear_triton.project(x, square, scale, None, 0.0, '', None)
    leave, bias = Matrix(new(sizes.action, expert.width)), new(sizes.action, dtype=wide)
    vla_linear_triton.project(x, leave, bias, scale, 1e-6, '', wide)
    vla_noise_triton.normal_(chunk, new(1, dtype=torch.int64), new(1, dtype=torch.int64))
    vla_flow_triton.advance(chunk, chunk, chunk, new(50, 1, dtype=wide), 0.5, 1.0, 0.1)


def launches(shared: int, float8: bool, early: bool) -> list[lm_aot.Launch]:
    """Return one launch of every distinct setting of the three families at full size."""
    with recorded(shared, early) as seen:
        _family(FULL['pi05'], 712, 50, 'gelu', float8)
        _family(FULL['pi0'], 560, 51, 'gelu', float8)
        _family(FULL['smolvla'], 177, 50, 'silu', float8)
    distinct: dict[str, lm_aot.Launch] = {}
    for kernel, args, kwargs in seen:
        types = [a.dtype for a in args if isinstance(a, torch.Tensor)]
        distinct.setdefault(
            f'{kernel.fn.__name__} {sorted(kwargs.items())} {types}', (kernel, args, kwargs)
        )
    return list(distinct.values())
