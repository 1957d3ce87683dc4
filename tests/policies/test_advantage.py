"""Promise: chunks are called good or bad by rules that a hand can check; to tell costs nothing."""

from __future__ import annotations

from pathlib import Path

import flow_tiny as tiny
import numpy as np
import pytest
import torch
from torch import Tensor

from flashrt_policies.flow_vla.advantage import BAD, GOOD, UNSAID, conditioned, settled
from flashrt_policies.flow_vla.model import FlowVLA
from flashrt_policies.training import advantage
from flashrt_policies.training import recipe as recipes
from flashrt_policies.training.data import DataError, Demonstrations, Frames
from flashrt_policies.training.run import train
from flashrt_policies.training.value import (
    Value,
    calibration,
    centres,
    expected_returns,
    features,
    spread,
)


def velocities(model: FlowVLA, indicator: int | None) -> Tensor:
    """Return what the network says of two noisy chunks; `indicator` None: nothing is passed."""
    generator = torch.Generator().manual_seed(5)
    images, proprio = tiny.observation()
    shots = torch.from_numpy(np.stack(list(images.values())))[None].repeat(2, 1, 1, 1, 1)
    rows = torch.from_numpy(np.stack([tiny.row('open'), tiny.row('close')]))
    said = None if indicator is None else torch.full((2,), indicator)
    noisy = torch.randn(2, tiny.SPEC.horizon, tiny.SPEC.action_dim, generator=generator)
    with torch.no_grad():
        kv, summary = model.prefix(
            model.vision(shots), torch.from_numpy(proprio)[None].repeat(2, 1), rows
        )
        moments = model.expert.moments(torch.tensor([0.2, 0.7]))
        mods = model.expert.modulations(moments, summary, said)
        return model.expert(noisy, kv, mods)


def bits(tensor: Tensor) -> Tensor:
    """Return float32 numbers as their bits: -0 and 0 are two."""
    return tensor.contiguous().view(torch.int32)


def test_rows_change_no_bit_at_first() -> None:
    """Told good, bad, nothing or not even asked: the very same velocity as the shipped network."""
    model = tiny.make_model()
    before = velocities(model, None)
    grown = conditioned(model)
    for indicator in (None, UNSAID, BAD, GOOD):
        assert torch.equal(bits(velocities(grown, indicator)), bits(before))
    assert model.expert.advantage is None  # the copy grew, not the network


def test_rows_that_do_not_start_at_zero_are_caught() -> None:
    """Planted: rows drawn at random change the velocity wherever something is said."""
    model = tiny.make_model()
    grown = conditioned(model)
    torch.nn.init.normal_(grown.expert.advantage, generator=torch.Generator().manual_seed(1))
    assert not torch.equal(velocities(grown, GOOD), velocities(model, None))
    assert torch.equal(bits(velocities(grown, UNSAID)), bits(velocities(model, None)))


def test_a_settled_network_acts_as_it_was_told_to() -> None:
    """What is folded into the bias is what the row said; another row is another network."""
    grown = conditioned(tiny.make_model())
    torch.nn.init.normal_(grown.expert.advantage, generator=torch.Generator().manual_seed(1))
    found = {}
    for indicator in (UNSAID, BAD, GOOD):
        plain = settled(grown, indicator)
        assert plain.state_dict().keys() == tiny.make_model().state_dict().keys()
        found[indicator] = velocities(plain, None)
        assert torch.allclose(found[indicator], velocities(grown, indicator), atol=1e-5)
    assert not torch.allclose(found[GOOD], found[BAD], atol=1e-2)
    assert torch.equal(bits(velocities(settled(tiny.make_model(), GOOD), None)),
                       bits(velocities(tiny.make_model(), None)))  # fmt: skip
    with pytest.raises(IndexError, match='want 0, 1 or 2'):
        settled(grown, 3)


SEEN = np.array([0, 4, 8])


def test_returns_by_hand() -> None:
    """A tick costs a tenth of the limit of ten, a failure one whole limit more."""
    assert advantage.returns(SEEN, 10, False, 10).tolist() == [-2.0, -1.6, -1.2]
    assert np.allclose(advantage.returns(SEEN, 9, True, 10), [-0.9, -0.5, -0.1])


