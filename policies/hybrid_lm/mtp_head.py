"""The multi-token prediction head: one full-attention layer that guesses the token after next.

It reads the embedding of token i + 1 and the hidden state that the model left at token i, each
normed, and its own result is read by the model's own head (the MTP modules of DeepSeek-V3, arXiv
2412.19437, section 2.2, as Qwen3.5's checkpoints store them). Slot i of its keys and values
belongs to that pair, so N tokens consumed fill N - 1 slots: the last hidden state waits for the
token that comes next.
"""

from __future__ import annotations

import torch
from torch import Tensor

from flashrt_policies.hybrid_lm.config import LMConfig
from flashrt_policies.hybrid_lm.layers import Stretch, mix_full
from flashrt_policies.hybrid_lm.weights import DraftHead
from flashrt_policies.kernels.attention import place
from flashrt_policies.kernels.linear import gated, linear, project
from flashrt_policies.kernels.norm import add_rms_norm


def stem(config: LMConfig, head: DraftHead, embedded: Tensor, hidden: Tensor) -> Tensor:
    """Return the input of the head's layer.

    Args:
        config: the model's dimensions.
        head: the head's weights.
        embedded: embeddings of the tokens after [M, hidden].
        hidden: the hidden states before them [M, hidden], normed as the model's head reads them.

    Returns:
        [M, hidden].
    """
    both = (
        add_rms_norm(embedded, None, head.norm_embedding, config.eps),
        add_rms_norm(hidden, None, head.norm_hidden, config.eps),
    )
    return linear(torch.cat(both, 1), head.fc)


def remember(
    config: LMConfig,
    head: DraftHead,
    embedded: Tensor,
    hidden: Tensor,
    keys: Tensor,
    values: Tensor,
    at: Stretch,
) -> None:
    """Write the keys and values of pairs that are known; nothing is drafted.

    Args:
        config: the model's dimensions.
        head: the head's weights.
        embedded: embeddings of the tokens after [M, hidden].
        hidden: the hidden states before them [M, hidden].
        keys: [KV, T, D], slots ``at.position`` .. + ``at.valid`` are written.
        values: [KV, T, D], likewise.
        at: the first slot, and how many of the M pairs count.
    """
    c, layer, dim = config, head.layer, config.head_dim
    x = stem(c, head, embedded, hidden)
    own = 2 * c.kv_heads * dim  # the last rows of the projection: keys and values
    bias = None if layer.b_in is None else layer.b_in[-own:]
    proj = linear(add_rms_norm(x, None, layer.norm_in, c.eps), layer.w_in[-own:], bias)
    k, v = proj.unflatten(1, (2, c.kv_heads, dim)).unbind(1)
    none = proj.as_strided((proj.shape[0], 0, dim), (proj.stride(0), dim, 1))  # no queries
    place(
        none, k, v, keys, values, at.position, at.valid, at.freq, layer.q_norm, layer.k_norm,
        c.eps,
    )  # fmt: skip


def draft(
    config: LMConfig,
    head: DraftHead,
    embedded: Tensor,
    hidden: Tensor,
    keys: Tensor,
    values: Tensor,
    at: Stretch,
) -> Tensor:
    """Return what the model's head reads the next guess from; fills one slot.

    Args:
        config: the model's dimensions.
        head: the head's weights.
        embedded: the embedding of the last token [1, hidden].
        hidden: the hidden state before it [1, hidden]; of a guess, what `draft` returned for it.
        keys: [KV, T, D], slot ``at.position`` is written.
        values: [KV, T, D], likewise.
        at: the slot.

    Returns:
        [1, hidden].
    """
    c, layer = config, head.layer
    x = stem(c, head, embedded, hidden)
    if x.is_cuda:
        from flashrt_policies.hybrid_lm.step import step_full
        from flashrt_policies.kernels.linear_triton import row

        proj = row(x, layer.w_in, bias=layer.b_in, scale=layer.norm_in, eps=c.eps)
        mixed = step_full(c, layer, proj, keys, values, at)
        row(mixed, layer.w_out, bias=layer.b_out, add=x)
        act = row(x, layer.w_gate_up, scale=layer.norm_mlp, eps=c.eps, pair=True)
        row(act, layer.w_down, add=x)
        return add_rms_norm(x, None, head.norm, c.eps)
    mixed = mix_full(c, layer, add_rms_norm(x, None, layer.norm_in, c.eps), keys, values, at)
    h = project(mixed, layer.w_out, layer.b_out, x, layer.norm_mlp, c.eps)
    return project(gated(h, layer.w_gate_up), layer.w_down, None, x, head.norm, c.eps)
