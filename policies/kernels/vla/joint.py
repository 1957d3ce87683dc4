"""Projection and attention of an expert's layer together: its queries, and what they gather.

Where heads are small, tokens few and numbers of two bytes, one launch does both: a program makes
the queries of one head, and again the keys and values that it shares with others, which costs less
than to wait for another launch. Elsewhere it is `linear.project_heads`, then `attention.attend`.
"""

from __future__ import annotations

from torch import Tensor

from flashrt_policies.kernels.vla.attention import attend
from flashrt_policies.kernels.vla.linear import Stream, project_heads
from flashrt_policies.kernels.vla.matrix import Matrix
from flashrt_policies.kernels.vla.rope import Heads, Rotary

SMALL = 64  # numbers in a head, and tokens, up to which one launch does both


def project_attend(
    stream: Stream,
    weight: Matrix,
    bias: Tensor | None,
    scale: Tensor,
    eps: float,
    table: Rotary,
    positions: Tensor,
    ranks: tuple[Tensor, Tensor],
    heads: Heads,
    kv: Tensor,
) -> Tensor:
    """Norm, joint projection, rotation, and attention to the prefix and to each other.

    Args:
        stream: of [T, K].
        weight: [(H + 2 KV) D, K], as in `project_heads`; [H D, K] attends to the prefix alone.
        bias: float32 [N], or None.
        scale: float32 [K] of the norm.
        eps: of the norm.
        table: cosines and sines.
        positions: int32 [T].
        ranks: int32 of the tokens [T], and of prefix and tokens [P + T]; see `attention`.
        heads: H, KV, D.
        kv: keys and values [2, P + T, KV, D]. The last T rows are the tokens' own: written, or
            left as they are where nothing reads them.

    Returns:
        [T, H, D], type of the stream.
    """
    x = stream.x
    tokens = x.shape[0]
    if not x.is_cpu and x.element_size() == 2 and tokens <= SMALL and heads.dim <= SMALL:
        from flashrt_policies.kernels.vla import joint_triton

        return joint_triton.project_attend(
            stream, weight, bias, scale, eps, table, positions, ranks, heads, kv
        )
    keys, values = kv
    own = keys[-tokens:], values[-tokens:]
    q = project_heads(stream, weight, bias, scale, eps, table, positions, heads, *own)
    if weight.data.shape[0] == heads.queries * heads.dim:
        keys, values = keys[:-tokens], values[:-tokens]
    return attend(q, keys, values, ranks[0], ranks[1][: keys.shape[0]])
