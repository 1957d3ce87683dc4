"""What return to expect at a picture: a distribution, fitted to a policy's own episodes.

A small network reads what the frozen policy makes of the picture and the words, and predicts how
the return is distributed (Bellemare et al., arXiv 1707.06887; fitted to what episodes really
returned, as in arXiv 2511.14759). Every episode is judged by a network that was fitted without it:
one that knew how the episode ended would expect just that, and nothing would surprise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from flashrt_policies.flow_vla.model import FlowVLA
from flashrt_policies.training.advantage import WORST
from flashrt_policies.training.data import DataError, Frames
from flashrt_policies.training.value_function import (
    ValueNetwork,
    ValueSizes,
    centres,
    layers,
    view,
)

__all__ = [
    'Value',
    'calibration',
    'centres',
    'cross_fit',
    'expected_returns',
    'features',
    'fit',
    'spread',
]


@dataclass(frozen=True)
class Value:
    """How the value function is fitted.

    Attributes:
        bins: of the distribution, from the worst return to 0.
        width: of its hidden layers.
        dropout: share of hidden units that are silent in a step.
        steps: optimiser steps of each fold.
        batch: pictures a step.
        rate: learning rate.
        decay: weight decay.
        folds: parts of the episodes; each is judged by a fit to the others.
    """

    bins: int = 81
    width: int = 256
    dropout: float = 0.3
    steps: int = 400
    batch: int = 1024
    rate: float = 1e-3
    decay: float = 0.1
    folds: int = 5


@torch.no_grad()
def features(
    model: FlowVLA,
    frames: Frames,
    slice_size: int = 128,
    bar: Callable[[Sequence[Tensor]], Iterable[Tensor]] = iter,
) -> Tensor:
    """Return what the policy makes of every picture and its words, [F, K]; see `view`.

    Args:
        model: the policy's network.
        frames: the pictures, on its device.
        slice_size: pictures at a time.
        bar: shows how far it is, for people.
    """
    found = []
    every = torch.arange(len(frames.seen), device=frames.device)
    for index in bar(every.split(slice_size)):
        images = torch.stack([shots[index] for shots in frames.images], dim=1)
        proprio, skill = frames.proprio[index], frames.skill[index]
        rows = frames.rows(skill, torch.zeros(len(index), device=frames.device))
        found.append(view(model, images, proprio, rows))
    return torch.cat(found)


def expected_returns(
    inputs: Tensor, returns: Tensor, episode: Tensor, value: Value, seed: int
) -> Tensor:
    """Return the return to expect at every picture, [F], by a fit to other episodes.

    For the arguments see `cross_fit`.
    """
    return cross_fit(inputs, returns, episode, value, seed)[0]


def cross_fit(
    inputs: Tensor, returns: Tensor, episode: Tensor, value: Value, seed: int
) -> tuple[Tensor, ValueNetwork]:
    """Return what to expect at every picture, [F], by a fit to other episodes, and all the fits.

    Args:
        inputs: of `features`, [F, K].
        returns: what the episodes really returned, [F], from `WORST` to 0.
        episode: which episode each picture is of, int64 [F].
        value: numbers of the fit.
        seed: of folds, weights and batches.

    Raises:
        DataError: there are fewer episodes than folds.
    """
    names = episode.unique()
    if len(names) < value.folds or value.folds < 2:
        raise DataError(
            f'{len(names)} episodes for {value.folds} folds of the value function; want at least '
            'as many, and two folds'
        )
    sizes = ValueSizes(inputs.shape[1], value.width, value.bins, value.folds)
    network = ValueNetwork(sizes, inputs).to(inputs.device)
    inputs = network.scaled(inputs)
    order = np.random.default_rng([seed, 1]).permutation(len(names))
    of_name = torch.from_numpy(order % value.folds).to(inputs.device)
    fold = of_name[torch.searchsorted(names, episode)]
    found = torch.empty_like(returns)
    for part in range(value.folds):
        network.folds[part] = fit(
            inputs[fold != part], returns[fold != part], value, seed * 100 + part
        )
        with torch.no_grad():
            found[fold == part] = network.expected(part, inputs[fold == part])
    return found, network


def fit(inputs: Tensor, returns: Tensor, value: Value, seed: int) -> nn.Module:
    """Return a network from inputs [F, K] to the logits of the return's bins [F, bins]."""
    device = inputs.device
    generator = torch.Generator(device).manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = layers(inputs.shape[1], value.width, value.bins).to(device)
    first, second, last = (network[i] for i in (0, 2, 4))
    optimizer = torch.optim.AdamW(network.parameters(), lr=value.rate, weight_decay=value.decay)
    targets = spread(returns, value.bins)
    for _ in range(value.steps):
        pick = torch.randint(len(inputs), (value.batch,), generator=generator, device=device)
        x = inputs[pick]
        for layer in (first, second):
            x = F.silu(layer(x))
            kept = torch.rand(x.shape, generator=generator, device=device) >= value.dropout
            x = x * kept / (1 - value.dropout)
        loss = F.cross_entropy(last(x), targets[pick])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    return network


def spread(returns: Tensor, bins: int) -> Tensor:
    """Return distributions [F, bins] over the two bins beside each return, of that very mean."""
    place = (returns - WORST) / -WORST * (bins - 1)
    below = place.floor().clamp(0, bins - 2)
    share = (place - below).clamp(0, 1)[:, None]
    at = below.long()[:, None]
    found = torch.zeros(len(returns), bins, device=returns.device)
    return found.scatter(1, at, 1 - share).scatter(1, at + 1, share)


def calibration(expected: np.ndarray, returned: np.ndarray, parts: int = 10) -> list[dict]:
    """Return, for ever higher expectations, what was expected and what was returned on average.

    Args:
        expected: of every picture, [F].
        returned: what followed, [F].
        parts: groups of as many pictures each.
    """
    groups = np.array_split(np.argsort(expected, kind='stable'), parts)
    return [
        {
            'expected': float(expected[group].mean()),
            'returned': float(returned[group].mean()),
            'spread': float(returned[group].std()),
            'pictures': len(group),
        }
        for group in groups
        if len(group)
    ]
