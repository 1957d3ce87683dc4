"""`flashrt train policy`: from demonstrations and a recipe to a checkpoint folder.

`flashrt train planner` stands in `train_planner`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from flashrt_ros.commands import train_planner
from flashrt_ros.errors import FlashrtError


def add_parser(subparsers: Any) -> None:
    """Declare the arguments."""
    parser = subparsers.add_parser('train', help='train a policy or a planner')
    kinds = parser.add_subparsers(dest='kind', metavar='KIND', required=True)
    policy = kinds.add_parser(
        'policy',
        help='train a flow policy; --resume continues a stopped run with the same bits',
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    policy.add_argument('--recipe', type=Path, required=True, help='YAML file, see config/')
    policy.add_argument('--data', type=Path, required=True, help='made by flashrt data generate')
    policy.add_argument('--out', type=Path, required=True, help='folder for checkpoint and curves')
    policy.add_argument('--device', default='auto', help='cpu, cuda, cuda:N, or auto')
    policy.add_argument('--resume', action='store_true', help='continue the run in --out')
    policy.add_argument('--until', type=int, default=None, help='stop after this step')
    train_planner.add_parser(kinds)


def run(args: argparse.Namespace) -> int:
    """Train; exit code 0."""
    if args.kind == 'planner':
        return train_planner.run(args)
    import torch

    from flashrt_policies.training import recipe as recipes
    from flashrt_policies.training.run import train
    from flashrt_sim.data.dataset import open_all
    from flashrt_sim.data.training import demonstrations

    recipe = recipes.load(args.recipe)
    device = args.device
    if device == 'auto':
        device = 'cuda' if torch.cuda.is_available() else 'cpu'
    if device.startswith('cuda') and not torch.cuda.is_available():
        raise FlashrtError(f'--device {device}: no CUDA device here; want cpu or auto')
    datasets = open_all(args.data)
    low, high = action_limits(datasets[0].environment)
    data = demonstrations(datasets, recipe.horizon, recipe.synonyms)
    episodes = sum(len(dataset) for dataset in datasets)
    print(f'{episodes} episodes, {len(data)} ticks, on {device}', file=sys.stderr)
    args.out.mkdir(parents=True, exist_ok=True)
    history = train(recipe, data, low, high, args.out, device, args.resume, args.until)
    print(
        f'{args.out}: {history["parameters"] / 1e6:.2f} M parameters, {history["steps"]} steps in '
        f'{history["seconds"]:.0f} s; '
        f'{100 * history["ambiguous_without_text"]:.0f} % of the frames need the text'
    )
    return 0


def action_limits(environment: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return lowest and highest action components of a registered environment."""
    import gymnasium

    import flashrt_sim.envs.registration

    flashrt_sim.envs.registration.register()
    space = gymnasium.make(environment).action_space
    assert isinstance(space, gymnasium.spaces.Box)
    return tuple(map(float, space.low)), tuple(map(float, space.high))
