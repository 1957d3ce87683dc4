"""Attention of few queries over a fixed prefix and themselves, masked by ranks.

A query sees the keys whose rank is not above its own. Ranks say everything the policies need:
padding has a rank above all, image and language tokens 0, what may look at them but not be looked
at 1 and more, causal tokens rising ones.
"""

from __future__ import annotations

import torch
from torch import Tensor

HIDDEN = 1 << 20  # rank of padding


def attend(q: Tensor, k: Tensor, v: Tensor, rank_q: Tensor, rank_k: Tensor) -> Tensor:
    """Return softmax(q k / sqrt(D)) v under the ranks.

    Args:
        q: queries [T, H, D].
        k: keys [S, KV, D]; H is a multiple of KV.
        v: values [S, KV, D].
        rank_q: int32 [T].
        rank_k: int32 [S]; every query sees one key or more.

    Returns:
        [T, H, D], type of `q`.
    """
    if not q.is_cpu:
        from flashrt_policies.kernels.vla import attention_triton

        return attention_triton.attend(q, k, v, rank_q, rank_k)
    return attend_plain(q, k, v, rank_q, rank_k)


def attend_plain(q: Tensor, k: Tensor, v: Tensor, rank_q: Tensor, rank_k: Tensor) -> Tensor:
    """`attend` in plain torch: the reference."""
    group = q.shape[1] // k.shape[1]
    keys = k.transpose(0, 1).repeat_interleave(group, 0)  # [H, S, D]
    values = v.transpose(0, 1).repeat_interleave(group, 0)
    scores = torch.matmul(q.transpose(0, 1).float(), keys.float().mT) * q.shape[-1] ** -0.5
    scores = scores.masked_fill(rank_k[None, None, :] > rank_q[None, :, None], float('-inf'))
    weights = torch.softmax(scores, -1).to(v.dtype)
    return torch.matmul(weights, values).transpose(0, 1).contiguous()
