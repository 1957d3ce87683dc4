"""Promise: a recipe trains, resumes with the same bits, and exports what the registry loads."""

from __future__ import annotations

from pathlib import Path

import flow_tiny as tiny
import numpy as np
import pytest
import torch

from flashrt_policies import checkpoint, registry
from flashrt_policies.flow_vla.config import FlowSizes
from flashrt_policies.recipes import RecipeError
from flashrt_policies.training import recipe as recipes
from flashrt_policies.training.augment import Augmentation
from flashrt_policies.training.data import DataError, Frames
from flashrt_policies.training.recipe import Recipe
from flashrt_policies.training.run import train
from flashrt_ros.contract.context import Context

LIMIT = (1.0, 1.0)


def recipe(**train_values: object) -> Recipe:
    """Return a recipe that trains in seconds."""
    values: dict[str, object] = {
        'steps': 60, 'batch': 16, 'rate': 0.01, 'warmup': 5, 'validate_every': 30,
        'save_every': 30, 'validation': 0.25, 'ema': 0.9,
    }  # fmt: skip
    import dataclasses

    return recipes.parse(
        {
            'horizon': tiny.SPEC.horizon,
            'model': dataclasses.asdict(tiny.SIZES),
            'train': values | train_values,
            'loss': {'first': 1, 'last': 4, 'draws': 2},
            'augment': {'shift': 1},
        }
    )


def run(out: Path, **values: object) -> dict:
    """Train the tiny recipe."""
    options = {name: values.pop(name) for name in ('resume', 'until') if name in values}
    made = recipe(**values)
    out.mkdir(exist_ok=True)
    return train(
        made, tiny.demonstrations(), (-1.0, -1.0), LIMIT, out, tell=lambda line: None, **options
    )


def test_a_recipe_trains_exports_and_the_words_decide(tmp_path: Path) -> None:
    """The loss falls, the checkpoint acts through the registry, the other word acts otherwise."""
    history = run(tmp_path)
    losses = [entry['loss'] for entry in history['losses']]
    assert losses[-1] < 0.7 * losses[0]
    assert history['validations'][-1]['wrong'] > 2 * history['validations'][-1]['right']
    assert history['ambiguous_without_text'] > 0.2  # the observations are pure noise
    assert (tmp_path / 'training.png').stat().st_size > 5000

    ctx = Context('cpu')
    port = tiny.make_port(ctx)
    policy = registry.load(tmp_path / 'checkpoint', ctx, port)
    policy.reset(0)
    policy.observe(*tiny.observation())
    opening = policy.plan()
    port.live.write(torch.tensor([1]))
    closing = policy.plan()
    assert opening[:, 0].mean() > 0.2 > -0.2 > closing[:, 0].mean()


def test_a_resumed_run_has_the_bits_of_one_never_stopped(tmp_path: Path) -> None:
    """Stopped at step 7 and continued, the exported files are byte-identical."""
    run(tmp_path / 'whole', steps=12)
    run(tmp_path / 'parts', steps=12, until=7)
    assert not (tmp_path / 'parts' / 'checkpoint').exists()
    run(tmp_path / 'parts', steps=12, resume=True)
    files = sorted((tmp_path / 'whole' / 'checkpoint').iterdir())
    assert len(files) == 2
    for file in files:
        other = tmp_path / 'parts' / 'checkpoint' / file.name
        assert file.read_bytes() == other.read_bytes()


def test_another_seed_gives_other_weights(tmp_path: Path) -> None:
    """Planted difference: the byte comparison above can fail."""
    import dataclasses

    data = tiny.demonstrations()
    for seed in (0, 1):
        made = dataclasses.replace(recipe(steps=2), seed=seed)
        train(made, data, (-1.0, -1.0), LIMIT, tmp_path / str(seed), tell=lambda line: None)
    first, second = (next((tmp_path / s / 'checkpoint').glob('*.safetensors')) for s in '01')
    assert first.read_bytes() != second.read_bytes()


def test_resume_refuses_another_recipe(tmp_path: Path) -> None:
    """A state belongs to its recipe."""
    run(tmp_path, steps=12, until=2)
    with pytest.raises(RecipeError, match='another recipe'):
        run(tmp_path, steps=13, resume=True)


def frames() -> Frames:
    """Return the tiny demonstrations on the CPU."""
    device = torch.device('cpu')
    return Frames(tiny.demonstrations(), tiny.SPEC.cameras, tiny.SPEC.horizon, device, 0.25, 0)


def test_chunks_end_where_the_experts_answer_ends() -> None:
    """Beyond `ahead` a chunk is masked; before it the actions are those of the next ticks."""
    held = frames()
    batch = held.at(torch.tensor([0, 9, 11]), torch.zeros(3))
    assert batch.valid.sum(1).tolist() == [6, 3, 1]
    assert torch.equal(batch.actions[0], held.actions[:6])


def test_labels_beyond_the_mask_are_never_shown() -> None:
    """Wild labels right after a chunk's last true action change nothing in the loss."""
    from flashrt_policies.training.objective import flow_loss

    model, losses = tiny.make_model(), []
    for wild in (0.0, 100.0):
        held = frames()
        held.actions[12:] += wild  # another episode follows tick 11
        batch = held.at(torch.tensor([9, 11]), torch.zeros(2))
        assert torch.equal(batch.actions[0, 3:], batch.actions[0, 2].expand(3, 2))
        generator = torch.Generator().manual_seed(0)
        losses.append(flow_loss(model, batch, Augmentation(), recipe().loss, generator))
    assert torch.equal(losses[0], losses[1])


