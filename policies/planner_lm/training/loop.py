"""The training loop: every step follows from the recipe's seed and the step's number alone.

The batch of a step is a function of its number, so a resumed run has the bits of one that was
never stopped.
"""

from __future__ import annotations

import copy
import math
import sys
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from flashrt_policies.flow_vla.config import RecipeError
from flashrt_policies.hybrid_lm.config import parse_config
from flashrt_policies.planner_lm.training.batches import Batch, Batches, Questions, stream
from flashrt_policies.planner_lm.training.examples import Examples
from flashrt_policies.planner_lm.training.graphed import GraphedStep
from flashrt_policies.planner_lm.training.measure import measure, summarise
from flashrt_policies.planner_lm.training.network import Memory, Network
from flashrt_policies.planner_lm.training.optimizer import Optimizer
from flashrt_policies.planner_lm.training.recipe import PlannerRecipe, plain
from flashrt_policies.training import state

LOG_EVERY = 10


class PlannerTrainer:
    """One run.

    Args:
        recipe: every number of it.
        trained: situations to train on.
        held_out: situations to measure on.
        folder: where the state is saved (``state.safetensors``).
        device: where to train.
        tell: called with each line for people; default: standard error.
    """

    def __init__(
        self,
        recipe: PlannerRecipe,
        trained: Examples,
        held_out: Examples,
        folder: Path,
        device: torch.device,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self.recipe, self.folder, self.device = recipe, folder, device
        self.tell = tell or (lambda line: print(line, file=sys.stderr, flush=True))
        train = recipe.train
        self.batches = Batches(trained, train.batch, train.side)
        self.held_out = Batches(held_out, min(train.batch, 128))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(recipe.seed)
            self.network = Network(parse_config(recipe.architecture())).to(device)
        self.average = copy.deepcopy(self.network).eval().requires_grad_(False)
        self.optimizer = Optimizer(self.network, train.decay, train.beta1, train.beta2)
        self._graphed = GraphedStep(self._body, self._clear, device)
        self._mixed = torch.zeros((), device=device)  # share of the new weights in the average
        self.done = 0  # steps taken
        self.seconds = 0.0
        self.losses: list[dict[str, float]] = []
        self.measures: list[dict[str, Any]] = []
        self._recent: list[Tensor] = []

    @property
    def state_path(self) -> Path:
        """Where the state is saved."""
        return self.folder / 'state.safetensors'

    def rate(self, step: int) -> float:
        """Return the learning rate of a step: warm-up, a plateau, a linear fall to nothing."""
        train = self.recipe.train
        left = (train.steps - step) / (train.cooldown * train.steps)
        return train.rate * min(1.0, (step + 1) / train.warmup, left)

    def loss(self, batch: Batch) -> Tensor:
        """Return the loss of a batch: of the answers, and of predicting the states' bytes."""
        network = self.network
        hidden, memories = network.trunk(batch.tokens, batch.lengths)
        width = batch.tokens.shape[1]
        losses = [
            self._answers(batch, asked, width, memories) for asked in (batch.short, batch.long)
        ]
        total = torch.stack([part for part, _ in losses]).sum()
        total = total / torch.stack([weight for _, weight in losses]).sum()
        if self.recipe.train.read > 0:
            logits = network.head(hidden[:, :-1]).float()
            real = torch.arange(1, width, device=self.device) < batch.lengths[:, None]
            bytes_ = F.cross_entropy(logits.flatten(0, 1), batch.tokens[:, 1:].flatten(),
                                     reduction='none')  # fmt: skip
            total = total + self.recipe.train.read * (bytes_ * real.flatten()).sum() / real.sum()
        return total

    def _answers(
        self, batch: Batch, asked: Questions, width: int, memories: list[Memory]
    ) -> tuple[Tensor, Tensor]:
        logits = self.network.branches(
            asked.tokens, asked.lengths, batch.lengths, width, memories
        ).float()
        logits = logits.masked_fill(~asked.options, float('-inf'))
        logits = torch.where(asked.weight[..., None] > 0, logits, torch.zeros_like(logits))
        each = F.cross_entropy(logits.flatten(0, 1), asked.answer.flatten(), reduction='none')
        return (each * asked.weight.flatten()).sum(), asked.weight.sum()

    def step(self, batch: Batch) -> Tensor:
        """Take one step; return its loss, a scalar on the device."""
        self.optimizer.rate.fill_(self.rate(self.done))
        self._mixed.fill_(1 - min(self.recipe.train.ema, (1 + self.done) / (10 + self.done)))
        self.done += 1
        return self._graphed(batch)

    def _clear(self) -> None:
        for parameter in self.network.parameters():
            parameter.grad = None

    def _body(self, batch: Batch) -> Tensor:
        train = self.recipe.train
        lower = train.autocast == 'bfloat16' and self.device.type == 'cuda'
        with torch.autocast(self.device.type, torch.bfloat16, enabled=lower, cache_enabled=False):
            loss = self.loss(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), train.clip)
        self.optimizer.step()
        with torch.no_grad():
            average: list[Tensor] = list(self.average.parameters())
            current: list[Tensor] = list(self.network.parameters())
            change = list(torch._foreach_sub(current, average))
            torch._foreach_mul_(change, self._mixed)
            torch._foreach_add_(average, change)
        return loss.detach()

    def run(self, until: int | None = None) -> None:
        """Train up to step `until` (default: the recipe's end), saving and measuring on the way.

        Raises:
            RecipeError: the loss became NaN or infinite.
        """
        train = self.recipe.train
        until = train.steps if until is None else min(until, train.steps)
        began, before, first = time.monotonic(), self.seconds, self.done
        batches = stream(self.batches, self.done, train.workers)
        while self.done < until:
            self._recent.append(self.step(next(batches)))
            if self.done % LOG_EVERY == 0 or self.done == until:
                here = time.monotonic() - began
                self._log(before + here, here, first)
            if self.done % train.measure_every == 0 or self.done == train.steps:
                self._measure()
            if self.done % train.save_every == 0 or self.done == until:
                self.save()

    def _log(self, seconds: float, here: float, first: int) -> None:
        loss = float(torch.stack(self._recent).float().mean())
        self._recent.clear()
        self.seconds = seconds
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
            self.tell(line)

    def _measure(self) -> None:
        train = self.recipe.train
        count = -(-train.measure // self.held_out.size)
        batches = islice(stream(self.held_out, 0, train.workers), count)
        found = summarise(measure(self.average, batches, self.device))
        self.measures.append({'step': self.done, **found})
        parts = (f'{name} {100 * row["right"]:.2f} %' for name, row in found.items())
        self.tell(f'step {self.done}: right on held-out situations: {", ".join(parts)}')

    def save(self) -> None:
        """Write the whole state, so that `resume` continues with the same bits."""
        tensors = {f'model/{name}': value for name, value in self.network.state_dict().items()}
        tensors |= {f'average/{name}': value for name, value in self.average.state_dict().items()}
        tensors |= {f'optimizer/{name}': t for name, t in self.optimizer.state.items()}
        facts = {
            'recipe': plain(self.recipe),
            'done': self.done,
            'seconds': self.seconds,
            'losses': self.losses,
            'measures': self.measures,
        }
        state.write(self.state_path, tensors, facts)

    def resume(self) -> None:
        """Continue from the saved state.

        Raises:
            CheckpointError: there is none, or it is damaged.
            RecipeError: it belongs to another recipe.
        """
        tensors, facts = state.read(self.state_path)
        if facts['recipe'] != plain(self.recipe):
            raise RecipeError(
                f'{self.state_path} was written with another recipe; want the same one, '
                'or a new --out folder'
            )
        for prefix, module in (('model/', self.network), ('average/', self.average)):
            module.load_state_dict(
                {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
            )
        kept = {k.removeprefix('optimizer/'): v for k, v in tensors.items()}
        self.optimizer.load(kept)
        self.done, self.seconds = facts['done'], facts['seconds']
        self.losses, self.measures = facts['losses'], facts['measures']
