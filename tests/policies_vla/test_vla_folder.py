"""A folder is loaded as it is, or refused in one line that names what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from vla_cases import copied, edit_json, edit_tensors, expected, load, with_noise

from flashrt_policies import registry
from flashrt_policies.checkpoint import CheckpointError
from flashrt_policies.vla.preprocess import fit_images, state_prompt

PRE = 'policy_preprocessor_step_5_normalizer_processor.safetensors'
POST = 'policy_postprocessor_step_0_unnormalizer_processor.safetensors'


def steps(folder: Path, name: str, change: Any) -> None:
    """Change the steps of a processor file by a function."""
    path = folder / f'policy_{name}.json'
    found = json.loads(path.read_text('utf-8'))
    change(found['steps'])
    path.write_text(json.dumps(found), 'utf-8')


def without_statistics(folder: Path, *names: str) -> dict[str, torch.Tensor]:
    """Take statistics out of both processors' files; return what was there."""
    taken = load_file(folder / PRE)
    for file in (PRE, POST):
        edit_tensors(folder / file, **{name.replace('.', '__'): None for name in names})
    return {name: taken[name] for name in names}


NAMES = ('action.mean', 'action.std', 'observation.state.mean', 'observation.state.std')


@pytest.mark.parametrize('name', NAMES)
def test_a_missing_statistic_is_named(name: str, tmp_path: Path) -> None:
    """Normalisation is never skipped: a statistic that is nowhere is an error with its name."""
    folder = copied('smolvla', tmp_path)
    without_statistics(folder, name)
    with pytest.raises(CheckpointError, match=f"statistic '{name}' is missing"):
        registry.spec(folder)


@pytest.mark.parametrize('value', [float('inf'), float('nan')])
def test_an_infinite_statistic_is_refused(value: float, tmp_path: Path) -> None:
    """Statistics that were never set are stored as infinity by old versions."""
    folder = copied('smolvla', tmp_path)
    for file in (PRE, POST):
        edit_tensors(folder / file, action__mean=torch.full((6,), value))
    with pytest.raises(CheckpointError, match='action.mean holds NaN or infinity'):
        registry.spec(folder)


@pytest.mark.parametrize('prefix', ['normalize_inputs.', 'so100.', 'unnormalize_outputs.'])
def test_statistics_under_a_prefix_are_found(prefix: str, tmp_path: Path) -> None:
    """Older folders keep them among the weights, under a module's or a dataset's name."""
    folder = copied('smolvla', tmp_path)
    taken = without_statistics(folder, *NAMES)
    moved = {
        f'{prefix}buffer_{name.rsplit(".", 1)[0].replace(".", "_")}.{name.rsplit(".", 1)[1]}': v
        for name, v in taken.items()
    }
    save_file({**load_file(folder / 'model.safetensors'), **moved}, folder / 'model.safetensors')
    bench = load(folder)
    arrays, tasks = expected(str(folder))
    with_noise(bench, arrays['0/noise'])
    bench.say(tasks[0])
    bench.see(0)
    np.testing.assert_allclose(bench.policy.plan(), arrays['0/actions'].numpy(), atol=1e-5)


def test_two_different_statistics_are_refused(tmp_path: Path) -> None:
    """Which one counts is not guessed."""
    folder = copied('smolvla', tmp_path)
    edit_tensors(folder / POST, action__mean=torch.zeros(6))
    with pytest.raises(CheckpointError, match="'action.mean' stands in .* with different values"):
        registry.spec(folder)


def test_a_statistic_of_another_length_is_refused(tmp_path: Path) -> None:
    """The statistics of another robot do not fit."""
    folder = copied('smolvla', tmp_path)
    for file in (PRE, POST):
        edit_tensors(folder / file, action__std=torch.ones(5))
    with pytest.raises(CheckpointError, match='action.std has 5 numbers; want 6'):
        registry.spec(folder)


