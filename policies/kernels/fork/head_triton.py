"""Triton kernel of `fork.head`: a dot product per option."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from flashrt_policies.kernels.fork.stream import OPTIONS, Tables

PER = 4  # options of one program


@triton.jit
def option_logits_kernel(
    hidden_ptr, head_ptr, counts_ptr, options_ptr, out_ptr, depth,
    USED: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """N options: their branch's hidden state times their row of the head, in float32."""
    j = tl.program_id(0) * N + tl.arange(0, N)
    used = tl.load(counts_ptr + USED)
    if tl.program_id(0) * N >= used:
        return
    branch = tl.load(options_ptr + 2 * j, mask=j < used, other=0).to(tl.int64)
    token = tl.load(options_ptr + 2 * j + 1, mask=j < used, other=0).to(tl.int64)
    acc = tl.zeros((N, K), tl.float32)
    for start in range(0, depth, K):
        at = start + tl.arange(0, K)
        mask = (j < used)[:, None] & (at < depth)[None, :]
        x = tl.load(hidden_ptr + branch[:, None] * depth + at[None, :], mask=mask, other=0.0)
        w = tl.load(head_ptr + token[:, None] * depth + at[None, :], mask=mask, other=0.0)
        acc += x.to(tl.float32) * w.to(tl.float32)
    tl.store(out_ptr + j, tl.sum(acc, 1), mask=j < used)


def option_logits(hidden: Tensor, head: Tensor, tables: Tables, logits: Tensor) -> None:
    """Launch `fork.head.option_logits` on CUDA."""
    depth = hidden.shape[1]
    option_logits_kernel[(triton.cdiv(tables.sizes.options, PER),)](
        hidden, head, tables.counts, tables.options, logits, depth,
        USED=OPTIONS, N=PER, K=min(512, triton.next_power_of_2(depth)), num_warps=4,
    )  # fmt: skip
