"""Promise: a value function that was kept judges as it did when it was fitted, or is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import flow_tiny as tiny
import numpy as np
import pytest
import torch
from torch import Tensor

from flashrt_policies.checkpoint import CheckpointError
from flashrt_policies.flow_vla.policy import export, load_model
from flashrt_policies.training import value_function
from flashrt_policies.training.data import Frames
from flashrt_policies.training.value import Value, cross_fit, expected_returns, features
from flashrt_policies.training.value_function import Fitted, ValueFunction

NUMBERS = Value(bins=5, width=8, steps=30, batch=16, rate=5e-3, dropout=0.0, folds=2)
TASKS = ('flashrt/MT50-soccer-v0', 'flashrt/MT50-reach-v0')


def looks() -> tuple[Tensor, Tensor, Tensor]:
    """Return images [3, V, H, W, 3], proprioception [3, P] and instruction rows [3, L]."""
    seen = [tiny.observation(seed) for seed in range(3)]
    images = np.stack([np.stack(list(pictures.values())) for pictures, _ in seen])
    rows = np.stack([tiny.row(text) for text in ('open', 'close', 'open')])
    proprio = np.stack([proprio for _, proprio in seen])
    return torch.from_numpy(images), torch.from_numpy(proprio), torch.from_numpy(rows)


@pytest.fixture(scope='module')
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ValueFunction]:
    """A folder with a value function, and that one as it was before it was written."""
    folder = tmp_path_factory.mktemp('value')
    policy = folder / 'some-policy'
    export(policy, tiny.make_model(), 'float32')
    config = json.loads((policy / 'config.json').read_text())
    model, digest = load_model(policy, config, tiny.SPEC)
    data = tiny.demonstrations(episodes=4)
    frames = Frames(data, tiny.SPEC.cameras, tiny.SPEC.horizon, torch.device('cpu'), 0.0, 0)
    views = features(model, frames)
    returns = -torch.rand(len(views), generator=torch.Generator().manual_seed(2)) * 2
    _, network = cross_fit(views, returns, frames.episode, NUMBERS, 0)
    fitted = Fitted(digest, TASKS, 4, 300)
    value_function.save(folder / 'value', network, policy, fitted)
    shutil.rmtree(policy)  # the folder alone is enough
    return folder / 'value', ValueFunction(model, network, fitted)


@pytest.fixture
def folder(made: tuple[Path, ValueFunction], tmp_path: Path) -> Path:
    """A copy of the folder, to be spoilt."""
    return Path(shutil.copytree(made[0], tmp_path / 'value'))


def test_what_was_kept_judges_as_before(made: tuple[Path, ValueFunction]) -> None:
    """To the bit, with all that it was fitted to; nothing half-written is left beside it."""
    path, before = made
    after = value_function.load(path)
    assert torch.equal(after(*looks()), before(*looks()))
    assert after.fitted == before.fitted and after.fitted.tasks == TASKS
    found = after(*looks())
    assert found.shape == (3,) and ((found >= -2) & (found <= 0)).all()
    assert [each.name for each in path.parent.iterdir()] == ['value']


def test_another_view_is_another_value(made: tuple[Path, ValueFunction]) -> None:
    """Negative control: pictures, hand and words all matter, so the bits above say something."""
    value = value_function.load(made[0])
    images, proprio, rows = looks()
    before = value(images, proprio, rows)
    for other in ((255 - images, proprio, rows), (images, proprio + 1, rows),
                  (images, proprio, rows.flip(1))):  # fmt: skip
        assert not torch.equal(value(*other), before)


def test_a_new_picture_is_judged_by_the_mean_of_all_folds() -> None:
    """And an old one by the fold that never saw its episode, as `expected_returns` says."""
    draw = torch.Generator().manual_seed(1)
    views, returns = torch.randn(12, 7, generator=draw), -torch.rand(12, generator=draw)
    episode = torch.arange(6).repeat_interleave(2)
    found, network = cross_fit(views, returns, episode, NUMBERS, 3)
    assert torch.equal(found, expected_returns(views, returns, episode, NUMBERS, 3))
    with torch.no_grad():
        each = [network.expected(fold, network.scaled(views)) for fold in (0, 1)]
        assert torch.allclose(network(views), (each[0] + each[1]) / 2, atol=1e-6)
    assert not torch.allclose(each[0], each[1], atol=1e-3)
    apart = torch.stack([(found - one).abs() for one in each])
    assert apart.min(0).values.max() < 1e-6 and len(apart.argmin(0).unique()) == 2


def test_fitting_and_loading_draw_nothing_from_the_callers_numbers(
    made: tuple[Path, ValueFunction],
) -> None:
    """What is drawn afterwards is what would have been drawn without them."""
    views, episode = torch.ones(4, 3), torch.arange(4)
    torch.manual_seed(9)
    before = torch.rand(2)
    torch.manual_seed(9)
    cross_fit(views, -torch.ones(4), episode, NUMBERS, 0)
    value_function.load(made[0])
    assert torch.equal(torch.rand(2), before)


@pytest.mark.parametrize(
    ('file', 'path', 'value', 'reason'),
    [
        ('config.json', ('architecture',), 'flow_vla', "architecture is 'flow_vla'; want 'value'"),
        ('config.json', ('dtype',), 'float16', "dtype is 'float16'; want 'float32'"),
        ('config.json', ('model', 'width'), 9, r'has shape \[8\]; want \[9\]'),
        ('config.json', ('model', 'folds'), 3, 'folds.2.* is missing'),
        ('config.json', ('model', 'bins'), 1, 'model.bins is 1; want 2 or more'),
        ('config.json', ('model', 'depth'), 1, 'model.depth is unknown'),
        ('config.json', ('spec', 'tasks'), [], 'want names of tasks'),
        ('config.json', ('spec', 'limit'), 0.5, 'as whole numbers'),
        ('config.json', ('spec', 'more'), 1, 'want exactly the fields weights'),
        ('config.json', ('spec', 'weights'), '0' * 64, 'want 000000000000, whose view'),
        ('policy/config.json', ('architecture',), 'value', "want 'flow_vla'"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(
    folder: Path, file: str, path: tuple[str, ...], value: object, reason: str
) -> None:
    """One line that names the folder or its file, and says what would be right."""
    config = json.loads((folder / file).read_text())
    place = config
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    (folder / file).write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=reason) as caught:
        value_function.load(folder)
    assert '\n' not in str(caught.value) and str(folder) in str(caught.value)


def test_files_that_are_not_whole_are_refused(folder: Path) -> None:
    """A shard cut short, a missing one, no policy, another policy, a policy's folder."""
    shard = next(folder.glob('*.safetensors'))
    whole = shard.read_bytes()
    shard.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match='want a whole safetensors file'):
        value_function.load(folder)
    shard.unlink()
    with pytest.raises(CheckpointError, match='is missing; want every shard'):
        value_function.load(folder)
    shard.write_bytes(whole)
    with pytest.raises(CheckpointError, match="architecture is 'flow_vla'; want 'value'"):
        value_function.load(folder / 'policy')
    export(folder / 'policy', tiny.make_model(seed=1), 'float32')
    with pytest.raises(CheckpointError, match='holds the weights .* whose view'):
        value_function.load(folder)
    shutil.rmtree(folder / 'policy')
    with pytest.raises(CheckpointError, match='config.json is missing'):
        value_function.load(folder)


def test_nothing_stands_there_that_is_not_whole(
    made: tuple[Path, ValueFunction], tmp_path: Path
) -> None:
    """A writer that fails leaves what stood there; what it had begun is gone the next time."""
    path, before = made
    target, policy = tmp_path / 'value', made[0] / 'policy'
    with pytest.raises(CheckpointError):  # no such policy: it fails in the midst
        value_function.save(target, before.network, tmp_path / 'none', before.fitted)
    assert not target.exists()
    value_function.save(target, before.network, policy, before.fitted)
    value_function.save(target, before.network, policy, before.fitted)
    assert [each.name for each in tmp_path.iterdir()] == ['value']
    assert torch.equal(value_function.load(target)(*looks()), before(*looks()))
