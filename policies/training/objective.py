"""The training loss: conditional flow matching on action chunks.

Lipman et al., arXiv 2210.02747, equation 23, with the straight path; flow times from Beta(1.5, 1)
that favours noisy chunks, as in π0 (arXiv 2410.24164, appendix B).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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
    moments = model.expert.moments(time)
    return model.expert(noisy, kv, model.expert.modulations(moments, summary, indicator))


@dataclass
class Drawn:
    """A batch with every random number drawn: what is differentiated, and what is wanted.

    Attributes:
        images: disturbed, [B, V, H, W, 3].
        proprio: disturbed, [B, P].
        rows: instruction rows [B, L].
        known: bool [B], where the proprioception is shown.
        noisy: [B * draws, T, A], the draws of one observation in a row.
        time: flow times, [B * draws].
        target: the velocity that is right, [B * draws, T, A].
        weight: of each action, [B * draws, T].
        indicator: how good each chunk is said to be, int64 [B]; None where nothing is said.
    """

    images: Tensor
    proprio: Tensor
    rows: Tensor
    known: Tensor
    noisy: Tensor
    time: Tensor
    target: Tensor
    weight: Tensor
    indicator: Tensor | None = None

    def to(self, device: torch.device) -> Drawn:
        """Return itself: it is made on the device."""
        return self


@torch.no_grad()
def draw(
    model: FlowVLA, batch: Batch, augment: Augmentation, loss: Loss, generator: torch.Generator
) -> Drawn:
    """Draw what the loss of a batch needs.

    Args:
        model: the network in training.
        batch: B frames and the chunks that start there.
        augment: how the observations are disturbed.
        loss: weights along the chunk and draws per observation.
        generator: of all random numbers, on the batch's device.
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
    weight = chunk_weights(loss, target.shape[1], device) * batch.valid  # [B, T]
    weight = weight.repeat_interleave(draws, dim=0)
    said = batch.indicator
    if said is not None:
        said = augment.indicator(said, generator)
    return Drawn(images, proprio, batch.rows, known, noisy, time, target - noise, weight, said)


def drawn_loss(model: FlowVLA, drawn: Drawn, network: Velocity = velocity) -> Tensor:
    """Return the loss of what was drawn, a scalar; no random number, no wait for the device.

    Args:
        model: the network in training.
        drawn: from `draw`.
        network: `velocity`, or what a compiler made of it.
    """
    d = drawn
    found = network(model, d.images, d.proprio, d.rows, d.known, d.noisy, d.time, d.indicator)
    error = (found.float() - d.target).square().mean(-1)  # [B * draws, T]
    return (error * d.weight).sum() / d.weight.sum().clamp(min=1.0)


def flow_loss(
    model: FlowVLA, batch: Batch, augment: Augmentation, loss: Loss, generator: torch.Generator
) -> Tensor:
    """Return the loss of a batch, a scalar: `draw`, then `drawn_loss`."""
    return drawn_loss(model, draw(model, batch, augment, loss, generator))
