"""A tiny flow policy and tiny demonstrations, shared by the tests beside this file."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from flashrt_policies.base import PolicySpec
from flashrt_policies.flow_vla.config import FlowSizes
from flashrt_policies.flow_vla.model import STATISTICS, FlowVLA
from flashrt_policies.flow_vla.policy import FlowPolicy
from flashrt_policies.training.data import Demonstrations
from flashrt_ros.contract.buffer import Buffer
from flashrt_ros.contract.context import Context

SPEC = PolicySpec(
    cameras=('front', 'wrist'),
    image_hw=(16, 24),
    proprio_dim=3,
    action_dim=2,
    horizon=6,
    subgoal_length=12,
    action_low=(-1.0, -1.0),
    action_high=(1.0, 1.0),
    skills=('open', 'close'),
)
SIZES = FlowSizes(
    stem=8,
    stages=(8, 16),
    blocks=(1, 1),
    groups=4,
    text_width=16,
    text_kernel=3,
    text_layers=1,
    width=16,
    heads=2,
    prefix_layers=1,
    expert_layers=2,
    mlp=2,
    condition_width=16,
    steps=4,
)


class Port(NamedTuple):
    """The two buffers a subgoal arrives in."""

    slots: Buffer
    live: Buffer


def make_model(seed: int = 0) -> FlowVLA:
    """Return a network whose every parameter is random, zero-initialised ones too."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = FlowVLA(SPEC, SIZES)
        for parameter in model.parameters():
            if not parameter.any():
                torch.nn.init.normal_(parameter, std=0.1)
    for name in STATISTICS:
        getattr(model, name).fill_(0.7 if name.endswith('std') else 0.1)
    return model


def make_port(ctx: Context) -> Port:
    """Return a subgoal port whose live slot says 'open', the idle one 'close'."""
    slots = ctx.buffer('subgoal/slots', (2, SPEC.subgoal_length), torch.int32)
    live = ctx.buffer('subgoal/live', (1,), torch.int64)
    slots.write(torch.from_numpy(np.stack([row('open'), row('close')])))
    return Port(slots, live)


def make_policy(seed: int = 0, ctx: Context | None = None) -> tuple[FlowPolicy, Port, Context]:
    """Return a bound policy, its subgoal port and its context."""
    ctx = ctx or Context('cpu')
    port = make_port(ctx)
    policy = FlowPolicy(ctx, make_model(seed), port)
    policy.reset(11)
    return policy, port, ctx


def row(text: str) -> np.ndarray:
    """Return the subgoal row of a text."""
    values = np.zeros(SPEC.subgoal_length, np.int32)
    data = np.frombuffer(text.encode(), np.uint8)
    values[: len(data)] = data.astype(np.int32) + 1
    return values


def observation(seed: int = 0) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return random images and proprioception."""
    draw = np.random.default_rng(seed)
    images = {
        name: draw.integers(0, 256, (*SPEC.image_hw, 3), dtype=np.uint8) for name in SPEC.cameras
    }
    return images, draw.normal(size=SPEC.proprio_dim).astype(np.float32)


def demonstrations(episodes: int = 8, ticks: int = 12) -> Demonstrations:
    """Return demonstrations in which only the instruction decides the action."""
    draw = np.random.default_rng(3)
    count = episodes * ticks
    episode = np.repeat(np.arange(episodes), ticks)
    skill = (episode % 2).astype(np.int64)
    sign = np.where(skill == 0, 1.0, -1.0)[:, None]
    return Demonstrations(
        images={
            name: draw.integers(0, 256, (count, *SPEC.image_hw, 3), dtype=np.uint8)
            for name in SPEC.cameras
        },
        proprio=draw.normal(size=(count, 3)).astype(np.float32),
        actions=(sign * [0.8, -0.4] + 0.05 * draw.normal(size=(count, 2))).astype(np.float32),
        episode=episode.astype(np.int64),
        skill=skill,
        ahead=np.minimum(SPEC.horizon, ticks - np.arange(count) % ticks).astype(np.int64),
        skills=SPEC.skills,
        wordings=[np.stack([row('open'), row('pull')]), np.stack([row('close'), row('push')])],
        held_out=[row('Open!')[None], row('CLOSE')[None]],
    )
