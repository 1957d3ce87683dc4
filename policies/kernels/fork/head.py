"""Logits of the options alone: each branch's last hidden state against its options' rows."""

from __future__ import annotations

from torch import Tensor

from flashrt_policies.kernels.fork.stream import Tables


def option_logits(hidden: Tensor, head: Tensor, tables: Tables, logits: Tensor) -> None:
    """Write the logits of every option.

    Args:
        hidden: [B, K], normed, one row per branch.
        head: [vocab, K].
        tables: the round; ``tables.options`` says branch and token of each option.
        logits: float32 [options], written; unused ones are meaningless.
    """
    if hidden.is_cuda:
        from flashrt_policies.kernels.fork import head_triton

        return head_triton.option_logits(hidden, head, tables, logits)
    branch, token = tables.options.long().unbind(1)
    rows = head.index_select(0, token).float()
    logits.copy_((hidden.index_select(0, branch).float() * rows).sum(-1))
    return None


def read_rows(x: Tensor, tables: Tables) -> Tensor:
    """Return the rows that are read, [B, ...] of [M, ...]."""
    return x.index_select(0, tables.reads)