def test_labels_inside_the_mask_count() -> None:
    """Planted difference: a wild label inside the chunk does change the loss."""
    from flashrt_policies.training.objective import flow_loss

    model, losses = tiny.make_model(), []
    for wild in (0.0, 1.0):
        held = frames()
        held.actions[11] += wild
        batch = held.at(torch.tensor([9]), torch.zeros(1))
        generator = torch.Generator().manual_seed(0)
        losses.append(flow_loss(model, batch, Augmentation(), recipe().loss, generator))
    assert not torch.equal(losses[0], losses[1])


def test_validation_episodes_are_never_trained_on() -> None:
    """Training and validation frames share no episode, and every skill is drawn equally."""
    held = frames()
    kept = set(held.episode[held.validation].tolist())
    assert kept
    assert not kept & set(held.episode[held.order].tolist())
    batch = held.sample(4000, torch.Generator().manual_seed(0))
    assert abs(batch.skill.float().mean() - 0.5) < 0.05


def test_augmentation_keeps_shapes_and_is_decided_by_its_generator() -> None:
    """The same generator state gives the same images; strength zero gives them unchanged."""
    images = torch.from_numpy(np.stack(list(tiny.observation()[0].values())))[None]
    strong = Augmentation(blur=1.0)
    first, again = (strong.images(images, torch.Generator().manual_seed(3)) for _ in range(2))
    assert first.shape == images.shape
    assert torch.equal(first, again)
    off = Augmentation(0, 0.0, 0.0, 0.0, 0.0, 0.0)
    plain = off.images(images, torch.Generator())
    assert torch.allclose(plain, images / 127.5 - 1, atol=1e-6)
    assert not torch.allclose(first, plain, atol=0.05)


BAD: list[tuple[object, str]] = [
    ([], 'want a mapping'),
    ({'modle': {}}, 'modle is unknown'),
    ({'train': {'steps': '5'}}, "train.steps is '5'; want a int"),
    ({'train': {'steps': 0}}, 'want a positive number'),
    ({'train': 3}, 'want a mapping'),
    ({'policy': 'other'}, 'want flow_vla'),
    ({'loss': {'first': 9, 'last': 40}}, 'want 0 <= first < last <= 16'),
    ({'model': {'stages': [64, 128]}}, 'want the same number'),
    ({'model': {'width': 100, 'heads': 3}}, 'want a multiple'),
]


@pytest.mark.parametrize(('raw', 'reason'), BAD)
def test_recipes_that_make_no_sense_are_refused(raw: object, reason: str) -> None:
    """One line names the key and says what would be right."""
    with pytest.raises(RecipeError) as caught:
        recipes.parse(raw)
    assert reason in str(caught.value)


def test_the_shipped_recipe_is_valid_and_small() -> None:
    """config/train_mt50.yaml parses and describes the network whose weights are shipped."""
    from flashrt_policies.base import PolicySpec
    from flashrt_policies.flow_vla.model import FlowVLA

    made = recipes.load(Path(__file__).parents[2] / 'config' / 'train_mt50.yaml')
    spec = PolicySpec(
        ('front', 'wrist'), (96, 96), 4, 4, made.horizon, 64, (-1.0,) * 4, (1.0,) * 4
    )
    with torch.device('meta'):
        model = FlowVLA(spec, made.model)
    assert sum(parameter.numel() for parameter in model.parameters()) < 40e6
    weights = Path(registry.__file__).parent / 'weights' / 'mt50'
    assert FlowSizes.of(checkpoint.read_config(weights)['model']) == made.model


def test_skills_are_drawn_as_balance_says() -> None:
    """All equally at 0, in proportion to their frames at 1."""
    data = tiny.demonstrations()
    data.skill = np.where(np.arange(len(data)) < len(data) // 4, 0, 1)
    data.seen = np.arange(len(data))
    for balance, share in ((0.0, 0.5), (1.0, 0.75)):
        frames = Frames(
            data, tuple(data.images), tiny.SPEC.horizon, torch.device('cpu'), 0.0, 0, balance
        )
        drawn = frames.sample(4000, torch.Generator().manual_seed(1)).skill
        assert abs(float((drawn == 1).float().mean()) - share) < 0.05


def test_pictures_may_be_fewer_than_ticks() -> None:
    """An example is a picture; its chunk is made of the ticks that follow, pictured or not."""
    whole, sparse = tiny.demonstrations(), tiny.demonstrations()
    sparse.seen = np.arange(0, len(whole), 2)
    sparse.images = {name: images[::2] for name, images in whole.images.items()}
    both = [
        Frames(data, tuple(data.images), tiny.SPEC.horizon, torch.device('cpu'), 0.0, 0)
        for data in (whole, sparse)
    ]
    a = both[0].at(torch.tensor([6]), torch.zeros(1))
    b = both[1].at(torch.tensor([3]), torch.zeros(1))
    assert torch.equal(a.images, b.images) and torch.equal(a.actions, b.actions)
    assert torch.equal(a.proprio, b.proprio) and torch.equal(a.valid, b.valid)
    sparse.seen = sparse.seen + len(whole)
    with pytest.raises(DataError, match='seen leaves the data'):
        sparse.check()


def test_demonstrations_that_do_not_fit_are_refused() -> None:
    """Arrays of other lengths, NaN, chunks that leave their episode: one line each."""
    for name, value, reason in (
        ('proprio', np.zeros((3, 3), np.float32), 'has 3 frames'),
        ('actions', np.full((96, 2), np.nan, np.float32), 'NaN'),
        ('ahead', np.full(96, 6), 'leaves its episode'),
        ('skill', np.full(96, 2), 'want 0 to 1'),
    ):
        data = tiny.demonstrations()
        setattr(data, name, value)
        with pytest.raises(DataError, match=reason):
            data.check()
