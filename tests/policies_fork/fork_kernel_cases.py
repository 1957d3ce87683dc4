"""Every Triton kernel of a round against its torch reference, over random trees.

Run as a script it takes the device, the element type and a seed: ``fork_kernel_cases.py cpu
float32 0`` under TRITON_INTERPRET=1 needs no GPU. On a GPU the references run on the CPU over the
same values. Each case yields the largest error relative to the largest value; the script fails
when one is above its bound.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / 'policies_lm'))
from lm_kernel_cases import Draw, interpreter_with_new_numpy
from lm_truth import error

from flashrt_policies.hybrid_lm.fork.engine import room
from flashrt_policies.hybrid_lm.fork.plan import Placed, joined, lay_out, sizes_of
from flashrt_policies.hybrid_lm.fork.request import Checked
from flashrt_policies.kernels.fork import attention as fork_attention
from flashrt_policies.kernels.fork import delta as fork_delta
from flashrt_policies.kernels.fork import head as fork_head
from flashrt_policies.kernels.fork import stream as fork_stream
from flashrt_policies.kernels.fork.stream import Tables

CAPACITY = 320
SLOTS = 3


@dataclass(frozen=True)
class Tree:
    """A random round twice: for the kernels, in a stream with room to spare, and exactly."""

    here: Tables
    there: Tables
    rows: Tensor
    there_rows: Tensor
    placed: list[Placed]

    @property
    def used(self) -> int:
        """Rows in use."""
        return self.there.sizes.rows


def tree(d: Any, back: int, marked: bool = False) -> Tree:
    """Draw a round of one to three requests, some resumed, and lay it out.

    With `marked` the first one leaves a checkpoint in its slot and has a branch of two chunks.
    """
    rng, most = d.rng, 80

    def words(count: int) -> Any:
        return np.array([rng.randrange(50) for _ in range(count)], dtype=np.int32)

    placed = []
    for slot in rng.sample(range(SLOTS), rng.choice([1, 1, 2, 3])):
        resumed = rng.choice([0, 0, 64, 128])
        state = words(resumed + rng.choice([1, 2, 63, 64, 65, rng.randint(1, most)]))
        if resumed and rng.random() < 0.3:
            state = state[:resumed]  # everything is there already
        branches = [
            words(rng.choice([1, 2, 3, 64, 65, rng.randint(1, most)]))
            for _ in range(rng.randint(1, 3))
        ]
        keep = rng.random() < 0.7
        if marked and not placed:
            state, keep = words(resumed + rng.choice([64, 65, 130])), True
            branches[0] = words(70)
        options = [words(rng.randint(1, 5)) for _ in branches]
        placed.append(Placed(Checked.of(state, branches, options, keep), slot, resumed))
    exact = sizes_of(placed[0].asked, placed[0].resumed)
    for x in placed[1:]:
        exact = joined(exact, sizes_of(x.asked, x.resumed))
    padded = room(exact.rows + 9, SLOTS, exact)
    padded = replace(padded, branches=exact.branches + 3, chunks=exact.chunks + 2)
    tables = []
    for sizes, device in ((padded, d.device), (exact, 'cpu')):
        flat = np.full(sizes.words, 7, dtype=np.int32)
        lay_out(placed, sizes, flat)
        tables.append(fork_stream.views(torch.from_numpy(flat).to(device), sizes))
    there_rows = fork_stream.spread(tables[1], back)
    from flashrt_policies.kernels.fork import stream_triton as fork_stream_triton

    rows = fork_stream_triton.spread(tables[0], back)
    return Tree(tables[0], tables[1], rows, there_rows, placed)


def stream(d: Any) -> Iterator[tuple[str, float]]:
    """Rows, the inputs before them, and embeddings."""
    from flashrt_policies.kernels.fork import stream_triton as fork_stream_triton

    for back in (3, 1, 0):
        t = tree(d, back)
        got = t.rows.cpu()
        assert (got[:4, t.used :] == -1).all()
        for index, (mine, want) in enumerate(zip(got, t.there_rows, strict=True)):
            want = want.clone()
            if index == fork_stream.ROW_SEGMENT:  # branches follow the room for trunks
                want[want >= t.there.sizes.requests] += SLOTS - t.there.sizes.requests
            assert torch.equal(mine[: t.used], want), (index, back)
        weight = d.normal(50, 70)
        mine = [torch.zeros(1, CAPACITY, dtype=torch.int32, device=d.device) for _ in range(SLOTS)]
        want = [x.cpu().clone() for x in mine]
        x = fork_stream_triton.embed(t.here, t.rows, weight, mine, fork_stream.offsets(mine))
        y = fork_stream.embed(
            t.there, t.there_rows, weight.cpu(), want, torch.zeros(SLOTS, dtype=torch.int64)
        )
        assert torch.equal(x[: t.used].cpu(), y) and not x[t.used :].any()
        assert all(torch.equal(a.cpu(), b) for a, b in zip(mine, want, strict=True))
        yield f'stream {t.used} rows', 0.0


# (H, HV, K, V), taps of the convolution.
DELTA = (((1, 2, 16, 20), 4), ((2, 2, 8, 16), 3), ((2, 4, 16, 16), 2))


def delta(d: Any) -> Iterator[tuple[str, float]]:
    """A linear layer between its products: outputs, checkpoints, windows."""
    from flashrt_policies.kernels.fork import delta_triton as fork_delta_triton

    for dims, taps in DELTA:
        key_heads, heads, key_dim, dim = dims
        channels = 2 * key_heads * key_dim + heads * dim
        t = tree(d, taps - 1, marked=True)
        proj = d.normal(t.here.sizes.rows, channels + heads * dim + 2 * heads)
        conv, norm = d.normal(taps, channels, std=0.5), d.wide(dim)
        decay, bias = -d.wide(heads).abs() * 0.1, d.wide(heads)
        windows = [d.normal(taps - 1, channels) for _ in range(SLOTS)]
        states = [d.wide(heads, key_dim, dim) for _ in range(SLOTS)]
        kept = [x.clone() for x in states]
        there = fork_delta.DeltaSlots(
            [x.cpu().float().clone() for x in windows], [x.cpu().clone() for x in states],
            *[torch.zeros(SLOTS, dtype=torch.int64)] * 2,
        )  # fmt: skip
        want = fork_delta.mix(
            proj[: t.used].cpu().float(), t.there, t.there_rows, there, conv.cpu().float(),
            decay.cpu(), bias.cpu(), norm.cpu(), 1e-6, dims,
        )  # fmt: skip
        here = fork_delta.DeltaSlots(
            windows, states, fork_stream.offsets(windows), fork_stream.offsets(states)
        )
        # Stretches, as in long streams, for some.
        with mock.patch.object(fork_delta_triton, 'LONG', 128 if taps == 4 else 1 << 20):
            got = fork_delta_triton.mix(
                proj, t.here, t.rows, here, conv, decay, bias, norm, 1e-6, dims
            )
        name = f'delta {t.used} rows {dims}'
        yield name, error(got[: t.used], want.double())
        for a, b in zip(states, there.recurrent, strict=True):
            yield f'{name} state', error(a, b.double())
        assert any(not torch.equal(a, b) for a, b in zip(states, kept, strict=True))
        for a, b in zip(windows, there.window, strict=True):
            assert torch.equal(a.cpu().float(), b)


def attention(d: Any) -> Iterator[tuple[str, float]]:
    """Keys placed, queries turned, all rows and read rows attended to."""
    from flashrt_policies.kernels.fork import attention_triton as triton_path
    from flashrt_policies.kernels.fork import place_triton as fork_place_triton
    from flashrt_policies.kernels.fork import stream_triton as fork_stream_triton

    shapes = ((2, 1, 16, 8, True), (3, 1, 24, 3, True), (4, 2, 32, 4, False), (2, 2, 20, 10, True))
    for number, (heads, kv, dim, half, full) in enumerate(shapes):
        t = tree(d, 0)
        count = t.here.sizes.rows
        wide = 2 * dim if full else dim
        proj = d.normal(count, heads * wide + 2 * kv * dim)
        q, k, v = proj.split((heads * wide, kv * dim, kv * dim), dim=1)
        q = q.unflatten(1, (heads, wide))
        k, v = k.unflatten(1, (kv, dim)), v.unflatten(1, (kv, dim))
        gate = q[..., dim:] if full else None
        q = q[..., :dim]
        scales = (d.wide(dim), d.wide(dim)) if full else (None, None)
        freq = (10000.0 ** -(torch.arange(half) / half)).to(d.device)
        buffers = [d.normal(2, kv, CAPACITY, dim) for _ in range(SLOTS)]
        fresh = torch.full((2, kv, count, dim), float('nan'), dtype=d.dtype, device=d.device)
        keys, values = [b[0] for b in buffers], [b[1] for b in buffers]
        here = fork_attention.KeySlots(
            keys, values, fork_stream.offsets(keys), fork_stream.offsets(values), fresh
        )
        copies = [b.cpu().float().clone() for b in buffers]
        none = torch.zeros(SLOTS, dtype=torch.int64)
        there = fork_attention.KeySlots(
            [b[0] for b in copies], [b[1] for b in copies], none, none,
            torch.zeros(2, kv, t.used, dim),
        )  # fmt: skip

        def low(x: Tensor | None, used: int = t.used) -> Tensor | None:
            return None if x is None else x[:used].cpu().float()

        scale = [None if s is None else s.cpu() for s in scales]
        there_reads, turn, there_turn = fork_stream.rotary(t.there, t.there_rows, freq.cpu())
        want = fork_attention.place(
            low(k), low(v), t.there_rows, there, turn, scale[1], 1e-6, low(q), scale[0]
        )
        reads, here_turn, read_turn = fork_stream_triton.rotary(t.here, t.rows, freq)
        known = t.there.sizes.branches
        assert torch.equal(reads.cpu(), t.rows[:, t.here.reads.long()].cpu())
        assert torch.equal(reads[2, :known].cpu(), there_reads[2])
        for mine, other in zip((*here_turn, *read_turn), (*turn, *there_turn), strict=True):
            yield f'rotations {half}', error(mine[: len(other)], other.double())
        turn = here_turn
        turned = fork_place_triton.place(k, v, t.rows, here, turn, scales[1], 1e-6, q, scales[0])
        apart = fork_place_triton.turned_queries(q, t.rows, turn, scales[0], 1e-6)
        assert torch.equal(apart[: t.used], turned[: t.used])
        yield f'queries {heads}x{dim}', error(turned[: t.used], want.double())
        for a, b in zip(buffers, copies, strict=True):
            yield f'keys {heads}x{dim}', error(a, b.double())
        lists = triton_path.plan(t.here, heads, kv, CAPACITY, d.dtype.itemsize)
        if number != 1:  # splits small enough to matter here
            few = 64 if number else 128
            with mock.patch.object(triton_path, 'split_size', return_value=few):
                lists = triton_path.plan(t.here, heads, kv, CAPACITY, d.dtype.itemsize)
        if d.dtype != torch.float32:  # the same rounded keys and queries on both sides
            want = turned[: t.used].cpu().float()
            for a, b in zip(buffers, copies, strict=True):
                b.copy_(a.cpu().float())
            there.fresh.copy_(fresh[:, :, : t.used].cpu().float().nan_to_num())
        out = fork_attention.attend(want, t.there, t.there_rows, there, low(gate), lists, False)
        # Programs that go round the list, as in short streams, and one for each item.
        with mock.patch.object(triton_path, 'SHORT', 0 if number == 2 else 1 << 20):
            got = triton_path.attend(turned, t.here, t.rows, here, gate, lists, False)
        name = f'attention {t.used} rows {heads}/{kv}x{dim} split {lists.split}'
        yield name, error(got[: t.used], out.double())
        n = t.there.sizes.branches
        reads = t.here.reads.long()
        got = triton_path.attend(
            turned[reads].contiguous(), t.here, t.rows[:, reads].contiguous(), here,
            None if gate is None else gate[reads], lists, True,
        )  # fmt: skip
        yield f'{name} read', error(got[:n], out[t.there.reads.long()].double())


def head(d: Any) -> Iterator[tuple[str, float]]:
    """Logits of the options."""
    from flashrt_policies.kernels.fork import head_triton as fork_head_triton

    for depth in (40, 600):
        t = tree(d, 0)
        hidden, weight = d.normal(t.here.sizes.branches, depth), d.normal(50, depth)
        got = torch.full((t.here.sizes.options,), float('nan'), device=d.device)
        want = torch.zeros(t.there.sizes.options)
        fork_head_triton.option_logits(hidden, weight, t.here, got)
        count = t.there.sizes.branches
        fork_head.option_logits(hidden[:count].cpu().float(), weight.cpu().float(), t.there, want)
        yield f'options {len(want)}', error(got[: len(want)], want.double())


CASES: tuple[Callable[[Any], Iterator[tuple[str, float]]], ...] = (
    stream, delta, attention, head,
)  # fmt: skip
BOUNDS = {torch.float32: 2e-5, torch.bfloat16: 3e-2}


def main() -> int:
    """Run every case; return 1 when an error is above its bound."""
    parser = argparse.ArgumentParser()
    parser.add_argument('device')
    parser.add_argument('dtype')
    parser.add_argument('seed', type=int)
    parser.add_argument('only', nargs='?')
    args = parser.parse_args()
    dtype = getattr(torch, args.dtype)
    torch.set_num_threads(2)
    if args.device == 'cpu':
        interpreter_with_new_numpy()
    bad = 0
    for case in CASES:
        if args.only in (None, case.__name__):
            d = Draw(args.device, dtype, args.seed)
            random.seed(args.seed)
            for name, value in case(d):
                wrong = not value <= BOUNDS[dtype]
                bad += wrong
                print(f'{"FAIL" if wrong else "ok  "} {name}: {value:.2e}', flush=True)
    return int(bad > 0)


if __name__ == '__main__':
    sys.exit(main())
