"""What a restore refuses: other deployments, unfit host state; all of it or none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from flashrt_ros.capsule.closure import Closure
from flashrt_ros.capsule.errors import FingerprintError, HostStateError
from flashrt_ros.capsule.fingerprint import Fingerprint
from flashrt_ros.capsule.registry import Registry
from flashrt_ros.capsule.session import Session
from flashrt_ros.contract.context import Context


def test_another_deployment_is_refused_and_every_difference_named(brain: Any) -> None:
    """Planted faults: other weights and dtype. Nothing live changes."""
    registry = Registry(brain.ctx, gpu_bytes=1 << 20)
    capsule = brain.session(registry).snapshot('here')
    brain.step()
    then = brain.bytes()
    other = brain.session(registry, weights='w2', dtype='float16')
    with pytest.raises(FingerprintError) as caught:
        other.restore(capsule)
    message = str(caught.value)
    assert 'weights (w1 there, w2 here)' in message
    assert 'dtype (bfloat16 there, float16 here)' in message
    assert 'closure' not in message.replace('Closure', '')
    assert brain.bytes() == then


def test_a_fingerprint_tells_everything_apart() -> None:
    """Weights by content, structures by value, the closure by its schema."""
    ctx = Context('cpu')
    closure = Closure('a').fixed(ctx.buffer('x', (2,), torch.float32))
    wider = Closure('a').fixed(ctx.buffer('y', (3,), torch.float32))
    base = Fingerprint.of(closure, weights={'w': torch.ones(2)}, architecture={'layers': 2})
    same = Fingerprint.of(closure, weights={'w': torch.ones(2)}, architecture={'layers': 2})
    assert base == same
    assert hash(base) == hash(same)
    for name, changed in {
        'weights': Fingerprint.of(
            closure, weights={'w': torch.zeros(2)}, architecture={'layers': 2}
        ),
        'architecture': Fingerprint.of(
            closure, weights={'w': torch.ones(2)}, architecture={'layers': 3}
        ),
        'closure': Fingerprint.of(wider, weights={'w': torch.ones(2)}, architecture={'layers': 2}),
        'kernels': Fingerprint.of(
            closure, weights={'w': torch.ones(2)}, architecture={'layers': 2}, kernels='k'
        ),
    }.items():
        with pytest.raises(FingerprintError, match=f'deployment: {name} '):
            base.require(changed, 'capsule')
    assert {'torch', 'triton', 'device'} <= set(base.fields)
    with pytest.raises(FingerprintError, match="'x' of type object"):
        Fingerprint.of(closure, x=object())


def test_a_host_entry_that_refuses_undoes_everything(ctx: Context) -> None:
    """Planted fault: the second entry raises; the first is put back and no buffer changes."""
    buffer = ctx.buffer('b', (4,), torch.float32)
    one, two = {'n': 1}, {'n': 1}
    broken: list[bool] = []

    def refuse(state: dict[str, int]) -> None:
        if broken and state['n'] == 1:
            raise ValueError('planted')
        two.update(state)

    closure = Closure('x').fixed(buffer).host('one', lambda: dict(one), one.update)
    closure.host('two', lambda: dict(two), refuse)
    session = Session(ctx, closure, Fingerprint.of(closure))
    capsule = session.snapshot('start')
    buffer.tensor.fill_(5)
    one['n'] = two['n'] = 2
    broken.append(True)
    with pytest.raises(HostStateError, match="'two' refused"):
        session.restore(capsule)
    assert (one, two) == ({'n': 2}, {'n': 2})
    assert bool((buffer.tensor == 5).all())
    broken.clear()
    session.restore(capsule)
    assert (one, two) == ({'n': 1}, {'n': 1})
    assert not buffer.tensor.any()


@pytest.mark.parametrize('value', [object(), {1: 2}, {'a': (1, 2)}, np.array(['x']), 1j])
def test_host_state_that_cannot_be_kept_is_refused(ctx: Context, value: object) -> None:
    """Planted faults; the message names the path, and no capsule is made."""
    closure = Closure('x').host('bad', lambda: {'deep': [value]}, lambda state: None)
    session = Session(ctx, closure, Fingerprint.of(closure))
    with pytest.raises(HostStateError, match=r'bad/deep\[0\]'):
        session.snapshot('s')
    assert session.head is None
