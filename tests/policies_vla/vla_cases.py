"""The committed checkpoint folders, and what lerobot and openpi made of them."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from flashrt_policies import registry
from flashrt_ros.contract.context import Context
from flashrt_ros.control.mailbox import Mailbox
from flashrt_ros.control.text import encode

FIXTURES = Path(__file__).parent / 'fixtures'
FAMILIES = ('smolvla', 'pi0', 'pi05')  # as lerobot saves them
OPENPI = ('openpi_pi0', 'openpi_pi05')


@dataclass
class Bench:
    """A loaded policy with its mailbox, and the reference's numbers for it."""

    policy: Any
    mailbox: Mailbox
    ctx: Context
    arrays: dict[str, torch.Tensor]
    tasks: list[str]

    def say(self, text: str) -> None:
        """Make a subgoal live."""
        self.mailbox.post(encode(text, self.mailbox.length))
        self.mailbox.flip()

    def images(self, index: int) -> dict[str, np.ndarray]:
        """Return the images of a recorded observation."""
        return {name: self.arrays[f'{index}/{name}'].numpy() for name in self.policy.spec.cameras}

    def see(self, index: int) -> None:
        """Observe a recorded observation."""
        self.policy.observe(self.images(index), self.arrays[f'{index}/state'].numpy())


def load(folder: Path | str, device: str = 'cpu') -> Bench:
    """Load a folder into a context of its own: a name of `FAMILIES` or `OPENPI`, or a path."""
    path = FIXTURES / folder if str(folder) in FAMILIES + OPENPI else Path(folder)
    torch.set_num_threads(1)
    ctx = Context(device)
    mailbox = Mailbox(ctx, registry.spec(path).subgoal_length)
    policy = registry.load(path, ctx, mailbox.port)
    policy.reset(1)
    arrays, tasks = expected(str(path))
    return Bench(policy, mailbox, ctx, arrays, tasks)


@cache
def expected(path: str) -> tuple[dict[str, torch.Tensor], list[str]]:
    """Return the reference's numbers and the tasks of a folder."""
    file = Path(path) / 'expected.safetensors'
    with safe_open(file, framework='pt') as opened:
        tasks = json.loads(opened.metadata()['tasks'])
    return load_file(file), tasks


def with_noise(bench: Bench, noise: torch.Tensor) -> None:
    """Make the policy's next chunks start from this noise: for the comparison alone."""
    net = bench.policy._parts.network
    plain = net.denoise

    def replaced(x: torch.Tensor, *rest: torch.Tensor) -> None:
        x.copy_(noise)
        plain(x, *rest)

    net.denoise = replaced


def copied(family: str, target: Path) -> Path:
    """Return a copy of a fixture's folder that a test may damage."""
    folder = target / family
    shutil.copytree(FIXTURES / family, folder)
    return folder


def edit_json(path: Path, **values: Any) -> None:
    """Change keys of a JSON file."""
    config = json.loads(path.read_text('utf-8'))
    config.update(values)
    path.write_text(json.dumps(config), 'utf-8')


def edit_tensors(path: Path, **changes: torch.Tensor | None) -> None:
    """Replace tensors of a safetensors file; None takes one away. Dots are written as `__`."""
    tensors = load_file(path)
    for name, value in changes.items():
        key = name.replace('__', '.')
        tensors.pop(key, None)
        if value is not None:
            tensors[key] = value
    save_file(tensors, path)
