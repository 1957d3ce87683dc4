"""How good a chunk is, told to the network: rows it is trained with, folded away to act.

A chunk of the policy's own episodes is called good or bad by its advantage. A row for either is
added to the condition of the expert's modulations, in training only; RECAP (arXiv 2511.14759) has
a text in its place, "Advantage: positive". The rows start at zero, so the network acts as before
until it learns better. To act, the row for good is added to a bias once and for all: the exported
policy is an ordinary one, and as fast.
"""

from __future__ import annotations

import copy

import torch
from torch import nn

from flashrt_policies.flow_vla.expert import REACH
from flashrt_policies.flow_vla.model import FlowVLA

UNSAID, BAD, GOOD = 0, 1, 2  # indicator of a chunk


def conditioned(model: FlowVLA) -> FlowVLA:
    """Return a copy that takes an indicator, and acts to the bit as `model` whatever it is."""
    grown = copy.deepcopy(model)
    rows = torch.zeros(2, grown.expert.condition_width, device=grown.low.device)
    grown.expert.advantage = nn.Parameter(rows)
    return grown


def settled(model: FlowVLA, indicator: int) -> FlowVLA:
    """Return a copy without rows that acts as `model` does under `indicator`.

    Raises:
        IndexError: the indicator is not one of `UNSAID`, `BAD` and `GOOD`.
    """
    if indicator not in (UNSAID, BAD, GOOD):
        raise IndexError(f'indicator {indicator}; want {UNSAID}, {BAD} or {GOOD}')
    plain = copy.deepcopy(model)
    rows, plain.expert.advantage = plain.expert.advantage, None
    if rows is not None and indicator != UNSAID:
        with torch.no_grad():
            plain.expert.summary.bias.add_(REACH * rows[indicator - 1])
    return plain