def test_advantages_by_hand() -> None:
    """Values -0.5, -0.6, -0.2; success after nine ticks of ten; a trace of a half.

    Surprises: -0.4 - 0.6 + 0.5 = -0.5; -0.4 - 0.2 + 0.6 = 0; -0.1 - 0 + 0.2 = 0.1. One four ticks
    ahead counts a sixteenth: 0.1; 0 + 0.1 / 16 = 0.00625; -0.5 + 0.00625 / 16 = -0.499609375.
    """
    values = np.array([-0.5, -0.6, -0.2])
    found = advantage.advantages(values, SEEN, 9, True, 10, 0.5)
    assert np.allclose(found, [-0.499609375, 0.00625, 0.1])
    # It failed after ten: the last surprise is -0.2 - 1 + 0.2 = -1 instead.
    failed = advantage.advantages(values, SEEN, 10, False, 10, 0.5)
    assert np.allclose(failed, [-0.5 - 1 / 256, -1 / 16, -1.0])


def test_a_whole_trace_is_what_followed_minus_what_was_expected() -> None:
    """The telescoping sum of the paper: any value, any outcome."""
    draw = np.random.default_rng(7)
    for success in (True, False):
        values = draw.normal(size=3)
        found = advantage.advantages(values, SEEN, 10, success, 10, 1.0)
        assert np.allclose(found, advantage.returns(SEEN, 10, success, 10) - values)


def test_labels_by_hand() -> None:
    """The best two fifths of each task, though one task's best is below the other's worst."""
    advantages = np.array([5.0, 1, 4, 2, 3, -5, -1, -4, -2, -3])
    task = np.repeat([0, 1], 5)
    found = advantage.labels(advantages, task, 0.4)
    good = [GOOD, BAD, GOOD, BAD, BAD, BAD, GOOD, BAD, GOOD, BAD]
    assert found.tolist() == good
    # Planted: with one threshold for both, the second task would never be good.
    assert advantage.labels(advantages, np.zeros(10, int), 0.4).tolist() != good


def test_distributions_have_the_mean_of_their_return() -> None:
    """Both bins beside a return share it, at the ends and between."""
    returns = torch.tensor([-2.0, -1.99, -0.73, -0.025, 0.0])
    for bins in (2, 5, 81):
        found = spread(returns, bins)
        assert torch.allclose(found.sum(1), torch.ones(5))
        assert torch.allclose(found @ centres(bins, returns.device), returns, atol=1e-6)


NUMBERS = Value(bins=21, width=32, steps=60, batch=64, rate=5e-3, decay=0.0, folds=4)


