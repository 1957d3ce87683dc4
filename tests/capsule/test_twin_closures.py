"""Closures over twin sets of buffers: a capsule of one is restored in the other."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from flashrt_ros.capsule.closure import Closure
from flashrt_ros.capsule.cursor import Cursor
from flashrt_ros.capsule.errors import FingerprintError
from flashrt_ros.capsule.fingerprint import Fingerprint
from flashrt_ros.capsule.registry import Registry
from flashrt_ros.capsule.session import Session
from flashrt_ros.capsule.store import DiskStore
from flashrt_ros.contract.context import Context


class Desk:
    """One set of buffers with a session over them."""

    def __init__(self, ctx: Context, registry: Registry, name: str, prefix: str) -> None:
        self.fixed = ctx.buffer(f'{name}fixed', (5,), torch.float32)
        self.grown = ctx.buffer(f'{name}grown', (2, 8), torch.float32)
        self.cursor = Cursor(f'{name}length')
        closure = Closure('desk', prefix=prefix)
        closure.fixed(self.fixed).append(self.grown, dim=1, length=self.cursor)
        made = Fingerprint.of(closure, ctx.device)
        self.session = Session(ctx, closure, made, registry=registry)

    def fill(self, value: float) -> None:
        """Write five positions and the fixed part."""
        self.cursor.truncate(0)
        self.fixed.tensor.fill_(value)
        with self.cursor.appending(5):
            self.grown.tensor[:, :5] = value


def test_a_capsule_of_one_twin_is_restored_in_the_other(tmp_path: Path) -> None:
    """Twins share schema and registry, also through the disk."""
    ctx = Context('cpu')
    registry = Registry(ctx, 1 << 20, store=DiskStore(tmp_path))
    one = Desk(ctx, registry, 'desk/0/', 'desk/0/')
    two = Desk(ctx, registry, 'desk/1/', 'desk/1/')
    one.fill(3.0)
    capsule = one.session.snapshot('here')
    two.fill(7.0)
    two.session.restore(capsule)
    assert two.cursor.length == 5
    assert two.fixed.tensor.eq(3).all() and two.grown.tensor[:, :5].eq(3).all()
    registry.demote(capsule, 'disk', wait=True)
    two.fill(9.0)
    two.session.restore(capsule)
    assert two.fixed.tensor.eq(3).all() and two.grown.tensor[:, :5].eq(3).all()


def test_buffers_of_other_names_are_still_another_deployment() -> None:
    """The planted fault: without the prefix the schemas differ, and the restore is refused."""
    ctx = Context('cpu')
    registry = Registry(ctx, 1 << 20)
    one = Desk(ctx, registry, 'desk/0/', '')
    two = Desk(ctx, registry, 'desk/1/', '')
    one.fill(3.0)
    capsule = one.session.snapshot('here')
    two.fill(7.0)
    with pytest.raises(FingerprintError):
        two.session.restore(capsule)
    assert two.fixed.tensor.eq(7).all()
