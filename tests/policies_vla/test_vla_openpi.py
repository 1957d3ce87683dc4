"""Folders of openpi's PyTorch code act as they do in openpi, or are refused in one line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from vla_cases import FIXTURES, OPENPI, copied, edit_json, edit_tensors, load, with_noise

from flashrt_policies import registry
from flashrt_policies.check import check_policy
from flashrt_policies.checkpoint import CheckpointError
from flashrt_policies.vla import robot_file
from flashrt_policies.vla.preprocess import clean_prompt
from flashrt_policies.vla.resample import resample

STATS = 'assets/lab/arm/norm_stats.json'


def chunk(folder: Path | str, index: int = 0, noise: torch.Tensor | None = None) -> np.ndarray:
    """Return the actions for a recorded observation and noise."""
    bench = load(folder)
    with_noise(bench, bench.arrays[f'{index}/noise'] if noise is None else noise)
    bench.say(bench.tasks[index])
    bench.see(index)
    found: np.ndarray = bench.policy.plan()
    return found


@pytest.mark.parametrize('index', [0, 1])
@pytest.mark.parametrize('name', OPENPI)
def test_actions_are_those_of_openpi(name: str, index: int) -> None:
    """Resizing, prompt, normalisation, network, restored and absolute actions: within 1e-5."""
    want = load(name).arrays[f'{index}/actions'].numpy()
    np.testing.assert_allclose(chunk(name, index), want, rtol=0, atol=1e-5)


@pytest.mark.parametrize('family', ['pi0', 'pi05'])
def test_the_same_weights_in_lerobots_layout_act_the_same(family: str, tmp_path: Path) -> None:
    """One network, one set of statistics, two layouts: the layout adds nothing of its own."""
    theirs, ours = copied(f'openpi_{family}', tmp_path), copied(family, tmp_path)
    robot = json.loads((theirs / 'robot.json').read_text('utf-8'))
    for entry in robot['cameras'].values():
        entry['hw'] = [12, 12]  # nothing to resize: the two sides resize differently
    edit_json(theirs / 'robot.json', cameras=robot['cameras'], relative=[])
    tensors = load_file(theirs / 'model.safetensors')
    named = {f'model.{name}': tensor for name, tensor in tensors.items()}
    save_file(named, ours / 'model.safetensors')
    (ours / 'tokenizer.json').write_bytes((theirs / 'tokenizer.json').read_bytes())
    config = json.loads((ours / 'config.json').read_text('utf-8'))
    for feature in config['input_features'].values():
        if feature['type'] == 'VISUAL':
            feature['shape'] = [3, 12, 12]
    edit_json(ours / 'config.json', **config)
    stats = json.loads((theirs / STATS).read_text('utf-8'))['norm_stats']
    stats['actions']['std'][-1] = 1.0  # openpi alone adds to a spread of nothing what counts
    edit_json(theirs / STATS, norm_stats=stats)
    given = {
        f'{key}__{name}': torch.tensor(value)
        for key, kind in (('observation__state', 'state'), ('action', 'actions'))
        for name, value in stats[kind].items()
    }
    for file in ours.glob('policy_*.safetensors'):
        edit_tensors(file, **given)
    generator = torch.Generator().manual_seed(3)
    shape = (12, 12, 3)
    images = {
        name: torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator).numpy()
        for name in ('front', 'wrist')
    }
    state = torch.rand(7, generator=generator).numpy()
    found = []
    for folder in (theirs, ours):
        bench = load(folder)
        with_noise(bench, torch.randn(10, 32, generator=generator.manual_seed(4)))
        bench.say('push the red button')
        bench.policy.observe(images, state)
        found.append(bench.policy.plan())
    np.testing.assert_allclose(found[0], found[1], rtol=0, atol=5e-5)


def test_offsets_follow_the_state(tmp_path: Path) -> None:
    """Actions that are offsets move with the state they were seen from, the others do not."""
    folder = copied('openpi_pi0', tmp_path)
    offset = chunk(folder)
    edit_json(folder / 'robot.json', relative=[])
    plain = chunk(folder)
    state = load(folder).arrays['0/state'].numpy()
    np.testing.assert_allclose(
        offset[:, :3] - plain[:, :3], state[:3][None].repeat(10, 0), atol=1e-5
    )
    np.testing.assert_array_equal(offset[:, 3:], plain[:, 3:])


def test_a_guided_chunk_goes_on_where_the_robot_was_going() -> None:
    """The state moves between two chunks of offsets; what is frozen is the same action still."""
    bench = load('openpi_pi0')
    bench.say(bench.tasks[0])
    images, state = bench.images(0), bench.arrays['0/state'].numpy()
    bench.policy.observe(images, state)
    before = bench.policy.plan()
    bench.policy.observe(images, state + np.float32(0.5))
    bench.policy.pace(3, 4)
    held = bench.policy.plan()
    gap = np.abs(held[:4, :3] - before[3:7, :3]).mean()
    shifted = np.abs(held[:4, :3] - 0.5 - before[3:7, :3]).mean()
    assert gap < 0.5 * shifted, (gap, shifted)


@pytest.mark.parametrize('name', OPENPI)
def test_they_pass_the_published_checks(name: str) -> None:
    """Closure, reset, NaN, graph: also with an anchor, which is the closure's."""
    check_policy(lambda ctx, port: registry.load(FIXTURES / name, ctx, port), 256)


