"""Every launch of a round at a real model's dimensions, recorded for ahead-of-time compilation."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / 'policies_lm'))
from lm_aot import Launch, recorded

from flashrt_policies.hybrid_lm.fork.engine import room
from flashrt_policies.kernels.fork.attention import KeySlots
from flashrt_policies.kernels.fork.delta import DeltaSlots
from flashrt_policies.kernels.fork.stream import views


def launches(
    shared: int, dtype: torch.dtype = torch.bfloat16, reads: tuple[bool, ...] = (False, True)
) -> list[Launch]:
    """Return every launch that Qwen3.5-0.8B's dimensions give, one per distinct setting.

    Args:
        shared: bytes of shared memory that one program may use.
        dtype: of activations and weights.
        reads: attention of all rows, of those that are read.
    """
    from flashrt_policies.kernels.fork import attention_triton as fork_attention_triton
    from flashrt_policies.kernels.fork import delta_triton as fork_delta_triton
    from flashrt_policies.kernels.fork import head_triton as fork_head_triton
    from flashrt_policies.kernels.fork import place_triton as fork_place_triton
    from flashrt_policies.kernels.fork import stream_triton as fork_stream_triton

    def new(*shape: int, kind: torch.dtype = dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=kind)

    wide, hidden, heads, kv, dim, channels = torch.float32, 1024, 8, 2, 256, 6144
    apart = torch.zeros(4, dtype=torch.int64)
    with recorded(shared) as seen:
        for count, steady in ((256, True), (256, False)):
            sizes = room(count, 4)
            tables = views(torch.zeros(sizes.words, dtype=torch.int32), sizes, steady)
            rows = fork_stream_triton.spread(tables, 3)
            history = [new(1, 8192, kind=torch.int32)]
            fork_stream_triton.embed(tables, rows, new(500, hidden), history, apart)
            proj = new(count, channels + 2048 + 32)
            vector = new(16, kind=wide)
            slots = DeltaSlots([new(3, channels)], [new(16, 128, 128, kind=wide)], apart, apart)
            fork_delta_triton.mix(
                proj, tables, rows, slots, new(4, channels), vector, vector,
                new(128, kind=wide), 1e-6, (16, 16, 128, 128),
            )  # fmt: skip
            keys = new(kv, 8192, dim)
            place = KeySlots([keys], [keys], apart, apart, new(2, kv, count, dim))
            scale = new(dim, kind=wide)
            q, gate = new(count, heads, 2 * dim).split(dim, -1)
            k = new(count, kv, dim)
            turn = fork_stream_triton.rotary(tables, rows, new(32, kind=wide))[1]
            turned = fork_place_triton.place(k, k, rows, place, turn, scale, 1e-6, q, scale)
            fork_place_triton.place(k, k, rows, place, turn, scale, 1e-6)
            fork_place_triton.turned_queries(q, rows, turn, scale, 1e-6)
            lists = fork_attention_triton.plan(tables, heads, kv, 8192, 2)
            for read in reads:
                fork_attention_triton.attend(turned, tables, rows, place, gate, lists, read)
            logits = new(sizes.options, kind=wide)
            fork_head_triton.option_logits(new(64, hidden), new(500, hidden), tables, logits)
    distinct: dict[str, Launch] = {}
    for kernel, args, kwargs in seen:
        name = f'{kernel.fn.__name__} {sorted(kwargs.items())}'
        distinct.setdefault(name, (kernel, args, kwargs))
    return list(distinct.values())
