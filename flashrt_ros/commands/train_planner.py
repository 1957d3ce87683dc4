"""`flashrt train planner`: from a recipe and a words file to a planner's checkpoint."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from flashrt_ros.errors import FlashrtError


def add_parser(kinds: Any) -> None:
    """Declare the arguments."""
    planner = kinds.add_parser(
        'planner',
        help='train a planner on made-up situations; --resume continues with the same bits',
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    planner.add_argument('--recipe', type=Path, required=True, help='YAML file, see config/')
    planner.add_argument(
        '--out', type=Path, required=True, help='folder for checkpoint and curves'
    )
    planner.add_argument('--device', default='auto', help='cpu, cuda, cuda:N, or auto')
    planner.add_argument('--resume', action='store_true', help='continue the run in --out')
    planner.add_argument('--until', type=int, default=None, help='stop after this step')
    planner.add_argument(
        '--seconds',
        type=float,
        default=None,
        help='as many steps as fit in this time',
    )
    planner.add_argument(
        '--check', type=int, default=2048, metavar='N', help='measure on N held-out situations'
    )


def run(args: argparse.Namespace) -> int:
    """Train; exit code 0."""
    import torch

    from flashrt_policies.planner_lm.training import recipe as recipes
    from flashrt_policies.planner_lm.training.run import train

    recipe = recipes.load(args.recipe)
    device = args.device
    if device == 'auto':
        device = 'cuda' if torch.cuda.is_available() else 'cpu'
    if device.startswith('cuda') and not torch.cuda.is_available():
        raise FlashrtError(f'--device {device}: no CUDA device here; want cpu or auto')
    args.out.mkdir(parents=True, exist_ok=True)
    words = args.recipe.parent / recipe.words
    history = train(
        recipe, words, args.out, device, args.resume, args.until,
        seconds=args.seconds, check=args.check,
    )  # fmt: skip
    print(
        f'{args.out}: {history["parameters"] / 1e6:.2f} M parameters, {history["steps"]} steps in '
        f'{history["seconds"]:.0f} s'
    )
    if 'check' in history:
        print(f'temperature {history["temperature"]:.3f}; held-out situations:')
        for name, row in history['check'].items():
            print(
                f'{name:<10} {100 * row["right"]:6.2f} % right of {row["count"]:>6}, '
                f'calibration error {100 * row["calibration_error"]:5.2f} %'
            )
    return 0