def test_a_closure_without_the_anchor_is_refused() -> None:
    """The planted fault: what offsets are added to is in no capsule."""
    from flashrt_policies.check import PolicyFault

    def forgetful(ctx: Any, port: Any) -> Any:
        policy: Any = registry.load(FIXTURES / 'openpi_pi0', ctx, port)
        plain = policy.close_over

        def close_over(closure: Any) -> None:
            kept, policy.anchors = policy.anchors, ()
            plain(closure)
            policy.anchors = kept

        policy.close_over = close_over
        return policy

    with pytest.raises(PolicyFault, match='closure: after a restore'):
        check_policy(forgetful, 256)


def test_a_trained_folder_has_no_config_and_says_its_horizon(tmp_path: Path) -> None:
    """Openpi's training writes no config.json; its pickles are not opened."""
    folder = copied('openpi_pi05', tmp_path)
    want = chunk(folder)
    (folder / 'config.json').unlink()
    (folder / 'metadata.pt').write_bytes(b'not to be read')
    with pytest.raises(CheckpointError, match='robot.json: horizon is None; want a positive'):
        registry.spec(folder)
    edit_json(folder / 'robot.json', horizon=10)
    np.testing.assert_array_equal(chunk(folder), want)


def test_the_state_may_be_left_out_of_the_prompt(tmp_path: Path) -> None:
    """π0.5 trained without a discrete state reads the task alone."""
    folder = copied('openpi_pi05', tmp_path)
    edit_json(folder / 'robot.json', state_in_prompt=False)
    bench = load(folder)
    bench.say('open_the drawer')
    bench.see(0)
    bench.policy.plan()
    assert (
        bench.policy._prompt
        == 'open the drawer\n'
        == clean_prompt(' open_the\ndrawer', np.zeros(1))
    )


ROBOT: list[tuple[dict[str, Any], str]] = [
    ({'cameras': {}}, 'cameras is {}; want one or more'),
    ({'cameras': {'front': 'base_0_rgb'}}, "camera 'front' is 'base_0_rgb'; want a slot and hw"),
    (
        {'cameras': {'front': {'slot': 'top', 'hw': [4, 4]}}},
        "slot 'top'; want one of base_0_rgb, left_wrist_0_rgb, right_wrist_0_rgb, each once",
    ),
    (
        {'cameras': {'front': {'slot': 'base_0_rgb', 'hw': [0, 4]}}},
        r'hw \[0, 4\]; want \[height, width\]',
    ),
    ({'relative': None}, 'relative is None; want the indices below 6'),
    ({'relative': [6]}, r'relative is \[6\]; want the indices below 6'),
    ({'horizon': 11}, 'action_horizon is 10; want 11, as the robot.json says'),
    ({'asset': 'other'}, "asset is 'other'; want one of lab/arm"),
    ({'steps': 0}, 'steps is 0; want a positive number'),
    ({'state_dim': 40}, 'state_dim is 40; want at most 32'),
    ({'action_dim': 9}, r'actions.mean has 6 numbers; want 9 or more'),
    ({'state_in_prompt': True}, 'state_in_prompt is true; want false'),
    ({'state_in_prompt': 1}, 'state_in_prompt is 1; want true or false'),
    ({'camera': 'front'}, "key 'camera' is not known; want some of action_dim"),
]


