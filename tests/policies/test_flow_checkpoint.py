"""Promise: a checkpoint is read exactly, or refused in one line that names the tensor."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import flow_tiny as tiny
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from flashrt_policies import checkpoint, registry
from flashrt_policies.checkpoint import CheckpointError
from flashrt_policies.flow_vla.policy import export, load_model, model_digest
from flashrt_ros.contract.context import Context

Tensors = dict[str, torch.Tensor]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return an exported checkpoint."""
    export(tmp_path / 'checkpoint', tiny.make_model(), 'float32')
    return tmp_path / 'checkpoint'


def read(folder: Path) -> str:
    """Load through the registry; return the digest of the weights."""
    ctx = Context('cpu')
    return registry.load(folder, ctx, tiny.make_port(ctx)).fingerprint()['weights']


def change(folder: Path, edit: Callable[[Tensors], None]) -> None:
    """Rewrite the first shard after `edit`."""
    path = folder / json.loads((folder / 'config.json').read_text())['shards'][0]
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path)


def configure(folder: Path, **values: object) -> None:
    """Rewrite keys of config.json."""
    path = folder / 'config.json'
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_what_was_exported_acts_after_loading(folder: Path) -> None:
    """The registry returns the same network: same digest, same chunk, same spec."""
    assert registry.spec(folder) == tiny.SPEC
    assert read(folder) == model_digest(tiny.make_model())
    ctx = Context('cpu')
    loaded = registry.load(folder, ctx, tiny.make_port(ctx))
    original, _, _ = tiny.make_policy()
    for policy in (loaded, original):
        policy.reset(1)
        policy.observe(*tiny.observation())
    assert np.array_equal(loaded.plan(), original.plan())


def test_half_precision_weights_round_once(tmp_path: Path) -> None:
    """Weights stored as float16 load into float32; statistics keep all their bits."""
    model = tiny.make_model()
    export(tmp_path, model, 'float16')
    loaded, _ = load_model(tmp_path, checkpoint.read_config(tmp_path), tiny.SPEC)
    for name, tensor in model.state_dict().items():
        want = tensor if name.endswith(('_mean', '_std')) else tensor.half().float()
        assert torch.equal(loaded.state_dict()[name], want), name


def test_loading_draws_nothing_from_the_callers_generator(folder: Path) -> None:
    """The global generator of torch is where it was."""
    before = torch.get_rng_state()
    read(folder)
    assert torch.equal(before, torch.get_rng_state())


def test_shards_stay_small_and_their_cut_does_not_change_the_digest(tmp_path: Path) -> None:
    """Many small files or one: the same digest."""
    model = tiny.make_model()
    digests = []
    for size in (2**20, 20_000):
        checkpoint.save(
            tmp_path, model.state_dict(), architecture='flow_vla', dtype='float32',
            model=checkpoint_sizes(tmp_path), spec=checkpoint_spec(tmp_path), shard_bytes=size,
        )  # fmt: skip
        files = list(tmp_path.glob('*.safetensors'))
        assert all(file.stat().st_size < size + 10_000 for file in files)
        digests.append(read(tmp_path))
    assert len(files) > 1
    assert digests[0] == digests[1]


def checkpoint_sizes(folder: Path) -> dict[str, object]:
    """Return the model section an export writes."""
    export(folder / 'other', tiny.make_model())
    return dict(checkpoint.read_config(folder / 'other')['model'])


def checkpoint_spec(folder: Path) -> dict[str, object]:
    """Return the spec section an export writes."""
    return dict(checkpoint.read_config(folder / 'other')['spec'])


def _missing(tensors: Tensors) -> None:
    del tensors['expert.leave.bias']


def _extra(tensors: Tensors) -> None:
    tensors['expert.more'] = torch.zeros(2)


def _shape(tensors: Tensors) -> None:
    tensors['expert.leave.bias'] = torch.zeros(3)


def _type(tensors: Tensors) -> None:
    tensors['expert.leave.bias'] = tensors['expert.leave.bias'].half()


def _nan(tensors: Tensors) -> None:
    tensors['expert.leave.bias'][0] = float('nan')


def _no_statistics(tensors: Tensors) -> None:
    del tensors['action_std']


def _infinite_statistics(tensors: Tensors) -> None:
    tensors['action_mean'][1] = float('inf')


def _zero_spread(tensors: Tensors) -> None:
    tensors['proprio_std'][0] = 0.0


FAULTS: list[tuple[Callable[[Tensors], None], str, str]] = [
    (_missing, 'expert.leave.bias', 'is missing'),
    (_extra, 'expert.more', 'unknown'),
    (_shape, 'expert.leave.bias', 'has shape [3]; want [2]'),
    (_type, 'expert.leave.bias', 'is torch.float16; want torch.float32'),
    (_nan, 'expert.leave.bias', 'holds NaN or infinity'),
    (_no_statistics, 'action_std', 'is missing'),
    (_infinite_statistics, 'action_mean', 'holds NaN or infinity'),
    (_zero_spread, 'proprio_std', 'want positive'),
]


@pytest.mark.parametrize(('edit', 'tensor', 'reason'), FAULTS)
def test_tensors_that_do_not_fit_are_refused(
    folder: Path, edit: Callable[[Tensors], None], tensor: str, reason: str
) -> None:
    """Each planted fault is refused in one line with the tensor's name and the right thing."""
    read(folder)  # whole before the fault
    change(folder, edit)
    with pytest.raises(CheckpointError) as caught:
        read(folder)
    message = str(caught.value)
    assert tensor in message
    assert reason in message
    assert 'want' in message
    assert '\n' not in message


CONFIGS: list[tuple[dict[str, object], str]] = [
    ({'architecture': 'os.system'}, "architecture 'os.system' is not known; want one of flow_vla"),
    ({'format': 9}, 'format is 9; want 1'),
    ({'dtype': 'int8'}, 'dtype'),
    ({'shards': ['../evil.safetensors']}, 'plain'),
    ({'shards': ['gone.safetensors']}, 'gone.safetensors is missing'),
    ({'shards': []}, 'want a list'),
    ({'model': {'width': 16, 'depth': 3}}, 'model.depth is unknown'),
    ({'model': {'width': -1}}, 'model.width is -1'),
    ({'spec': {}}, 'spec is wrong'),
]


@pytest.mark.parametrize(('values', 'reason'), CONFIGS)
def test_configs_that_do_not_fit_are_refused(
    folder: Path, values: dict[str, object], reason: str
) -> None:
    """Another architecture, a path that leaves the folder, unknown sizes: one line each."""
    configure(folder, **values)
    with pytest.raises(CheckpointError) as caught:
        read(folder)
    assert reason in str(caught.value)
    assert '\n' not in str(caught.value)


def test_damaged_files_are_refused(folder: Path) -> None:
    """A cut shard, a config that is no JSON, a folder that is not there."""
    shard = next(folder.glob('*.safetensors'))
    shard.write_bytes(shard.read_bytes()[:-40])
    with pytest.raises(CheckpointError, match='cannot be read'):
        read(folder)
    (folder / 'config.json').write_text('{')
    with pytest.raises(CheckpointError, match='not JSON'):
        read(folder)
    with pytest.raises(CheckpointError, match='one of drawer'):
        read(folder / 'nowhere')


def test_the_spec_needs_no_torch(folder: Path) -> None:
    """Reading a spec loads no torch, so that light processes can know a policy."""
    code = (
        'import sys; from flashrt_policies import registry; '
        f'print(registry.spec({str(folder)!r}).skills); assert "torch" not in sys.modules'
    )
    done = subprocess.run(
        [sys.executable, '-c', code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert 'open' in done.stdout