def puzzle(informative: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return inputs, returns and episodes; the inputs name the episode, and may tell its end."""
    draw = np.random.default_rng(11)
    episodes, pictures = 40, 5
    names = draw.normal(size=(episodes, 64))
    returns = np.where(np.arange(episodes) % 2 == 0, -0.2, -1.8)[draw.permutation(episodes)]
    if informative:
        names[:, :32] += 2 * returns[:, None]
    episode = np.repeat(np.arange(episodes), pictures)
    inputs = torch.from_numpy(names[episode]).float()
    return inputs, torch.from_numpy(returns[episode]).float(), torch.from_numpy(episode)


def test_no_value_function_knows_the_episodes_it_judges() -> None:
    """Where a picture names its episode and nothing else, no value can be right but by luck.

    Planted: fitted to the very episodes that it judges, the same network is right everywhere.
    """
    from flashrt_policies.training.value import fit

    inputs, returns, episode = puzzle(informative=False)
    expected = expected_returns(inputs, returns, episode, NUMBERS, 0)
    assert abs(np.corrcoef(expected, returns)[0, 1]) < 0.6
    knowing = fit(inputs, returns, NUMBERS, 0)(inputs).softmax(-1).detach()
    assert np.corrcoef(knowing @ centres(21, inputs.device), returns)[0, 1] > 0.95


def test_a_value_function_finds_what_there_is_to_know() -> None:
    """Half of the numbers tell, in noise, how an episode ends: values follow, calibrated."""
    inputs, returns, episode = puzzle(informative=True)
    expected = expected_returns(inputs, returns, episode, NUMBERS, 0)
    assert torch.equal(expected, expected_returns(inputs, returns, episode, NUMBERS, 0))
    assert np.corrcoef(expected, returns)[0, 1] > 0.8
    rows = calibration(expected.numpy(), returns.numpy(), 2)
    assert rows[0]['returned'] < -1.5 < -0.5 < rows[1]['returned']
    with pytest.raises(DataError, match='want at least'):
        expected_returns(inputs[:10], returns[:10], episode[:10], NUMBERS, 0)


def test_features_are_of_each_picture() -> None:
    """One row a picture, the same alone and among others, another for another picture."""
    data, model = tiny.demonstrations(episodes=2), tiny.make_model()
    frames = Frames(data, tiny.SPEC.cameras, tiny.SPEC.horizon, torch.device('cpu'), 0.0, 0)
    found = features(model, frames)
    assert found.shape[0] == len(data) and found.dtype == torch.float32
    assert torch.allclose(features(model, frames, slice_size=5), found, atol=1e-5)
    assert not torch.allclose(found[0], found[1], atol=1e-3)


def two_ways() -> Demonstrations:
    """Return data in which good chunks move one way and bad ones the other, whatever is seen."""
    data = tiny.demonstrations()
    good = data.episode % 4 < 2
    data.actions = np.where(good[:, None], 0.6, -0.6).astype(np.float32).repeat(2, 1)
    data.indicator = np.where(good, GOOD, BAD).astype(np.int64)
    return data


def tuning(steps: int) -> recipes.Recipe:
    """Return a recipe that fine-tunes the tiny network."""
    return recipes.parse({
        'horizon': tiny.SPEC.horizon,
        'train': {'steps': steps, 'batch': 16, 'rate': 0.01, 'warmup': 5, 'ema': 0.9,
                  'validation': 0.0, 'save_every': 1000, 'validate_every': 1000},
        'loss': {'first': 0, 'last': 6, 'draws': 2},
        'augment': {'shift': 1, 'indicator_dropout': 0.2},
    })  # fmt: skip


def acts(folder: Path) -> float:
    """Return the mean action of an exported policy."""
    from flashrt_policies import registry
    from flashrt_ros.contract.context import Context

    ctx = Context('cpu')
    policy = registry.load(folder, ctx, tiny.make_port(ctx))
    means = []
    for seed in range(4):
        policy.reset(seed)
        policy.observe(*tiny.observation(seed))
        means.append(policy.plan().mean())
    return float(np.mean(means))


def fine_tune(out: Path, data: Demonstrations, steps: int, **options: object) -> None:
    """Fine-tune the tiny network."""
    start = conditioned(tiny.make_model()).requires_grad_(True)
    train(tuning(steps), data, (-1.0, -1.0), (1.0, 1.0), out, start=start,
          tell=lambda line: None, **options)  # type: ignore[arg-type]  # fmt: skip


def test_told_to_be_good_it_does_what_was_good(tmp_path: Path) -> None:
    """From the same weights: good chunks if told so, a mixture of both if nothing is said.

    Planted: with the labels exchanged, it does the opposite.
    """
    fine_tune(tmp_path / 'right', two_ways(), 60)
    good = acts(tmp_path / 'right' / 'checkpoint')
    unsaid = acts(tmp_path / 'right' / 'unsaid')
    assert good > 0.35 and good > unsaid + 0.2
    exchanged = two_ways()
    assert exchanged.indicator is not None
    exchanged.indicator = BAD + GOOD - exchanged.indicator
    fine_tune(tmp_path / 'wrong', exchanged, 60)
    assert acts(tmp_path / 'wrong' / 'checkpoint') < -0.35


def test_a_stopped_fine_tuning_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    """Stopped at step 3 of 8 and continued, both exported policies are byte-identical."""
    fine_tune(tmp_path / 'whole', two_ways(), 8)
    fine_tune(tmp_path / 'parts', two_ways(), 8, until=3)
    fine_tune(tmp_path / 'parts', two_ways(), 8, resume=True)
    for name in ('checkpoint', 'unsaid'):
        for file in sorted((tmp_path / 'whole' / name).iterdir()):
            assert file.read_bytes() == (tmp_path / 'parts' / name / file.name).read_bytes()


def test_labels_that_do_not_fit_are_refused() -> None:
    """One label a picture, one weight a skill."""
    for name, value, reason in (
        ('indicator', np.zeros(3, np.int64), 'indicator has 3 frames; want 96'),
        ('weights', np.ones(3), '3 weights for 2 skills'),
    ):
        data = tiny.demonstrations()
        setattr(data, name, value)
        with pytest.raises(DataError, match=reason):
            data.check()


def test_skills_are_drawn_by_their_weights() -> None:
    """Three of four examples are of the skill that weighs three times the other."""
    data = tiny.demonstrations()
    data.weights = np.array([1.0, 3.0])
    frames = Frames(data, tiny.SPEC.cameras, tiny.SPEC.horizon, torch.device('cpu'), 0.0, 0)
    drawn = frames.sample(4000, torch.Generator().manual_seed(1)).skill
    assert abs(float((drawn == 1).float().mean()) - 0.75) < 0.05