@pytest.mark.parametrize(('values', 'message'), ROBOT)
def test_what_robot_json_says_is_checked(
    values: dict[str, Any], message: str, tmp_path: Path
) -> None:
    """Each key is what the documentation says, or the error says what it should be."""
    folder = copied('openpi_pi0', tmp_path)
    edit_json(folder / 'robot.json', **values)
    with pytest.raises(CheckpointError, match=message):
        registry.spec(folder)


def test_a_folder_without_robot_json_says_what_to_write(tmp_path: Path) -> None:
    """What the folder does not say is asked for in one error, with an example that works."""
    folder = copied('openpi_pi0', tmp_path)
    (folder / 'robot.json').unlink()
    with pytest.raises(CheckpointError, match='robot.json is missing.*write it: ') as caught:
        registry.spec(folder)
    example = json.loads(str(caught.value).split('write it: ')[1].rsplit(' (docs', 1)[0])
    example['horizon'] = 10
    (folder / 'robot.json').write_text(json.dumps(example), 'utf-8')
    assert registry.spec(folder).cameras == ('front',)


def test_the_documentation_says_every_key_and_its_example_works(tmp_path: Path) -> None:
    """What the page prints as robot.json is one, for a robot of that many joints."""
    page = (Path(__file__).parents[2] / 'docs' / 'vla-policies.md').read_text('utf-8')
    table = page.split('| if it is not there |')[1]
    assert all(f'`{key}`' in table for key in robot_file.KEYS)
    folder = copied('openpi_pi0', tmp_path)
    example = json.loads(page.split('```json\n')[1].split('```')[0])
    (folder / 'robot.json').write_text(json.dumps({**example, 'horizon': 10}), 'utf-8')
    spec = registry.spec(folder)
    assert spec.cameras == ('front', 'wrist') and spec.hw('wrist') == (480, 640)


def spoilt(kind: str, name: str, value: Any) -> Any:
    """Return a change of the statistics."""

    def change(stats: dict[str, Any]) -> None:
        if name:
            stats[kind][name] = value
        else:
            del stats[kind]

    return change


STATISTICS: list[tuple[Any, str]] = [
    (spoilt('actions', '', 0), 'statistic actions.q01 is None; want a list of numbers'),
    (spoilt('state', 'q99', None), 'statistic state.q99 is None; want a list of numbers'),
    (spoilt('actions', 'q01', [0.0] * 5 + [None]), 'actions.q01 holds something else than numb'),
    (spoilt('state', 'q01', [float('inf')] * 7), 'state.q01 holds NaN or infinity'),
    (spoilt('state', 'q99', [float('nan')] * 7), 'state.q99 holds NaN or infinity'),
    (spoilt('state', 'q99', [1.0] * 6), 'state.q99 has 6 numbers; want 7 or more'),
    (spoilt('actions', 'q99', [-99.0] * 6), 'actions.q99 is below q01 at 0; want a spread'),
]


@pytest.mark.parametrize(('change', 'message'), STATISTICS)
def test_statistics_are_found_or_refused(change: Any, message: str, tmp_path: Path) -> None:
    """Missing, null, infinite, NaN, too short, turned round: never skipped."""
    folder = copied('openpi_pi05', tmp_path)
    stats = json.loads((folder / STATS).read_text('utf-8'))
    change(stats['norm_stats'])
    (folder / STATS).write_text(json.dumps(stats), 'utf-8')
    with pytest.raises(CheckpointError, match=message):
        registry.spec(folder)


