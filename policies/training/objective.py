"""The training loss: conditional flow matching on action chunks.

Lipman et al., arXiv 2210.02747, equation 23, with the straight path; flow times from Beta(1.5, 1)
that favours noisy chunks, as in π0 (arXiv 2410.24164, appendix B).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from flashrt_policies.flow_vla.model import FlowVLA
from flashrt_policies.training.augment import Augmentation
from flashrt_policies.training.data import Batch
from flashrt_policies.training.recipe import Loss


def chunk_weights(loss: Loss, horizon: int, device: torch.device) -> Tensor:
    """Return the weight of each action of a chunk, [T]."""
    at = torch.arange(horizon, device=device)
    executed = (at >= loss.first) & (at < loss.last)
    return torch.where(executed, 1.0, loss.outside)


Velocity = Callable[..., Tensor]


def velocity(
    model: FlowVLA,
    images: Tensor,
    proprio: Tensor,
    rows: Tensor,
    known: Tensor,
    noisy: Tensor,
    time: Tensor,
    indicator: Tensor | None = None,
) -> Tensor:
    """Return the network's velocity [B * draws, T, A]: all that is differentiated, one callable.

    Args:
        model: the network in training.
        images: in [-1, 1], [B, V, H, W, 3].
        proprio: [B, P].
        rows: instruction rows [B, L].
        known: bool [B], where the proprioception is shown.
        noisy: [B * draws, T, A], the draws of one observation in a row.
        time: flow times, [B * draws].
        indicator: how good each chunk is said to be, int64 [B].
    """
    draws = len(noisy) // len(images)
    kv, summary = model.prefix(model.trunk(images), proprio, rows, known)
    kv = kv.repeat_interleave(draws, dim=2)
    summary = summary.repeat_interleave(draws, dim=0)
    if indicator is not None:
        indicator = indicator.repeat_interleave(draws, dim=0)
    return model.expert(noisy, kv, model.expert.modulations(time, summary, indicator))


def flow_loss(
    model: FlowVLA,
    batch: Batch,
    augment: Augmentation,
    loss: Loss,
    generator: torch.Generator,
    network: Velocity = velocity,
) -> Tensor:
    """Return the loss of a batch, a scalar.

    Args:
        model: the network in training.
        batch: B frames and the chunks that start there.
        augment: how the observations are disturbed.
        loss: weights along the chunk and draws per observation.
        generator: of all random numbers, on the batch's device.
        network: `velocity`, or what a compiler made of it.
    """
    device, draws = batch.actions.device, loss.draws
    images = augment.images(batch.images, generator)
    proprio, known = augment.proprio(batch.proprio, model.proprio_std, generator)

    target = (batch.actions - model.action_mean) / model.action_std  # [B, T, A]
    target = target.repeat_interleave(draws, dim=0)
    noise = torch.randn(target.shape, generator=generator, device=device)
    uniform = torch.rand(len(target), generator=generator, device=device)
    time = 0.999 * (1.0 - uniform ** (1.0 / 1.5))  # [B * draws]
    at = time[:, None, None]
    noisy = (1.0 - at) * noise + at * target
    said = batch.indicator
    if said is not None:
        said = augment.indicator(said, generator)
    found = network(model, images, proprio, batch.rows, known, noisy, time, said)
    error = (found.float() - (target - noise)).square().mean(-1)  # [B * draws, T]

    weight = chunk_weights(loss, target.shape[1], device) * batch.valid  # [B, T]
    weight = weight.repeat_interleave(draws, dim=0)
    return (error * weight).sum() / weight.sum().clamp(min=1.0)
