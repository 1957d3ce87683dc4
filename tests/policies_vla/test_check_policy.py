"""The published checks: the guide's toy passes, each planted fault is named by its check."""

from __future__ import annotations

import functools
import importlib.util
import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from vla_cases import FAMILIES, FIXTURES

from flashrt_policies import registry
from flashrt_policies.base import Policy, RealTimePolicy
from flashrt_policies.check import PolicyFault, check_policy

GUIDE = Path(__file__).resolve().parents[2] / 'docs' / 'policy-author.md'


def guide_code() -> str:
    """Return the toy policy as the guide prints it."""
    blocks = re.findall(r'```python\n(.*?)```', GUIDE.read_text('utf-8'), re.S)
    return str(blocks[0])


@functools.cache
def toy() -> Any:
    """Return the guide's class, imported from a file of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / 'guide_toy.py'
        path.write_text(guide_code(), 'utf-8')
        spec = importlib.util.spec_from_file_location('guide_toy', path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module.Toy


def test_the_toy_of_the_guide_passes_and_is_short() -> None:
    """A complete policy fits in about 60 lines and passes every check, as the guide says."""
    lines = [line for line in guide_code().splitlines() if line.strip()]
    assert len(lines) <= 60, len(lines)
    check_policy(toy(), 32)


@pytest.mark.parametrize('family', FAMILIES)
def test_the_families_pass(family: str) -> None:
    """π0, π0.5 and SmolVLA pass the same checks as a toy."""
    path = FIXTURES / family
    check_policy(lambda ctx, port: registry.load(path, ctx, port), 256)


def broken(fault: str) -> Any:
    """Return the toy with one thing wrong."""
    base = toy()

    class Broken(base):  # type: ignore[misc]
        def plan(self) -> np.ndarray:
            if fault == 'view':
                self.graph.replay(self.key)
                return self.action.tensor.numpy()
            chunk: np.ndarray = super().plan()
            if fault == 'transposed':
                return chunk.T.copy()
            if fault == 'nan':
                chunk[0, 0] = np.nan
            if fault == 'torch noise':
                chunk += torch.randn(1).numpy()
            if fault == 'blind':
                chunk[:] = 0.5
            if fault == 'uncaptured':
                self.plans = getattr(self, 'plans', 0) + 1
                self.ctx.buffer(f'toy/late{self.plans}', (1,), torch.float32)
            if fault == 'warm':
                chunk += self.bias
                self.used = True
            if fault in ('host count', 'reset'):
                self.count = getattr(self, 'count', 0) + 1
                chunk += self.count
            return chunk

        def __init__(self, ctx: Any, subgoal: Any) -> None:
            self.ctx = ctx
            super().__init__(ctx, subgoal)

        def observe(self, images: Any, proprio: Any) -> None:
            if fault == 'writes first':
                self.proprio.tensor.copy_(torch.from_numpy(np.array(proprio)))
            if fault == 'unguarded':
                self.image.tensor.copy_(torch.from_numpy(images['front'].copy()))
                self.proprio.write(proprio)
                return
            super().observe(images, proprio)

        def reset(self, seed: int) -> None:
            super().reset(seed)
            self.bias = float(getattr(self, 'used', False))
            if fault == 'host count':
                self.count = 0

        def close_over(self, closure: Any) -> None:
            if fault == 'open':
                closure.fixed(self.image, self.proprio, self.seed)
            else:
                super().close_over(closure)

    return Broken


@pytest.mark.parametrize(
    ('fault', 'check'),
    [
        ('transposed', 'shape'), ('nan', 'shape'), ('view', 'shape'),
        ('torch noise', 'determinism'), ('blind', 'determinism'), ('uncaptured', 'graph'),
        ('writes first', 'nan'), ('unguarded', 'nan'), ('reset', 'determinism'),
        ('warm', 'reset'),
        ('host count', 'closure'), ('open', 'closure'),
    ],
)  # fmt: skip
def test_each_planted_fault_is_named(fault: str, check: str) -> None:
    """A policy broken in one way is refused by the check that is about it."""
    with pytest.raises(PolicyFault) as caught:
        check_policy(broken(fault), 32)
    assert caught.value.check == check, str(caught.value)


def test_the_protocols_hold() -> None:
    """The toy is a `Policy`; the families are `RealTimePolicy` too."""
    assert all(hasattr(toy(), name) for name in ('preprocess', 'observe', 'plan', 'reset'))
    from flashrt_policies.vla.policy import VlaPolicy

    for protocol in (Policy, RealTimePolicy):
        wanted = [name for name in vars(protocol) if not name.startswith('_')]
        assert all(hasattr(VlaPolicy, name) for name in wanted)