def test_statistics_are_looked_for_and_chosen(tmp_path: Path) -> None:
    """None: the error says where openpi leaves them; two robots': the owner says which."""
    folder = copied('openpi_pi0', tmp_path)
    other = folder / 'assets' / 'droid'
    other.mkdir()
    stats = json.loads((folder / STATS).read_text('utf-8'))
    stats['norm_stats']['actions']['mean'][0] += 100
    (other / 'norm_stats.json').write_text(json.dumps(stats), 'utf-8')
    with pytest.raises(CheckpointError, match='asset is None; want one of droid, lab/arm'):
        registry.spec(folder)
    edit_json(folder / 'robot.json', asset='droid')
    assert registry.spec(folder).action_low[0] > 50
    for file in folder.glob('assets/**/norm_stats.json'):
        file.unlink()
    with pytest.raises(CheckpointError, match='holds no norm_stats.json; want the assets folder'):
        registry.spec(folder)


def test_statistics_padded_to_the_network_need_the_robots_length(tmp_path: Path) -> None:
    """Statistics of the base models have 32 numbers: how many a robot has is asked for."""
    folder = copied('openpi_pi0', tmp_path)
    want = chunk(folder)
    stats = json.loads((folder / STATS).read_text('utf-8'))['norm_stats']
    for kind in ('state', 'actions'):
        for name, value in stats[kind].items():
            stats[kind][name] = value + [0.0] * (32 - len(value))
    edit_json(folder / STATS, norm_stats=stats)
    with pytest.raises(CheckpointError, match='state_dim is not there, and .* 32 numbers for st'):
        registry.spec(folder)
    edit_json(folder / 'robot.json', state_dim=7, action_dim=6)
    np.testing.assert_array_equal(chunk(folder), want)


@pytest.mark.parametrize(
    ('values', 'message'),
    [
        ({'action_expert_variant': 'gemma_300m_lora'}, 'LoRA weights openpi does not convert'),
        ({'action_dim': 7}, 'action_dim is 7; want 32, as the weights have'),
    ],
)
def test_a_config_that_does_not_fit_is_refused(
    values: dict[str, Any], message: str, tmp_path: Path
) -> None:
    """Openpi's converter drops LoRA weights without a word; sizes must be those of the file."""
    folder = copied('openpi_pi0', tmp_path)
    edit_json(folder / 'config.json', **values)
    with pytest.raises(CheckpointError, match=message):
        registry.spec(folder)


def test_another_network_is_refused(tmp_path: Path) -> None:
    """A safetensors file that is neither π0 nor π0.5, and a file that is none."""
    folder = copied('openpi_pi0', tmp_path)
    edit_tensors(folder / 'model.safetensors', action_in_proj__weight=None)
    with pytest.raises(CheckpointError, match='action_in_proj.weight is missing; want π0 or π0.5'):
        registry.spec(folder)
    (folder / 'model.safetensors').write_bytes(b'short')
    with pytest.raises(CheckpointError, match='cannot be read .*; want a whole safetensors file'):
        registry.spec(folder)


@pytest.mark.parametrize(
    ('height', 'width', 'out'), [(20, 26, (9, 12)), (30, 40, (168, 224)), (101, 67, (37, 25))]
)
def test_images_change_size_as_in_pillow(height: int, width: int, out: tuple[int, int]) -> None:
    """Level by level, smaller and larger, at ratios with and without ties."""
    generator = torch.Generator().manual_seed(height)
    image = torch.randint(0, 256, (height, width, 3), dtype=torch.uint8, generator=generator)
    want = Image.fromarray(image.numpy()).resize(out[::-1], Image.Resampling.BILINEAR)
    found = resample(image.permute(2, 0, 1), *out).permute(1, 2, 0)
    np.testing.assert_array_equal(found.numpy(), np.asarray(want))
    rows_first = resample(image.permute(2, 0, 1).mT, *out[::-1]).mT.permute(1, 2, 0)
    if height < out[0] or (height, width) == (101, 67):
        assert not np.array_equal(rows_first.numpy(), np.asarray(want)), 'the order is nothing'


def test_a_spec_needs_no_torch() -> None:
    """What an openpi folder sees and does is known in a process that never loads torch."""
    code = (
        'import sys; from flashrt_policies import registry; '
        f'spec = registry.spec({str(FIXTURES / "openpi_pi0")!r}); '
        "assert 'torch' not in sys.modules; print(spec.cameras, spec.horizon, spec.action_dim)"
    )
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert done.stdout.split() == ["('front',", "'wrist')", '10', '6'], done.stderr
