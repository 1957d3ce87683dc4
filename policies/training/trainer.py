"""The training loop: every step follows from the recipe's seed and the step's number alone.

`Trainer` runs any `Task`, a network with its batches and its loss. The batch of a step is a
function of the step's number, so a resumed run has the bits of one that was never stopped.
"""

from __future__ import annotations

import copy
import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, Protocol

import torch
from torch import Tensor, nn

from flashrt_policies.recipes import RecipeError
from flashrt_policies.training import state
from flashrt_policies.training.graphed import B, GraphedStep
from flashrt_policies.training.loop import Loop
from flashrt_policies.training.optimizer import Optimizer

LOG_EVERY = 10
WINDOW = 20  # steps whose speed says how many fit the time left
PART = 0.25  # of that time, after which fewer steps must do to say so
SPARE = 0.03  # share of that time which the estimate may be wrong by
QUIET = 10.0  # seconds between lines of progress, at most


class Task(Protocol[B]):
    """What is trained."""

    @property
    def network(self) -> nn.Module:
        """The network, on the device to train on."""

    @property
    def optimizer(self) -> Optimizer:
        """What updates its parameters."""

    def batches(self, first: int) -> Iterator[B]:
        """Yield the batch of step `first`, of the next one and so on, without end."""

    def loss(self, batch: B) -> Tensor:
        """Return the loss of a batch, a scalar on the device."""

    def measure(self, average: nn.Module) -> dict[str, Any]:
        """Measure averaged weights on what is held out; empty where nothing is."""

    def told(self, measured: dict[str, Any]) -> str:
        """Return measurements in words."""