@pytest.mark.parametrize(
    ('values', 'message'),
    [
        ({'type': 'act'}, "type 'act' is not known; want one of pi0, pi05, smolvla"),
        ({'adapt_to_pi_aloha': True}, 'adapt_to_pi_aloha is True; want False'),
        ({'add_image_special_tokens': True}, 'add_image_special_tokens is True'),
        ({'chunk_size': 0}, 'chunk_size is 0; want a positive number'),
        ({'input_features': {}}, 'input_features has no image'),
        ({'output_features': {}}, "feature 'action' is None"),
    ],
)  # fmt: skip
def test_what_is_not_done_here_is_refused(
    values: dict[str, Any], message: str, tmp_path: Path
) -> None:
    """An option of the config that would change the actions is never passed over."""
    folder = copied('smolvla', tmp_path)
    edit_json(folder / 'config.json', **values)
    with pytest.raises(CheckpointError, match=message):
        registry.spec(folder)


def test_actions_may_be_offsets_from_the_state(tmp_path: Path) -> None:
    """As lerobot has it: all whose names are not excluded; half a statement is refused."""
    folder = copied('pi05', tmp_path)
    names = ['pan', 'lift', 'elbow', 'Gripper.pos', 'roll', 'wrist']

    def before(found: Any) -> None:
        said = {'enabled': True, 'exclude_joints': ['gripper', ''], 'action_names': names}
        next(s for s in found if 'relative' in s['registry_name'])['config'].update(said)

    def behind(found: Any) -> None:
        next(s for s in found if 'absolute' in s['registry_name'])['config']['enabled'] = True

    arrays, tasks = expected(str(folder))
    steps(folder, 'preprocessor', before)
    edit_json(folder / 'config.json', use_relative_actions=True)
    with pytest.raises(CheckpointError, match='absolute_actions_processor is False, .* all or no'):
        registry.spec(folder)
    steps(folder, 'postprocessor', behind)
    bench = load(folder)
    with_noise(bench, arrays['0/noise'])
    bench.say(tasks[0])
    bench.see(0)
    offset = arrays['0/state'].numpy()[:6] * (np.arange(6) != 3)
    want = arrays['0/actions'].numpy() + offset
    np.testing.assert_allclose(bench.policy.plan(), want, atol=1e-5)


def test_offsets_need_a_state_to_be_added_to(tmp_path: Path) -> None:
    """A state shorter than the actions cannot be what they are offsets from."""
    folder = copied('pi0', tmp_path)
    config = json.loads((folder / 'config.json').read_text('utf-8'))
    config['input_features']['observation.state']['shape'] = [5]
    config['use_relative_actions'] = True
    edit_json(folder / 'config.json', **config)

    def enable(found: Any) -> None:
        step = next(s for s in found if '_actions_processor' in s['registry_name'])
        step['config']['enabled'] = True

    for name in ('preprocessor', 'postprocessor'):
        steps(folder, name, enable)
    with pytest.raises(CheckpointError, match='6 actions are offsets from a state of 5 numbers'):
        registry.spec(folder)


def test_unknown_steps_are_refused(tmp_path: Path) -> None:
    """A processor step that is not done here is named."""
    folder = copied('pi05', tmp_path)
    steps(folder, 'preprocessor', lambda found: found[2].update(registry_name='magic'))
    with pytest.raises(CheckpointError, match="step 'magic' is not known"):
        registry.spec(folder)


def test_cameras_are_renamed_as_the_folder_says(tmp_path: Path) -> None:
    """The robot's name for a camera is the one the preprocessor renames."""
    folder = copied('smolvla', tmp_path)
    names = {'observation.images.top': 'observation.images.front'}
    steps(folder, 'preprocessor', lambda found: found[0]['config'].update(rename_map=names))
    assert registry.spec(folder).cameras == ('top', 'wrist')


