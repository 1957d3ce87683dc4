"""`flashrt train policy`: from demonstrations and a recipe to a checkpoint folder.

`flashrt train planner` stands in `train_planner`.
"""

from __future__ import annotations

import argparse
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashrt_ros.commands import train_planner
from flashrt_ros.errors import FlashrtError

if TYPE_CHECKING:
    from flashrt_policies.training.data import Demonstrations
    from flashrt_sim.dataset import EpisodeDataset


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
    from flashrt_sim.dataset import EpisodeDataset

    recipe = recipes.load(args.recipe)
    device = args.device
    if device == 'auto':
        device = 'cuda' if torch.cuda.is_available() else 'cpu'
    if device.startswith('cuda') and not torch.cuda.is_available():
        raise FlashrtError(f'--device {device}: no CUDA device here; want cpu or auto')
    dataset = EpisodeDataset(args.data)
    low, high = action_limits(dataset.environment)
    data = demonstrations(dataset, recipe.horizon)
    print(f'{len(dataset)} episodes, {len(data)} frames, on {device}', file=sys.stderr)
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

    import flashrt_sim.registration

    flashrt_sim.registration.register()
    space = gymnasium.make(environment).action_space
    assert isinstance(space, gymnasium.spaces.Box)
    return tuple(map(float, space.low)), tuple(map(float, space.high))


def demonstrations(dataset: EpisodeDataset, horizon: int) -> Demonstrations:
    """Read a whole data set into flat arrays; episodes are unpacked by several threads."""
    import numpy as np

    from flashrt_policies.training.data import Demonstrations
    from flashrt_ros.control.text import encode

    def rows(wordings: tuple[str, ...]) -> np.ndarray:
        return np.stack([encode(text) for text in wordings]) if wordings else np.zeros((0, 0))

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        episodes = list(pool.map(dataset.__getitem__, range(len(dataset))))
    skills = range(len(dataset.subgoals))
    return Demonstrations(
        images={
            camera: np.concatenate([episode.pixels[camera] for episode in episodes])
            for camera in dataset.cameras
        },
        proprio=np.concatenate([episode.agent_pos for episode in episodes]),
        actions=np.concatenate([episode.action for episode in episodes]),
        episode=np.repeat(np.arange(len(episodes)), [len(episode) for episode in episodes]),
        skill=np.concatenate([episode.subgoal for episode in episodes]).astype(np.int64),
        ahead=np.concatenate([e.chunks(horizon)[1].sum(1) for e in episodes]).astype(np.int64),
        skills=dataset.subgoals,
        wordings=[rows(dataset.wordings(skill)) for skill in skills],
        held_out=[rows(dataset.held_out(skill)) for skill in skills],
    )
