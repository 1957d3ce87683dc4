"""Rotation, attention, and the projections before it, against float64; see `vla_kernel_cases`."""

from __future__ import annotations

from unittest import mock

import torch
from torch import Tensor
from vla_case_tools import Draw, Errors, error, norm, prepared, table, wide

from flashrt_policies.kernels.vla import attention as vla_attention
from flashrt_policies.kernels.vla import rope as vla_rope
from flashrt_policies.kernels.vla.linear import Stream
from flashrt_policies.kernels.vla.matrix import Matrix
from flashrt_policies.kernels.vla.rope import Heads


def rotations(d: Draw) -> Errors:
    """The split of a joint projection, with keys and values in the middle of a cache."""
    from flashrt_policies.kernels.vla import rope_triton as kernels

    for rows, heads in ((3, Heads(2, 1, 16)), (5, Heads(3, 1, 64)), (2, Heads(4, 2, 32))):
        made, exact = table(d, 40, heads.dim)
        qkv = d.normal(rows, (heads.queries + 2 * heads.kv) * heads.dim)
        positions = torch.randint(0, 40, (rows,), dtype=torch.int32).to(d.device)
        cache = d.normal(2, rows + 4, heads.kv, heads.dim)
        truth = torch.zeros(2, rows, heads.kv, heads.dim, dtype=torch.float64)
        spots = cache[0, 1 : 1 + rows], cache[1, 2 : 2 + rows]
        before = cache.clone()
        q = kernels.split_rotate(qkv, made.at(positions), heads, *spots)
        want = vla_rope.split_rotate_plain(wide(qkv), exact.at(positions.cpu()), heads, *truth)
        worst = max(error(q, want), *(error(a, b) for a, b in zip(spots, truth, strict=True)))
        same = torch.equal(before[0, :1], cache[0, :1]) and torch.equal(
            before[0, 1 + rows :], cache[0, 1 + rows :]
        )
        yield f'rotate {rows} {tuple(heads)}', worst if same else float('inf')


def attention(d: Draw) -> Errors:
    """Ranks of every kind: padding, a state that sees no actions, causal actions."""
    from flashrt_policies.kernels.vla import attention_triton as kernels

    cases = ((3, 5, Heads(2, 1, 16)), (11, 150, Heads(3, 1, 64)), (9, 130, Heads(4, 2, 32)))
    for tokens, span, heads in cases:
        q = d.normal(tokens, heads.queries, heads.dim)
        k, v = d.normal(2, span, heads.kv, heads.dim)
        rank_k = torch.zeros(span, dtype=torch.int32)
        rank_k[span // 2 : span // 2 + 2] = vla_attention.HIDDEN
        rank_k[-tokens:] = torch.arange(tokens, dtype=torch.int32) + 1
        rank_q = torch.arange(tokens, dtype=torch.int32) + 1
        on = (q, k, v, rank_q.to(d.device), rank_k.to(d.device))
        want = exact_attention(wide(q), wide(k), wide(v), rank_q, rank_k)
        for busy in (1, 132):  # whole, and in parts
            with (
                mock.patch.object(kernels, 'processors', lambda device, busy=busy: busy),
                mock.patch.object(kernels, 'FEW', 0),
            ):
                found = kernels.attend(*on)
            yield f'attend {tokens}x{span} {tuple(heads)} on {busy}', error(found, want)


def exact_attention(q: Tensor, k: Tensor, v: Tensor, rank_q: Tensor, rank_k: Tensor) -> Tensor:
    """`attend_plain` without its rounding to float32."""
    group = q.shape[1] // k.shape[1]
    keys, values = (x.repeat_interleave(group, 1) for x in (k, v))
    scores = torch.einsum('thd,shd->hts', q, keys) * q.shape[-1] ** -0.5
    scores = scores.masked_fill(rank_k[None, None] > rank_q[None, :, None], float('-inf'))
    return torch.einsum('hts,shd->thd', scores.softmax(-1), values)


def heads(d: Draw) -> Errors:
    """Norm, joint projection and rotation in one launch."""
    from flashrt_policies.kernels.vla import linear_triton as kernels

    for rows, shape, depth in ((3, Heads(2, 1, 16), 40), (18, Heads(3, 1, 64), 36)):
        made, exact = table(d, 40, shape.dim)
        width = (shape.queries + 2 * shape.kv) * shape.dim
        x, weight = d.normal(rows, depth), Matrix(d.normal(width, depth, std=depth**-0.5))
        scale, bias = d.wide(depth), d.wide(width)
        positions = torch.arange(rows, dtype=torch.int32, device=d.device) + 3
        turns = made.at(positions)
        cache = d.normal(2, rows, shape.kv, shape.dim)
        truth = torch.zeros(2, rows, shape.kv, shape.dim, dtype=torch.float64)
        q = kernels.project_heads(
            prepared(x, scale), weight, bias, scale, 1e-6, turns, shape, *cache
        )
        y = norm(wide(x), wide(scale)) @ wide(weight.data).mT + wide(bias)
        want = vla_rope.split_rotate_plain(y, exact.at(positions.cpu()), shape, *truth)
        worst = max(error(q, want), error(cache[0], truth[0]), error(cache[1], truth[1]))
        yield f'heads {rows} {tuple(shape)}', worst
        only = Matrix(weight.data[: shape.queries * shape.dim].contiguous())
        bias = bias[: shape.queries * shape.dim].contiguous()
        again = kernels.project_heads(
            Stream(x), only, bias, scale, 1e-6, turns, shape, cache[0], cache[1]
        )
        yield f'queries alone {rows} {tuple(shape)}', error(again, want)