def test_cameras_may_differ_in_size_and_empty_ones_are_left_out(tmp_path: Path) -> None:
    """Each camera has its own image; a camera that is never there takes no part."""
    folder = copied('smolvla', tmp_path)
    config = json.loads((folder / 'config.json').read_text('utf-8'))
    config['input_features']['observation.images.wrist']['shape'] = [3, 30, 16]
    config['input_features']['observation.images.empty_camera_0'] = {
        'type': 'VISUAL', 'shape': [3, 480, 640],
    }  # fmt: skip
    edit_json(folder / 'config.json', **config)
    spec = registry.spec(folder)
    assert [spec.hw(name) for name in spec.cameras] == [(20, 26), (30, 16)]


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ({'model__state_proj__weight': None}, "'model.state_proj.weight' is missing"),
        ({'model__extra__weight': torch.ones(2)}, "'model.extra.weight' is unknown"),
        ({'model__action_out_proj__bias': torch.ones(5)}, r'shape \[5\]; want \[32\]'),
        (
            {'model__action_out_proj__bias': torch.full((32,), float('nan'))},
            'holds NaN or infinity',
        ),
        (
            {'model__action_out_proj__bias': torch.ones(32, dtype=torch.int32)},
            'is torch.int32; want one of',
        ),
    ],
)  # fmt: skip
def test_damaged_weights_are_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    """A tensor that is missing, unknown, of another shape or type, or NaN is named."""
    folder = copied('smolvla', tmp_path)
    edit_tensors(folder / 'model.safetensors', **change)
    with pytest.raises(CheckpointError, match=message):
        load(folder)


def test_a_missing_tokenizer_says_where_it_was_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lerobot saves none: the message says which one to copy, and the libraries' store is read."""
    folder = copied('smolvla', tmp_path)
    monkeypatch.setenv('HF_HOME', str(tmp_path / 'home'))
    words = (folder / 'tokenizer.json').read_bytes()
    (folder / 'tokenizer.json').unlink()
    with pytest.raises(CheckpointError, match='SmolVLM2-500M-Video-Instruct into the folder'):
        load(folder)
    name = 'models--HuggingFaceTB--SmolVLM2-500M-Video-Instruct'
    kept = tmp_path / 'home' / 'hub' / name / 'snapshots' / 'abc'
    kept.mkdir(parents=True)
    (kept / 'tokenizer.json').write_bytes(words)
    assert load(folder).policy.spec.horizon == 10


def test_a_tied_embedding_may_be_stored_as_the_head(tmp_path: Path) -> None:
    """π0 folders of some versions have the language model's head and no embedding."""
    folder = copied('pi0', tmp_path)
    tensors = load_file(folder / 'model.safetensors')
    base = 'model.paligemma_with_expert.paligemma.'
    words = tensors.pop(f'{base}model.language_model.embed_tokens.weight')
    tensors[f'{base}lm_head.weight'] = words
    save_file(tensors, folder / 'model.safetensors')
    bench = load(folder)
    with_noise(bench, bench.arrays['0/noise'])
    bench.say(bench.tasks[0])
    bench.see(0)
    want = bench.arrays['0/actions'].numpy()
    np.testing.assert_allclose(bench.policy.plan(), want, atol=1e-5)


def test_a_prompt_states_the_state_in_256_steps() -> None:
    """π0.5's prompt, at the ends and the middle of the range, underscores and newlines gone."""
    text = state_prompt(' open_the\ndrawer ', np.array([-1.0, -0.001, 0.0, 1.0], np.float32))
    assert text == 'Task: open the drawer, State: 0 127 128 255;\nAction: '


def test_padding_stands_where_each_family_has_it() -> None:
    """Openpi pads on both sides, SmolVLA left and above, both with black."""
    image = torch.full((4, 8, 3), 255, dtype=torch.uint8)
    centred = fit_images([image], 8, 8, True)[0, 0]
    assert bool((centred[:2] == -1).all() and (centred[6:] == -1).all())
    assert bool((centred[2:6] == 1).all())
    above = fit_images([image], 8, 8, False)[0, 0]
    assert bool((above[:4] == -1).all() and (above[4:] == 1).all())


def test_layers_cross_as_the_config_says(tmp_path: Path) -> None:
    """Which layers attend to the prefix alone is read, and a file that does not fit is refused."""
    folder = copied('smolvla', tmp_path)
    assert load(folder).policy._parts.network.expert.crossing.tolist() == [1]
    edit_json(folder / 'config.json', attention_mode='self_attn')
    with pytest.raises(CheckpointError, match=r'k_proj.weight. has shape \[64, 64\]; want'):
        load(folder)
