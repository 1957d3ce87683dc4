"""What a trained network is asked before any rollout: held-out episodes, words, ambiguity."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from flashrt_policies.flow_vla.model import FlowVLA
from flashrt_policies.training.data import Frames
from flashrt_policies.training.recipe import Loss


@torch.no_grad()
def action_errors(
    model: FlowVLA, frames: Frames, loss: Loss, most: int = 1024, slice_size: int = 128
) -> dict[str, float]:
    """Return mean absolute errors of executed actions on the validation frames.

    Keys: ``right`` (a trained wording of the right skill), ``wrong`` (another skill's wording; it
    must be far worse, or the language is ignored), ``held_out`` (a wording never trained on).
    Empty when nothing is held out.
    """
    if len(frames.validation) == 0:
        return {}
    device = frames.device
    generator = torch.Generator(device).manual_seed(1)
    picks = torch.randint(
        len(frames.validation),
        (min(most, len(frames.validation)),),
        generator=generator,
        device=device,
    )
    index = frames.validation[picks]
    sums: dict[str, float] = {}
    total = 0.0
    for part in index.split(slice_size):
        wording = torch.rand(len(part), generator=generator, device=device)
        batch = frames.at(part, wording)
        rows = {'right': batch.rows}
        if len(frames.counts) > 1:
            rows['wrong'] = frames.rows((batch.skill + 1) % len(frames.counts), wording)
        if frames.held_out is not None:
            rows['held_out'] = frames.rows(batch.skill, wording, held_out=True)
        noise = torch.randn(batch.actions.shape, generator=generator, device=device)
        features = model.vision(batch.images)
        valid = batch.valid[:, loss.first : loss.last]
        total += float(valid.sum())
        for name, words in rows.items():
            kv, summary = model.prefix(features, batch.proprio, words)
            error = (model.denoise(noise, kv, summary) - batch.actions).abs().mean(-1)
            error = error[:, loss.first : loss.last]
            sums[name] = sums.get(name, 0.0) + float((error * valid).sum())
    return {name: value / max(total, 1.0) for name, value in sums.items()}


@torch.no_grad()
def ambiguity(frames: Frames, most: int = 4000, seed: int = 0) -> float:
    """Return the share of frames whose skill cannot be told from the observation.

    A frame counts as ambiguous when its nearest neighbour among frames of other skills is no
    further away than its nearest neighbour among other episodes of its own skill; distances are
    taken over both images at 12x12 pixels and the proprioception, each component standardised.
    """
    generator = torch.Generator(frames.device).manual_seed(seed)
    order = torch.randperm(len(frames.order), generator=generator, device=frames.device)
    index = frames.order[order[:most]]
    parts = []
    for images in frames.images:
        small = images[index].permute(0, 3, 1, 2).float()
        pooled = F.adaptive_avg_pool2d(small, 12).flatten(1)
        parts.append(_standard(pooled) / pooled.shape[1] ** 0.5)
    state = _standard(frames.proprio[index])
    parts.append(state / state.shape[1] ** 0.5)
    distance = torch.cdist(torch.cat(parts, 1), torch.cat(parts, 1))
    skill, episode = frames.skill[index], frames.episode[index]
    far = torch.full_like(distance, float('inf'))
    same = skill[:, None] == skill
    own = torch.where(same & (episode[:, None] != episode), distance, far).amin(1)
    other = torch.where(same, far, distance).amin(1)
    counted = torch.isfinite(own)
    if not bool(counted.any()):
        return float('nan')
    return float((other <= own)[counted].float().mean())


def _standard(values: Tensor) -> Tensor:
    return (values - values.mean(0)) / values.std(0).clamp(min=1e-3)
