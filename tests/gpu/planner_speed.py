"""One run on an NVIDIA GPU: what does a training step of the planner cost, and where?

    python tests/gpu/planner_speed.py OUTDIR [--compile]

Takes 60 steps of the shipped recipe and of variants, on real batches that are made up beforehand,
after every width was captured; `--compile` adds torch's compiler, on the commonest width alone.
Writes OUTDIR/planner_speed.txt: steps and situations a second, the launches of one step and the
heaviest kernels.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from flashrt_policies.planner_lm.training import recipe as recipes
from flashrt_policies.planner_lm.training import vocabulary, words
from flashrt_policies.planner_lm.training.batches import Batch, Batches, stream
from flashrt_policies.planner_lm.training.examples import Examples
from flashrt_policies.planner_lm.training.task import PlannerTask
from flashrt_policies.recipes import plain
from flashrt_policies.training.run import exact
from flashrt_policies.training.trainer import Trainer

CONFIG = Path(__file__).resolve().parents[2] / 'config'
STEPS, GROUPS, HEAVIEST = 60, 24, 15
CUDA = torch.device('cuda')


def variant(name: str, out: Path, known: words.Words, narrow: bool, **train: Any) -> list[str]:
    """Measure one; return its lines.

    Args:
        name: what it is called.
        out: a folder.
        known: the words.
        narrow: only batches of the commonest width.
        train: what is different in the recipe.
    """
    recipe = recipes.load(CONFIG / 'train_planner.yaml')
    recipe = replace(recipe, train=replace(recipe.train, **train))
    examples, size = Examples(known, recipe.seed), recipe.train.batch
    tokenizer = vocabulary.build(examples, recipe.model.vocabulary)
    batches = Batches(examples, size, tokenizer)
    made = list(islice(stream(batches, 0, recipe.train.workers), GROUPS))
    widths = Counter(batch.tokens.shape[1] for batch in made)
    common = widths.most_common(1)[0][0]
    chosen = [batch for batch in made if not narrow or batch.tokens.shape[1] == common]
    real = sum(int(b.lengths.sum() + b.short.lengths.sum() + b.long.lengths.sum()) for b in made)
    room = sum(b.tokens.numel() + b.short.tokens.numel() + b.long.tokens.numel() for b in made)
    task = PlannerTask(recipe, examples, examples, tokenizer, CUDA, 1)
    trainer = Trainer(task, recipe.train, plain(recipe), out, CUDA)
    began = time.perf_counter()
    for batch in (*chosen, *chosen, *chosen):  # runs each width once, captures it, replays it
        trainer.step(batch)
    torch.cuda.synchronize()
    lines = [f'{name}: ready in {time.perf_counter() - began:.1f} s; widths {dict(widths)}, '
             f'{real / room:.0%} of their tokens real']  # fmt: skip
    began = time.perf_counter()
    for index in range(STEPS):
        trainer.step(chosen[index % len(chosen)])
    torch.cuda.synchronize()
    speed = STEPS / (time.perf_counter() - began)
    lines.append(f'{speed:.1f} steps/s, {speed * size:.0f} situations/s')
    return lines + kernels(trainer, next(b for b in chosen if b.tokens.shape[1] == common))


def kernels(trainer: Trainer, batch: Batch) -> list[str]:
    """Return lines on what one step launches."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        trainer.step(batch)
        torch.cuda.synchronize()
    events = [e for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    spent, count = Counter[str](), Counter[str]()
    for event in events:
        spent[event.name] += event.time_range.elapsed_us()
        count[event.name] += 1
    lines = [f'width {batch.tokens.shape[1]}: {len(events)} launches, '
             f'{sum(spent.values()) / 1e3:.1f} ms']  # fmt: skip
    for name, us in spent.most_common(HEAVIEST):
        lines.append(f'  {us / 1e3:7.2f} ms {count[name]:5d}x {name[:110]}')
    return lines


def main() -> int:
    """Run all of it; return the exit code."""
    parser = argparse.ArgumentParser(description='Profile the training of a planner.')
    parser.add_argument('out', type=Path)
    parser.add_argument('--compile', action='store_true')
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print('no CUDA device; want an NVIDIA GPU')
        return 1
    args.out.mkdir(parents=True, exist_ok=True)
    exact(CUDA)
    known = words.load(CONFIG / 'planner_words.yaml')
    variants: list[tuple[str, bool, dict[str, Any]]] = [
        ('as it is', False, {}),
        ('batch 128', False, {'batch': 128}),
    ]
    if args.compile:
        variants.append(('compiled', True, {'compile': True}))
    with (args.out / 'planner_speed.txt').open('w', encoding='utf-8') as file:
        for name, narrow, train in variants:
            for line in variant(name, args.out, known, narrow, **train):
                print(line, flush=True)
                print(line, file=file, flush=True)
            torch.cuda.empty_cache()
    return 0


if __name__ == '__main__':
    sys.exit(main())
