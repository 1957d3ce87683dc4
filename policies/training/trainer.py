"""The training loop: every step follows from the recipe's seed and the step's number alone.

All random numbers of a step come from one generator seeded with (seed, step), so a resumed run
continues with the same bits as one that was never stopped.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flashrt_policies.base import PolicySpec
from flashrt_policies.flow_vla.config import RecipeError
from flashrt_policies.flow_vla.model import FlowVLA
from flashrt_policies.training import state
from flashrt_policies.training.data import Frames
from flashrt_policies.training.objective import flow_loss, velocity
from flashrt_policies.training.recipe import Recipe
from flashrt_policies.training.validate import action_errors

LOG_EVERY = 25


class Trainer:
    """One run.

    Args:
        recipe: every number of it.
        spec: what the policy sees and does.
        frames: the demonstrations, on the device to train on.
        folder: where the state is saved (``state.safetensors``).
        report: called with each line for people; default: standard error.
    """

    def __init__(
        self,
        recipe: Recipe,
        spec: PolicySpec,
        frames: Frames,
        folder: Path,
        report: Callable[[str], None] | None = None,
    ) -> None:
        self.recipe, self.frames, self.folder = recipe, frames, folder
        self.device = frames.device
        self.report = report or (lambda line: print(line, file=sys.stderr, flush=True))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(recipe.seed)
            self.model = FlowVLA(spec, recipe.model)
        self.model.load_state_dict(frames.statistics(), strict=False)
        self.model.to(self.device)
        self.model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.average = copy.deepcopy(self.model).eval().requires_grad_(False)
        matrices = [p for p in self.model.parameters() if p.ndim >= 2]
        rest = [p for p in self.model.parameters() if p.ndim < 2]
        train = recipe.train
        self.optimizer = torch.optim.AdamW(
            [
                {'params': matrices, 'weight_decay': train.decay},
                {'params': rest, 'weight_decay': 0.0},
            ],
            lr=train.rate,
            betas=(train.beta1, train.beta2),
            fused=self.device.type == 'cuda',
        )
        self.generator = torch.Generator(self.device)
        self._network = torch.compile(velocity, dynamic=False) if train.compile else velocity
        self.done = 0  # steps taken
        self.seconds = 0.0
        self.losses: list[dict[str, float]] = []
        self.validations: list[dict[str, float]] = []
        self._recent: list[Tensor] = []

    @property
    def state_path(self) -> Path:
        """Where the state is saved."""
        return self.folder / 'state.safetensors'

    def rate(self, step: int) -> float:
        """Return the learning rate of a step: linear warm-up, cosine decay to a hundredth."""
        train = self.recipe.train
        if step < train.warmup:
            return train.rate * (step + 1) / train.warmup
        part = (step - train.warmup) / max(1, train.steps - train.warmup)
        return train.rate * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * min(1.0, part))))

    def step(self) -> Tensor:
        """Take one step; return its loss, a scalar on the device."""
        recipe, train = self.recipe, self.recipe.train
        self.generator.manual_seed(recipe.seed * 1_000_003 + self.done)
        batch = self.frames.sample(train.batch, self.generator)
        lower = train.autocast == 'bfloat16' and self.device.type == 'cuda'
        with torch.autocast(self.device.type, torch.bfloat16, enabled=lower):
            loss = flow_loss(
                self.model, batch, recipe.augment, recipe.loss, self.generator, self._network
            )
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), train.clip)
        for group in self.optimizer.param_groups:
            group['lr'] = self.rate(self.done)
        self.optimizer.step()
        decay = min(train.ema, (1 + self.done) / (10 + self.done))
        with torch.no_grad():
            torch._foreach_lerp_(
                list(self.average.parameters()), list(self.model.parameters()), 1 - decay
            )
        self.done += 1
        return loss.detach()

    def run(self, until: int | None = None) -> None:
        """Train up to step `until` (default: the recipe's end), saving and validating on the way.

        Raises:
            RecipeError: the loss became NaN or infinite.
        """
        train = self.recipe.train
        until = train.steps if until is None else min(until, train.steps)
        began, before, first = time.monotonic(), self.seconds, self.done
        while self.done < until:
            self._recent.append(self.step())
            at_end = self.done == train.steps
            if self.done % LOG_EVERY == 0 or self.done == until:
                self._log(before + time.monotonic() - began, (time.monotonic() - began), first)
            if self.done % train.validate_every == 0 or at_end:
                self._validate()
            if self.done % train.save_every == 0 or self.done == until:
                self.save()

    def _log(self, seconds: float, here: float, first: int) -> None:
        values = torch.stack(self._recent).float()
        self._recent.clear()
        self.seconds = seconds
        loss = float(values.mean())
        if not math.isfinite(loss):
            raise RecipeError(
                f'the loss is {loss} after step {self.done}; want a lower train.rate in the recipe'
            )
        self.losses.append({'step': self.done, 'loss': loss, 'rate': self.rate(self.done - 1)})
        total = self.recipe.train.steps
        filled = round(24 * self.done / total)
        left = (total - self.done) * here / max(1, self.done - first)
        line = (
            f'[{"#" * filled}{"." * (24 - filled)}] step {self.done}/{total}  loss {loss:.4f}  '
            f'{seconds:.0f} s, {left:.0f} s left'
        )
        if sys.stderr.isatty():
            print(f'\r{line}', end='\n' if self.done == total else '', file=sys.stderr, flush=True)
        elif self.done % (LOG_EVERY * 10) == 0 or self.done == total:
            self.report(line)

    def _validate(self) -> None:
        errors = action_errors(self.average, self.frames, self.recipe.loss)
        if errors:
            self.validations.append({'step': self.done, **errors})
            text = ', '.join(f'{name} words {value:.4f}' for name, value in errors.items())
            self.report(f'step {self.done}: mean action error with {text}')

    def save(self) -> None:
        """Write the whole state, so that `resume` continues with the same bits."""
        tensors = {f'model/{name}': value for name, value in self.model.state_dict().items()}
        tensors |= {f'average/{name}': value for name, value in self.average.state_dict().items()}
        tensors |= state.optimizer_tensors(self.model, self.optimizer)
        facts = {
            'recipe': _plain(self.recipe),
            'done': self.done,
            'seconds': self.seconds,
            'losses': self.losses,
            'validations': self.validations,
        }
        state.write(self.state_path, tensors, facts)

    def resume(self) -> None:
        """Continue from the saved state.

        Raises:
            CheckpointError: there is none, or it is damaged.
            RecipeError: it belongs to another recipe.
        """
        tensors, facts = state.read(self.state_path)
        if facts['recipe'] != _plain(self.recipe):
            raise RecipeError(
                f'{self.state_path} was written with another recipe; want the same one, '
                'or a new --out folder'
            )
        for prefix, module in (('model/', self.model), ('average/', self.average)):
            module.load_state_dict(
                {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
            )
        state.restore_optimizer(self.model, self.optimizer, tensors)
        self.done, self.seconds = facts['done'], facts['seconds']
        self.losses, self.validations = facts['losses'], facts['validations']


def _plain(recipe: Recipe) -> Any:
    """Return a recipe as what JSON makes of it."""
    return json.loads(json.dumps(dataclasses.asdict(recipe)))
