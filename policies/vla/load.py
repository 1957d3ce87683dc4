"""From a folder to a policy: what the registry calls for lerobot's and openpi's checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flashrt_policies.base import PolicySpec, SubgoalPort
from flashrt_policies.checkpoint import CheckpointError
from flashrt_policies.vla import aloha, openpi
from flashrt_policies.vla.folder import Folder, read_folder
from flashrt_policies.vla.statistics import Scale, read_statistics

if TYPE_CHECKING:
    import torch

    from flashrt_policies.vla.network import Network
    from flashrt_policies.vla.policy import VlaPolicy
    from flashrt_policies.vla.sizes import Sizes
    from flashrt_policies.vla.tensors import FileSource, RandomSource
    from flashrt_ros.contract.context import Context

SUBGOAL_BYTES = 256
FLOAT8 = (8, 9)  # the first compute capability with that type
ROOM = 0.1  # of the data's range, added on each side to what an action may be


@dataclass(frozen=True)
class VlaSpec(PolicySpec):
    """A spec whose cameras may have images of different sizes.

    Attributes:
        sizes: height and width of each camera's image, in the order of `cameras`.
        proprio_low: lowest value of each proprioception entry that is believed.
        proprio_high: highest value.
    """

    sizes: tuple[tuple[int, int], ...] = ()
    proprio_low: tuple[float, ...] = ()
    proprio_high: tuple[float, ...] = ()

    def hw(self, camera: str) -> tuple[int, int]:
        """Return height and width of a camera's image, pixels."""
        return self.sizes[self.cameras.index(camera)]


def read_spec(path: Path, config: Mapping[str, Any]) -> PolicySpec:
    """Return what a folder's policy sees and does; loads no torch.

    Raises:
        CheckpointError: the folder asks for what is not done here, or lacks a statistic.
    """
    return spec_of(*open_folder(path, config))


def open_folder(path: Path, config: Mapping[str, Any]) -> tuple[Folder, Mapping[str, Scale]]:
    """Return what a folder says and its statistics, whoever wrote it."""
    if 'type' not in config:
        return openpi.open_folder(path, config)
    folder = read_folder(path, config)
    return folder, read_statistics(folder)


def spec_of(folder: Folder, scales: Mapping[str, Scale]) -> PolicySpec:
    """Return the spec of a folder, its limits from what the data held.

    Actions may leave the data's range by a tenth of it on each side, the proprioception by all
    of it: robots stand where no demonstration was.
    """
    low, high = _widened(scales['ACTION'], ROOM)
    state_low, state_high = _widened(scales['STATE'], 1.0)
    for index in folder.relative:  # an offset from wherever the state is
        low[index] += float(scales['STATE'].low[index])
        high[index] += float(scales['STATE'].high[index])
    if folder.aloha:
        low, high = aloha.limits(low, high, *aloha.done())
        state_low, state_high = aloha.state_limits(state_low, state_high)
    sizes = tuple(folder.cameras.values())
    return VlaSpec(
        cameras=tuple(folder.cameras),
        image_hw=sizes[0],
        proprio_dim=folder.state_dim,
        action_dim=folder.action_dim,
        horizon=folder.horizon,
        subgoal_length=SUBGOAL_BYTES,
        action_low=tuple(low),
        action_high=tuple(high),
        sizes=sizes,
        proprio_low=tuple(state_low),
        proprio_high=tuple(state_high),
    )


def _widened(scale: Scale, part: float) -> tuple[list[float], list[float]]:
    """Return the data's lowest and highest values, moved apart by a part of their distance."""
    room = part * np.maximum(scale.high - scale.low, 1e-3)
    low, high = scale.low - room, scale.high + room
    return [float(x) for x in low], [float(x) for x in high]


def build(
    family: str,
    source: FileSource | RandomSource,
    sizes: Sizes,
    folder: Folder,
    float8: bool = False,
) -> tuple[Network, str]:
    """Return the network of a family and the digest of its tensors."""
    from flashrt_policies.vla import pi0, pi05, smolvla

    kinds: dict[str, tuple[type[Network], tuple[str, ...]]] = {
        'pi0': (pi0.Pi0, pi0.IDLE),
        'pi05': (pi05.Pi05, pi0.IDLE),
        'smolvla': (smolvla.SmolVla, smolvla.IDLE),
    }
    kind, idle = kinds[family]
    periods = (
        float(folder.config.get('min_period', 4e-3)), float(folder.config.get('max_period', 4.0)),
    )  # fmt: skip
    every = int(folder.config.get('self_attn_every_n_layers', 2))
    if 'cross' not in folder.config.get('attention_mode', 'cross_attn'):
        every = 1
    network = kind(
        source, sizes, len(folder.cameras), folder.prompt_tokens, folder.horizon, folder.steps,
        periods, float8, max(0, every),
    )  # fmt: skip
    network.averaged = folder.averaged
    return network, source.finish(idle)


def load(
    path: Path,
    config: Mapping[str, Any],
    ctx: Context,
    subgoal: SubgoalPort,
    dtype: torch.dtype | None = None,
    float8: bool = False,
) -> VlaPolicy:
    """Load a folder of lerobot's or openpi's, allocate its buffers on `ctx`, capture its graphs.

    Args:
        path: the folder.
        config: its `config.json`, empty where openpi wrote none.
        ctx: the device's context, not frozen yet.
        subgoal: the buffers the subgoal arrives in.
        dtype: what it computes in; by default bfloat16 on a GPU, float32 elsewhere.
        float8: store the expert's products in one byte a number.

    Raises:
        CheckpointError: something is missing, does not fit, or is not done here.
    """
    import torch

    from flashrt_policies.vla import preprocess
    from flashrt_policies.vla.policy import Parts, VlaPolicy
    from flashrt_policies.vla.sizes import read_sizes
    from flashrt_policies.vla.tensors import FileSource

    folder, scales = open_folder(path, config)
    if float8 and ctx.device.type == 'cuda' and torch.cuda.get_device_capability() < FLOAT8:
        raise CheckpointError(
            f'{path}: float8 needs a GPU of compute capability {FLOAT8[0]}.{FLOAT8[1]} or above'
        )
    dtype = dtype or (torch.bfloat16 if ctx.device.type == 'cuda' else torch.float32)
    source = FileSource(folder.weights, ctx.device, dtype)
    sizes = read_sizes(folder.family, source)
    words = preprocess.load_words(path, folder.tokenizer, folder.prompt_tokens, sizes.vocabulary)
    with torch.no_grad():
        network, digest = build(folder.family, source, sizes, folder, float8)
    name = f'{folder.family} steps={folder.steps} float8={float8}'
    if folder.averaged:
        name += f' prompt={folder.prompt} averaged'
    if folder.relative:
        name += f' relative={list(folder.relative)}'
    if folder.aloha:
        name += ' aloha'
    parts = Parts(
        spec_of(folder, scales), network, scales['STATE'], scales['ACTION'], words,
        preprocess.PROMPTS[folder.prompt], digest, name, folder.relative, folder.aloha,
    )  # fmt: skip
    return VlaPolicy(ctx, parts, subgoal)
