"""Promise: the captured graphs are the network, and their state is exactly their closure."""

from __future__ import annotations

import copy
from typing import Any

import flow_tiny as tiny
import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from flashrt_policies.base import ObservationError, Policy
from flashrt_policies.check import check_policy
from flashrt_policies.flow_vla.policy import FlowPolicy
from flashrt_policies.kernels import noise
from flashrt_ros.capsule.closure import Closure
from flashrt_ros.capsule.fingerprint import Fingerprint
from flashrt_ros.capsule.session import Session
from flashrt_ros.contract.context import Context


def eager(policy: FlowPolicy, row: np.ndarray, dtype: torch.dtype, seed: int = 11) -> torch.Tensor:
    """Return the chunk of the eager network, written out without graphs or buffers."""
    model = copy.deepcopy(policy._model).to(dtype)
    images, proprio = tiny.observation()
    draw = noise.normal_(
        torch.empty(tiny.SPEC.horizon, tiny.SPEC.action_dim, dtype=dtype),
        torch.tensor([seed]),
        torch.tensor([0]),
    )
    pixels = torch.from_numpy(np.stack([images[name] for name in tiny.SPEC.cameras]))[None]
    with torch.no_grad():
        return model.act(
            pixels, torch.from_numpy(proprio)[None].to(dtype), torch.from_numpy(row)[None],
            draw[None],
        )[0]  # fmt: skip


def test_graphs_equal_the_eager_network_bit_for_bit() -> None:
    """Same type, same noise: the same bits; the policy satisfies the protocol."""
    policy, _, _ = tiny.make_policy()
    assert isinstance(policy, Policy)
    policy.observe(*tiny.observation())
    chunk = policy.plan()
    assert chunk.shape == (tiny.SPEC.horizon, tiny.SPEC.action_dim)
    assert chunk.dtype == np.float32
    assert np.array_equal(chunk, eager(policy, tiny.row('open'), torch.float32).numpy())


def test_graphs_agree_with_a_float64_reference() -> None:
    """Rounding alone separates the policy from the network in float64."""
    policy, _, _ = tiny.make_policy()
    policy.observe(*tiny.observation())
    reference = eager(policy, tiny.row('open'), torch.float64).numpy()
    assert np.abs(reference).max() > 0.05  # it is no trivial chunk
    np.testing.assert_allclose(policy.plan(), reference, atol=2e-5)


def test_reset_gives_the_same_actions_twice_and_another_seed_others() -> None:
    """Two resets with one seed act alike; between chunks the noise moves on."""
    policy, _, _ = tiny.make_policy()
    runs = []
    for seed in (5, 5, 6):
        policy.reset(seed)
        policy.observe(*tiny.observation())
        runs.append(np.stack([policy.plan(), policy.plan()]))
    assert np.array_equal(runs[0], runs[1])
    assert not np.array_equal(runs[0], runs[2])
    assert not np.array_equal(runs[0][0], runs[0][1])


def test_replays_are_bit_identical_once_the_counter_is_restored() -> None:
    """The counter is the only thing that separates one replay from the next."""
    policy, _, ctx = tiny.make_policy()
    ctx.freeze()
    policy.observe(*tiny.observation())
    start = policy.counter.tensor.clone()
    chunks = []
    for _ in range(5):
        policy.counter.write(start)
        chunks.append(policy.plan())
    assert all(np.array_equal(chunk, chunks[0]) for chunk in chunks)


def test_a_subgoal_reaches_the_policy_through_the_buffer_alone() -> None:
    """Flipping the live slot changes the chunk; flipping back restores it; no host call."""
    policy, port, _ = tiny.make_policy()
    policy.observe(*tiny.observation())
    chunks = []
    for slot in (0, 1, 0):
        policy.counter.write(torch.zeros(1, dtype=torch.int64))
        port.live.write(torch.tensor([slot]))
        chunks.append(policy.plan())
    assert not np.array_equal(chunks[0], chunks[1])
    assert np.array_equal(chunks[0], chunks[2])
    assert np.array_equal(chunks[1], eager(policy, tiny.row('close'), torch.float32).numpy())


def test_an_empty_or_wild_subgoal_row_still_gives_finite_actions() -> None:
    """No subgoal yet, or bytes no text gives: the chunk stays finite and within limits."""
    policy, port, _ = tiny.make_policy()
    policy.observe(*tiny.observation())
    for value in (0, -7, 2**30):
        port.slots.tensor.fill_(value)
        chunk = policy.plan()
        assert np.isfinite(chunk).all()
        assert np.abs(chunk).max() <= 1.0


def closed(policy: FlowPolicy, port: tiny.Port, without: str = '') -> Closure:
    """Return the closure of policy and port, one buffer left out."""
    whole = Closure('whole')
    policy.close_over(whole)
    whole.fixed(port.slots, port.live)
    part = Closure('part')
    for name, buffer in whole._fixed.items():
        if name != without:
            part.fixed(buffer)
    return part


def scramble(ctx: Context) -> None:
    """Overwrite every buffer of the context with other valid values."""
    generator = torch.Generator().manual_seed(1)
    for buffer in ctx.buffers.values():
        size = buffer.shape
        if buffer.name == 'subgoal/live':
            buffer.write(1 - buffer.tensor)
        elif buffer.dtype.is_floating_point:
            buffer.write(torch.randn(size, generator=generator).to(buffer.dtype))
        else:
            draw = torch.randint(1, 200, size, generator=generator)
            buffer.write(draw.to(buffer.dtype))