class Trainer(Generic[B]):
    """One run.

    Args:
        task: what is trained.
        loop: its numbers.
        recipe: all of them as plain data; a saved state belongs to its recipe.
        folder: where the state is saved (``state.safetensors``).
        device: where the network is.
        tell: called with each line for people; default: standard error.

    Attributes:
        average: the averaged network, which is measured and exported.
        steps: of the whole run.
        done: steps taken.
        seconds: spent on them.
        losses: their losses now and then.
        validations: what was measured on the way.
    """

    def __init__(
        self,
        task: Task[B],
        loop: Loop,
        recipe: Any,
        folder: Path,
        device: torch.device,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self.task, self.loop, self.recipe = task, loop, recipe
        self.folder, self.device = folder, device
        self.tell = tell or (lambda line: print(line, file=sys.stderr, flush=True))
        self.average = copy.deepcopy(task.network).eval().requires_grad_(False)
        self._graphed = GraphedStep(self._body, self._clear, device, loop.graph)
        self._mixed = torch.zeros((), device=device)  # share of the new weights in the average
        self.steps = loop.steps
        self.done = 0
        self.seconds = 0.0
        self.losses: list[dict[str, float]] = []
        self.validations: list[dict[str, Any]] = []
        self._recent: list[Tensor] = []
        self._spoke = time.monotonic()

    @property
    def state_path(self) -> Path:
        """Where the state is saved."""
        return self.folder / 'state.safetensors'

    def rate(self, step: int) -> float:
        """Return the learning rate of a step."""
        return self.loop.rate_at(step, self.steps)

    def step(self, batch: B) -> Tensor:
        """Take one step; return its loss, a scalar on the device."""
        self.task.optimizer.set_rate(self.rate(self.done))
        self._mixed.fill_(1 - min(self.loop.ema, (1 + self.done) / (10 + self.done)))
        self.done += 1
        return self._graphed(batch)

    def _clear(self) -> None:
        for parameter in self.task.network.parameters():
            parameter.grad = None

    def _body(self, batch: B) -> Tensor:
        kind, lower = self.device.type, self.loop.autocast == 'bfloat16'
        lower = lower and kind == 'cuda'
        with torch.autocast(kind, torch.bfloat16, enabled=lower, cache_enabled=False):
            loss = self.task.loss(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.task.network.parameters(), self.loop.clip)
        self.task.optimizer.step()
        with torch.no_grad():
            average: list[Tensor] = list(self.average.parameters())
            current: list[Tensor] = list(self.task.network.parameters())
            change = list(torch._foreach_sub(current, average))
            torch._foreach_mul_(change, self._mixed)
            torch._foreach_add_(average, change)
        return loss.detach()

    def run(self, until: int | None = None, seconds: float | None = None) -> None:
        """Train up to step `until` (default: the end), saving and measuring on the way.

        Args:
            until: stop after this step.
            seconds: make the run as long as fits this time, whatever the recipe's steps.

        Raises:
            RecipeError: the loss became NaN or infinite.
        """
        began, before, first = time.monotonic(), self.seconds, self.done
        batches = self.task.batches(first)
        clock = None
        if seconds is not None:  # a run that was over before goes on, and falls once more
            clock = _Clock(first, began, began + seconds)
            self.steps = max(self.steps, first + 3 * WINDOW)
        while self.done < (self.steps if until is None else min(until, self.steps)):
            self._recent.append(self.step(next(batches)))
            due = clock is not None and clock.due(self.done)
            if due or self.done % LOG_EVERY == 0 or self.done in (self.steps, until):
                here = time.monotonic() - began
                self._log(before + here, here, first)  # waits for the device
                if clock is not None:
                    self.steps = clock.steps(self.done, self.steps)
            paused = self._pause(until)
            if clock is not None and (paused or self.done == first + WINDOW):
                clock.restart(self.done)

    def _pause(self, until: int | None) -> bool:
        """Measure and save where it is time to; return whether it was."""
        measuring = self.done % self.loop.validate_every == 0 or self.done == self.steps
        saving = self.done % self.loop.save_every == 0 or self.done in (self.steps, until)
        if measuring:
            self._measure()
        if saving:
            self.save()
        return measuring or saving

    def _log(self, seconds: float, here: float, first: int) -> None:
        loss = float(torch.stack(self._recent).float().mean())
        self._recent.clear()
        self.seconds = seconds
        if not math.isfinite(loss):
            raise RecipeError(
                f'the loss is {loss} after step {self.done}; want a lower train.rate in the recipe'
            )
        self.losses.append({'step': self.done, 'loss': loss, 'rate': self.rate(self.done - 1)})
        total = self.steps
        filled = round(24 * self.done / total)
        left = (total - self.done) * here / max(1, self.done - first)
        line = (
            f'[{"#" * filled}{"." * (24 - filled)}] step {self.done}/{total}  loss {loss:.4f}  '
            f'{seconds:.0f} s, {left:.0f} s left'
        )
        if sys.stderr.isatty():
            print(f'\r{line}', end='\n' if self.done == total else '', file=sys.stderr, flush=True)
        elif time.monotonic() - self._spoke >= QUIET or self.done == total:
            self._spoke = time.monotonic()
            self.tell(line)

    def _measure(self) -> None:
        found = self.task.measure(self.average)
        if found:
            self.validations.append({'step': self.done, **found})
            self.tell(f'step {self.done}: {self.task.told(found)}')

    def save(self) -> None:
        """Write the whole state, so that `resume` continues with the same bits."""
        network, optimizer = self.task.network, self.task.optimizer
        tensors = {f'model/{name}': value for name, value in network.state_dict().items()}
        tensors |= {f'average/{name}': value for name, value in self.average.state_dict().items()}
        tensors |= {f'optimizer/{name}': value for name, value in optimizer.state().items()}
        facts = {
            'recipe': self.recipe,
            'steps': self.steps,
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
        if facts['recipe'] != self.recipe:
            raise RecipeError(
                f'{self.state_path} was written with another recipe; want the same one, '
                'or a new --out folder'
            )

        def part(prefix: str) -> dict[str, Tensor]:
            return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}

        self.task.network.load_state_dict(part('model/'))
        self.average.load_state_dict(part('average/'))
        self.task.optimizer.load(part('optimizer/'))
        self.steps, self.done, self.seconds = facts['steps'], facts['done'], facts['seconds']
        self.losses, self.validations = facts['losses'], facts['validations']


class _Clock:
    """Says how many steps a run has so that it is over in time, by the speed of the last ones.

    Args:
        done: steps taken before.
        now: `time.monotonic` at this moment.
        end: likewise, at which it must be over.
    """

    def __init__(self, done: int, now: float, end: float) -> None:
        self._end = end
        self._mark = (done, now)

    def restart(self, done: int) -> None:
        """Leave out of account what was before."""
        self._mark = (done, time.monotonic())

    def due(self, done: int) -> bool:
        """Return whether enough was seen to say it: many steps, or slow ones."""
        mark, then = self._mark
        slow = time.monotonic() - then >= PART * (self._end - then)
        return done > mark and (slow or done - mark >= WINDOW)

    def steps(self, done: int, planned: int) -> int:
        """Return the steps of the whole run, behind step `done` of `planned` ones."""
        if not self.due(done):
            return planned
        now, (mark, then) = time.monotonic(), self._mark
        self._mark = (done, now)
        each = (now - then) / (done - mark)
        return done + max(0, int((self._end - now) * (1 - SPARE) / each))
