"""A value function that is kept: the networks of all folds, and the policy whose view they read.

Of a new episode no fold knows the end, so its pictures are judged by the mean of all of them. A
folder holds the networks as any checkpoint is held, and in ``policy/`` the policy's own: nothing
else is needed to judge.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flashrt_policies import checkpoint, registry
from flashrt_policies.checkpoint import CheckpointError
from flashrt_policies.flow_vla import policy as flow
from flashrt_policies.flow_vla.model import FlowVLA
from flashrt_policies.recipes import RecipeError, demand, fill
from flashrt_policies.training.advantage import WORST

ARCHITECTURE = 'value'


@dataclass(frozen=True)
class ValueSizes:
    """Sizes of `ValueNetwork`.

    Attributes:
        inputs: numbers in a view.
        width: of the hidden layers.
        bins: of the distribution.
        folds: networks.
    """

    inputs: int = 1
    width: int = 256
    bins: int = 81
    folds: int = 5

    def __post_init__(self) -> None:
        for name, least in (('inputs', 1), ('width', 1), ('bins', 2), ('folds', 1)):
            value = getattr(self, name)
            demand((value >= least, f'model.{name} is {value}; want {least} or more'))


@dataclass(frozen=True)
class Fitted:
    """What a value function was fitted to.

    Attributes:
        weights: digest of the policy whose view it reads.
        tasks: environments; of others it knows nothing.
        episodes: how many.
        limit: ticks that a return of -1 stands for.
    """

    weights: str
    tasks: tuple[str, ...]
    episodes: int
    limit: int


def layers(inputs: int, width: int, bins: int) -> nn.Sequential:
    """Return the network of one fold, from inputs [B, K] to logits [B, bins]."""
    return nn.Sequential(
        nn.Linear(inputs, width),
        nn.SiLU(),
        nn.Linear(width, width),
        nn.SiLU(),
        nn.Linear(width, bins),
    )


def centres(bins: int, device: torch.device) -> Tensor:
    """Return the return that each bin stands for, [bins]."""
    return torch.linspace(WORST, 0.0, bins, device=device)


def view(model: FlowVLA, images: Tensor, proprio: Tensor, rows: Tensor) -> Tensor:
    """Return what a policy makes of pictures and words, [B, K], float32.

    The prefix's summary, its keys and values averaged over the tokens, and the proprioception.

    Args:
        model: the policy's network.
        images: uint8 [B, V, H, W, 3].
        proprio: float32 [B, P].
        rows: of the instructions, int32 [B, L].
    """
    kv, summary = model.prefix(model.vision(images), proprio, rows)
    tokens = kv.mean(-2).permute(2, 0, 1, 3, 4).flatten(1)  # [B, L * 2 * H * D/H]
    return torch.cat((summary, tokens, proprio.to(summary.dtype)), dim=-1).float()


class ValueNetwork(nn.Module):
    """Views to the return to expect: the mean of the folds' distributions.

    Args:
        sizes: sizes of the networks.
        inputs: views [F, K] that they are fitted to; they are read in units of their spread.
    """

    mean: Tensor
    spread: Tensor

    def __init__(self, sizes: ValueSizes, inputs: Tensor | None = None) -> None:
        super().__init__()
        self.sizes = sizes
        with torch.random.fork_rng(devices=[]):  # draws nothing from the caller's numbers
            self.folds = nn.ModuleList(
                layers(sizes.inputs, sizes.width, sizes.bins) for _ in range(sizes.folds)
            )
        known = torch.zeros(2, sizes.inputs) if inputs is None else inputs
        self.register_buffer('mean', known.mean(0))
        self.register_buffer('spread', known.std(0).clamp(min=1e-4))

    def scaled(self, views: Tensor) -> Tensor:
        """Return views [B, K] as the folds take them."""
        return (views - self.mean) / self.spread

    def expected(self, fold: int, scaled: Tensor) -> Tensor:
        """Return what one fold expects at scaled views, [B]."""
        share = self.folds[fold](scaled).softmax(-1)
        return share @ centres(self.sizes.bins, scaled.device)

    def forward(self, views: Tensor) -> Tensor:
        """Return what is to be expected at views [B, K], [B], from `WORST` to 0."""
        scaled = self.scaled(views)
        found = [self.expected(fold, scaled) for fold in range(self.sizes.folds)]
        return torch.stack(found).mean(0)


@dataclass(frozen=True)
class ValueFunction:
    """A value function, ready to judge.

    Attributes:
        model: whose view it reads.
        network: what it makes of that.
        fitted: to what.
    """

    model: FlowVLA
    network: ValueNetwork
    fitted: Fitted

    @torch.no_grad()
    def __call__(self, images: Tensor, proprio: Tensor, rows: Tensor) -> Tensor:
        """Return the return to expect at observations, [B]; for the arguments see `view`."""
        found: Tensor = self.network(view(self.model, images, proprio, rows))
        return found


def save(folder: Path, network: ValueNetwork, policy: Path, fitted: Fitted) -> None:
    """Write a folder that `load` reads: all of it or nothing.

    Args:
        folder: where to; what stands there is replaced.
        network: fitted.
        policy: checkpoint folder of the policy whose view it reads.
        fitted: to what.

    Raises:
        CheckpointError: a number is not finite, or the policy is not whole.
    """
    part = folder.with_name(f'.{folder.name}.part')
    shutil.rmtree(part, ignore_errors=True)
    checkpoint.save(
        part, network.state_dict(), architecture=ARCHITECTURE, dtype='float32',
        model=dataclasses.asdict(network.sizes), spec=dataclasses.asdict(fitted),
    )  # fmt: skip
    (part / 'policy').mkdir()
    for name in ('config.json', *checkpoint.read_config(policy)['shards']):
        shutil.copyfile(policy / name, part / 'policy' / name)
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(part, folder)


def load(folder: Path, device: torch.device | str = 'cpu') -> ValueFunction:
    """Read what `save` wrote.

    Raises:
        CheckpointError: one line that names the file and says what would be right.
    """
    config = checkpoint.read_config(folder)
    path = folder / 'config.json'
    for key, want in (('architecture', ARCHITECTURE), ('dtype', 'float32')):
        if config[key] != want:
            raise CheckpointError(
                f'{path}: {key} is {config[key]!r}; want {want!r}, as in the folder round-N/value '
                'that flashrt improve leaves'
            )
    try:
        network = ValueNetwork(fill(ValueSizes, config['model'], 'model'))
    except RecipeError as error:
        raise CheckpointError(f'{path}: {error}') from None
    fitted = _fitted(path, config['spec'])
    live = network.state_dict()
    checkpoint.load_tensors(folder, config['shards'], live, dict.fromkeys(live, torch.float32))
    if not bool((network.spread > 0).all()):
        raise CheckpointError(f"{folder}: tensor 'spread' has zeros; want positive spreads")
    model = _model(folder / 'policy', fitted, network.sizes.inputs)
    network.requires_grad_(False)
    return ValueFunction(model.to(device), network.to(device), fitted)


def _fitted(path: Path, raw: Any) -> Fitted:
    names = [field.name for field in dataclasses.fields(Fitted)]
    if not isinstance(raw, dict) or set(raw) != set(names):
        raise CheckpointError(f'{path}: spec is wrong; want exactly the fields {", ".join(names)}')
    tasks = raw['tasks']
    good = isinstance(tasks, list) and tasks and all(isinstance(name, str) for name in tasks)
    if not good or not isinstance(raw['weights'], str):
        raise CheckpointError(f'{path}: spec is wrong; want names of tasks, and a digest')
    if type(raw['episodes']) is not int or type(raw['limit']) is not int:
        raise CheckpointError(f'{path}: spec is wrong; want episodes and limit as whole numbers')
    return Fitted(**{**raw, 'tasks': tuple(tasks)})


def _model(folder: Path, fitted: Fitted, inputs: int) -> FlowVLA:
    """The policy's network, if it is the one that the value function was fitted with."""
    config = checkpoint.read_config(folder)
    if config['architecture'] != flow.ARCHITECTURE:
        raise CheckpointError(
            f'{folder / "config.json"}: architecture is {config["architecture"]!r}; '
            f'want {flow.ARCHITECTURE!r}'
        )
    spec = registry.parse_spec(folder, config['spec'])
    model, digest = flow.load_model(folder, config, spec)
    if digest != fitted.weights:
        raise CheckpointError(
            f'{folder} holds the weights {digest[:12]}; want {fitted.weights[:12]}, whose view '
            'the value function beside it was fitted to'
        )
    layers, _, _, heads, _, head = model.kv_shape
    width = model.sizes.width + layers * 2 * heads * head + spec.proprio_dim
    if width != inputs:
        raise CheckpointError(
            f'{folder.parent / "config.json"}: model.inputs is {inputs}; want {width}, as many as '
            'this policy gives'
        )
    return model.eval()