def continues(without: str = '') -> bool:
    """Whether a policy restored after every buffer was overwritten goes on with the same bits."""
    policy, port, ctx = tiny.make_policy()
    policy.observe(*tiny.observation())
    policy.plan()
    closure = closed(policy, port, without)
    session = Session(ctx, closure, Fingerprint.of(closure=closure, **policy.fingerprint()))
    capsule = session.snapshot(boundary='mid', position=1)
    want = [policy.plan(), policy.plan()]
    scramble(ctx)
    session.restore(capsule)
    got = [policy.plan(), policy.plan()]
    return all(np.array_equal(a, b) for a, b in zip(want, got, strict=True))


def test_the_closure_is_complete() -> None:
    """Every buffer overwritten, capsule restored: the policy goes on with the same bits."""
    assert continues()


def test_the_published_checks_pass() -> None:
    """Shape, determinism, closure, reset, refusals, no capture: as for anybody's policy."""
    check_policy(
        lambda ctx, port: FlowPolicy(ctx, tiny.make_model(), port), tiny.SPEC.subgoal_length
    )


def test_observe_writes_what_preprocess_returns() -> None:
    """Cameras in the spec's order, whatever that of the mapping; the arrays are not kept."""
    policy, _, ctx = tiny.make_policy()
    images, proprio = tiny.observation()
    ready = policy.preprocess(images, proprio)
    policy.observe(dict(reversed(images.items())), proprio)
    images['front'][:] = 0
    for name, value in ready.items():
        assert np.array_equal(ctx.buffers[name].tensor.numpy(), value), name


class Calls(TorchDispatchMode):
    """Names of the operations that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.names.append(func._schema.name)
        return func(*args, **(kwargs or {}))


def test_a_replay_computes_no_constants() -> None:
    """The flow times are encoded at capture; `moments` itself is the negative control."""
    policy, _, _ = tiny.make_policy()
    encodes = {'aten::exp', 'aten::linspace'}
    with Calls() as calls:
        policy.plan()
    assert not encodes & set(calls.names)
    with Calls() as calls:
        policy._model.moments()
    assert encodes <= set(calls.names)


def test_one_observation_is_modulated_as_many_are() -> None:
    """Alone the modulation is the norm's own weight and bias: the same chunk up to rounding."""
    model, (images, proprio) = tiny.make_model(), tiny.observation()
    shots = torch.from_numpy(np.stack([images[name] for name in tiny.SPEC.cameras]))[None]
    rows = torch.from_numpy(np.stack([tiny.row('open'), tiny.row('close')]))
    noise = torch.randn(2, tiny.SPEC.horizon, tiny.SPEC.action_dim)
    state = torch.from_numpy(proprio)[None]
    with torch.no_grad():
        both = model.act(shots.repeat(2, 1, 1, 1, 1), state.repeat(2, 1), rows, noise)
        for i in range(2):
            alone = model.act(shots, state, rows[i : i + 1], noise[i : i + 1])
            assert torch.allclose(alone[0], both[i], atol=1e-5)
    assert not torch.allclose(both[0], both[1], atol=1e-2)


NAMES = [
    'flow/images',
    'flow/proprio',
    'flow/seed',
    'flow/counter',
    'subgoal/slots',
    'subgoal/live',
]


@pytest.mark.parametrize('name', NAMES)
def test_the_closure_holds_nothing_superfluous(name: str) -> None:
    """Planted fault: with any one buffer left out, the policy goes on differently."""
    assert not continues(without=name)


def test_every_name_of_the_closure_is_tested() -> None:
    """The list above is the closure, no more and no less."""
    policy, port, _ = tiny.make_policy()
    assert sorted(closed(policy, port)._fixed) == sorted(NAMES)


def bad_observations() -> list[tuple[str, dict[str, np.ndarray], np.ndarray]]:
    """Return observations that must be refused, with a word of the reason."""
    images, proprio = tiny.observation()
    nan = proprio.copy()
    nan[1] = np.nan
    return [
        ('proprioception[1] is nan', images, nan),
        ('float64', images, proprio.astype(np.float64)),
        ('[2]', images, proprio[:2]),
        ('cameras', {'front': images['front']}, proprio),
        ("'wrist' is float32", images | {'wrist': images['wrist'].astype(np.float32)}, proprio),
        ('[15, 24, 3]', images | {'front': images['front'][1:]}, proprio),
    ]


@pytest.mark.parametrize('case', range(6))
def test_a_bad_observation_is_refused_and_leaves_no_trace(case: int) -> None:
    """One line says what is wrong and what would be right; no buffer has changed."""
    policy, _, ctx = tiny.make_policy()
    policy.observe(*tiny.observation(4))
    before = {name: buffer.tensor.clone() for name, buffer in ctx.buffers.items()}
    word, images, proprio = bad_observations()[case]
    with pytest.raises(ObservationError) as caught:
        policy.observe(images, proprio)
    assert word in str(caught.value)
    assert 'take' in str(caught.value) or 'want' in str(caught.value)
    assert '\n' not in str(caught.value)
    for name, buffer in ctx.buffers.items():
        assert torch.equal(buffer.tensor, before[name]), name


def test_fingerprints_tell_weights_and_sizes_apart() -> None:
    """Another weight, another digest; the same weights, the same."""
    first, again, other = (tiny.make_policy(seed)[0].fingerprint() for seed in (0, 0, 1))
    assert first == again
    assert first['weights'] != other['weights']
    assert first['architecture'] == other['architecture']
