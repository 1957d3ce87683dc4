"""Folders that lerobot saved act as they do in lerobot: same observation, same noise."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from vla_cases import FAMILIES, FIXTURES, load, with_noise

from flashrt_policies import registry

BOUND = 1e-5


@pytest.mark.parametrize('index', [0, 1])
@pytest.mark.parametrize('family', FAMILIES)
def test_actions_are_those_of_lerobot(family: str, index: int) -> None:
    """Resizing, tokens, normalisation, network and restored actions: within 1e-5 in float32."""
    bench = load(family)
    with_noise(bench, bench.arrays[f'{index}/noise'])
    bench.say(bench.tasks[index])
    bench.see(index)
    assert bench.policy.kv.dtype == torch.float32
    actions = bench.policy.plan()
    np.testing.assert_allclose(
        actions, bench.arrays[f'{index}/actions'].numpy(), rtol=0, atol=BOUND
    )


@pytest.mark.parametrize('family', FAMILIES)
def test_guided_actions_are_those_of_lerobot(family: str) -> None:
    """Real-time chunking three ticks later, two of them frozen, exponential schedule."""
    bench = load(family)
    used = bench.policy.spec.action_dim
    bench.policy.previous.tensor[:, :used] = bench.arrays['0/chunk']
    bench.say(bench.tasks[1])
    bench.see(1)
    with_noise(bench, bench.arrays['1/noise'])
    bench.policy.pace(3, 2)
    actions = bench.policy.plan()
    np.testing.assert_allclose(actions, bench.arrays['guided/actions'].numpy(), rtol=0, atol=BOUND)
    free = bench.arrays['1/actions'].numpy()
    assert np.abs(free - actions).max() > 100 * BOUND, 'the guidance did nothing'


@pytest.mark.parametrize('family', FAMILIES)
def test_a_wrong_weight_is_seen(family: str) -> None:
    """The planted fault: one number of one projection off by a tenth, and parity is lost."""
    bench = load(family)
    bench.policy._parts.network.expert.layers[0].out.data[0, 0] += 0.1
    with_noise(bench, bench.arrays['0/noise'])
    bench.say(bench.tasks[0])
    bench.see(0)
    assert np.abs(bench.policy.plan() - bench.arrays['0/actions'].numpy()).max() > BOUND


@pytest.mark.parametrize('family', FAMILIES)
def test_a_spec_needs_no_torch(family: str) -> None:
    """What a folder sees and does is known in a process that never loads torch."""
    code = (
        'import sys; from flashrt_policies import registry; '
        f'spec = registry.spec({str(FIXTURES / family)!r}); '
        "assert 'torch' not in sys.modules; print(spec.cameras, spec.horizon)"
    )
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert done.stdout.split() == ["('front',", "'wrist')", '10'], done.stderr


def test_the_registry_names_the_families() -> None:
    """Names are a table in the code; a folder never says what is imported."""
    assert set(FAMILIES) == set(registry.LEROBOT)
