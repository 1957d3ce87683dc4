"""Write openpi's checkpoint folders and actions that `test_vla_openpi.py` compares with.

Run where transformers 4.53.2 is installed with openpi's replacements copied over it (openpi's
README says how), beside a checkout of Physical-Intelligence/openpi; the test suite needs neither:

    python tests/policies_vla/make_openpi_fixtures.py OPENPI tests/policies_vla/fixtures

openpi's own PyTorch model is built at tiny sizes with random weights, saved as its converter saves
it, and run in float32 on two observations with a given noise. What surrounds the model is openpi's
too: its resizing is called, its transforms (`transforms.py`, in jax) are written out here.
"""

from __future__ import annotations

import copy
import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch
from make_vla_fixtures import (
    ACTION,
    CAMERAS,
    HEIGHT,
    HORIZON,
    STATE,
    TEXTS,
    WIDTH,
    randomise,
    tiny_configs,
    tiny_stack,
)
from safetensors.torch import save_file, save_model
from tokenizers import Tokenizer, models, normalizers, processors, trainers

SIDE, STEPS, PADDED = 12, 4, 32
EPS = 1e-6
RELATIVE = {'pi0': [0, 1, 2], 'pi05': []}
SLOTS = ('base_0_rgb', 'left_wrist_0_rgb', 'right_wrist_0_rgb')


def from_openpi(source: Path) -> tuple[Any, Any]:
    """Return openpi's model class and its resizing; what would load jax stands in."""
    sys.path[:0] = [str(source / 'src'), str(source / 'packages' / 'openpi-client' / 'src')]
    import openpi.models
    import openpi.shared

    for package, name in ((openpi.models, 'gemma'), (openpi.shared, 'image_tools')):
        module: Any = types.ModuleType(f'{package.__name__}.{name}')
        module.get_config = tiny_stack
        sys.modules[module.__name__] = module
        setattr(package, name, module)
    from openpi.models_pytorch import gemma_pytorch, pi0_pytorch, preprocessing_pytorch
    from openpi_client import image_tools

    real = gemma_pytorch.PaliGemmaForConditionalGeneration

    def built(config: Any) -> Any:
        for one in (config.text_config, config.vision_config):
            one.__class__ = type(one).__mro__[1]  # what transformers knows, sizes now settled
        return real(config=config)

    gemma_pytorch.PaliGemmaForConditionalGeneration = built
    gemma_pytorch.CONFIG_MAPPING = tiny_configs()
    defaults = preprocessing_pytorch.preprocess_observation_pytorch.__kwdefaults__
    defaults['image_resolution'] = (SIDE, SIDE)
    return pi0_pytorch.PI0Pytorch, image_tools.resize_with_pad


def tokenizer(folder: Path) -> Tokenizer:
    """Train a little tokenizer, a newline a token of its own as in Gemma's; save it."""
    inner = Tokenizer(models.BPE(unk_token='<unk>', byte_fallback=False))
    inner.normalizer = normalizers.Replace(' ', '\u2581')
    trainer = trainers.BpeTrainer(
        vocab_size=220, special_tokens=['<pad>', '<bos>', '<unk>', '\n'], show_progress=False,
        initial_alphabet=[chr(i) for i in range(32, 127)],
    )  # fmt: skip
    inner.train_from_iterator([*TEXTS, 'Task: , State: 127 3;', 'Action: '], trainer)
    inner.post_processor = processors.TemplateProcessing(
        single='<bos> $A', special_tokens=[('<bos>', 1)]
    )
    inner.save(str(folder / 'tokenizer.json'))
    return inner


def statistics(generator: torch.Generator) -> dict[str, dict[str, np.ndarray]]:
    """Statistics as `compute_norm_stats.py` makes them; one action never moved."""
    stats = {}
    for name, size in (('state', STATE), ('actions', ACTION)):
        mean = torch.randn(size, generator=generator, dtype=torch.float64).numpy()
        std = torch.rand(size, generator=generator, dtype=torch.float64).numpy() + 0.3
        if name == 'actions':
            std[-1] = 0.0
        stats[name] = {'mean': mean, 'std': std, 'q01': mean - 2 * std, 'q99': mean + 2.2 * std}
    return stats


def write(folder: Path, model: Any, family: str, stats: dict[str, dict[str, np.ndarray]]) -> None:
    """Write a folder as the converter does, and what its owner adds."""
    save_model(copy.deepcopy(model).to(torch.bfloat16), str(folder / 'model.safetensors'))
    config = {
        'action_dim': PADDED, 'action_horizon': HORIZON, 'paligemma_variant': 'gemma_2b',
        'action_expert_variant': 'gemma_300m', 'precision': 'bfloat16',
    }  # fmt: skip
    (folder / 'config.json').write_text(json.dumps(config, indent=2))
    assets = folder / 'assets' / 'lab' / 'arm'
    assets.mkdir(parents=True)
    plain = {kind: {k: v.tolist() for k, v in one.items()} for kind, one in stats.items()}
    (assets / 'norm_stats.json').write_text(json.dumps({'norm_stats': plain}, indent=2))
    robot = {
        'cameras': {
            name: {'slot': slot, 'hw': [HEIGHT, WIDTH]}
            for name, slot in zip(CAMERAS, SLOTS, strict=False)
        },
        'relative': RELATIVE[family], 'steps': STEPS,
    }  # fmt: skip
    (folder / 'robot.json').write_text(json.dumps(robot, indent=2) + '\n')


def scaled(x: np.ndarray, one: dict[str, np.ndarray], quantiles: bool) -> np.ndarray:
    """Openpi's Normalize."""
    if quantiles:
        return (x - one['q01']) / (one['q99'] - one['q01'] + EPS) * 2.0 - 1.0
    return (x - one['mean']) / (one['std'] + EPS)


def restored(x: np.ndarray, one: dict[str, np.ndarray], quantiles: bool) -> np.ndarray:
    """Openpi's Unnormalize."""
    if quantiles:
        return (x + 1.0) / 2.0 * (one['q99'] - one['q01'] + EPS) + one['q01']
    return x * (one['std'] + EPS) + one['mean']


def tokens(words: Tokenizer, task: str, state: np.ndarray | None) -> list[int]:
    """Openpi's PaligemmaTokenizer, without its padding."""
    cleaned = task.strip().replace('_', ' ').replace('\n', ' ')
    if state is None:
        return [*words.encode(cleaned).ids, *words.encode('\n', add_special_tokens=False).ids]
    numbers = np.digitize(state, bins=np.linspace(-1, 1, 256 + 1)[:-1]) - 1
    text = ' '.join(map(str, numbers))
    return list(words.encode(f'Task: {cleaned}, State: {text};\nAction: ').ids)


def main(source: Path, target: Path) -> None:
    """Write both families below `target`."""
    kind, resize = from_openpi(source)
    for family in ('pi0', 'pi05'):
        pi05 = family == 'pi05'
        generator = torch.Generator().manual_seed(sum(map(ord, family)) + 1)
        folder = target / f'openpi_{family}'
        for old in sorted(folder.rglob('*'), reverse=True):
            old.rmdir() if old.is_dir() else old.unlink()
        folder.mkdir(parents=True, exist_ok=True)
        words = tokenizer(folder)
        config = types.SimpleNamespace(
            pi05=pi05, paligemma_variant='gemma_2b', action_expert_variant='gemma_300m',
            dtype='float32', action_dim=PADDED, action_horizon=HORIZON, pytorch_compile_mode=None,
        )  # fmt: skip
        model = kind(config).eval()
        torch.set_float32_matmul_precision('highest')  # openpi's class has lowered it
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if 'gemma' in name and 'norm' in name and 'vision' not in name:
                    weight.zero_()  # as trained ones are near: Gemma's norms add one
        randomise(model, generator)
        stats = statistics(generator)
        write(folder, model, family, stats)
        arrays: dict[str, torch.Tensor] = {}
        tasks = []
        for index in range(2):
            images = {
                name: torch.randint(
                    0, 256, (HEIGHT, WIDTH, 3), dtype=torch.uint8, generator=generator
                )
                for name in CAMERAS
            }
            state = torch.randn(STATE, generator=generator).numpy()
            noise = torch.randn(HORIZON, PADDED, generator=generator)
            task = TEXTS[1 + index].strip().replace(' ', '_' if index else ' ')
            seen = scaled(state, stats['state'], pi05)
            ids = tokens(words, task, seen if pi05 else None)
            room = 200 if pi05 else 48
            fitted = {
                slot: torch.from_numpy(resize(images[name].numpy(), SIDE, SIDE).copy())
                for name, slot in zip(CAMERAS, SLOTS, strict=False)
            }
            fitted[SLOTS[2]] = torch.zeros_like(fitted[SLOTS[0]])
            observation = types.SimpleNamespace(
                images={
                    slot: image.float().permute(2, 0, 1)[None] / 255.0 * 2.0 - 1.0
                    for slot, image in fitted.items()
                },
                image_masks={slot: torch.tensor([slot != SLOTS[2]]) for slot in SLOTS},
                state=torch.from_numpy(np.pad(seen, (0, PADDED - STATE))).float()[None],
                tokenized_prompt=torch.tensor([ids + [0] * (room - len(ids))]),
                tokenized_prompt_mask=torch.tensor([[i < len(ids) for i in range(room)]]),
                token_ar_mask=None, token_loss_mask=None,
            )  # fmt: skip
            with torch.no_grad():
                chunk = model.sample_actions(
                    torch.device('cpu'), observation, noise[None], num_steps=STEPS
                )[0]
            actions = restored(chunk[:, :ACTION].double().numpy(), stats['actions'], pi05)
            actions[:, RELATIVE[family]] += state[RELATIVE[family]]
            arrays[f'{index}/noise'], arrays[f'{index}/state'] = noise, torch.from_numpy(state)
            arrays[f'{index}/chunk'] = chunk.contiguous()
            arrays[f'{index}/actions'] = torch.from_numpy(actions).float()
            arrays.update({f'{index}/{name}': image for name, image in images.items()})
            tasks.append(task)
        save_file(arrays, folder / 'expected.safetensors', {'tasks': json.dumps(tasks)})
        for path in folder.rglob('*.*'):
            path.chmod(0o644)
        total = sum(path.stat().st_size for path in folder.rglob('*.*'))
        spread = float((arrays['0/actions'] - arrays['1/actions']).abs().mean())
        print(f'{family}: {total / 1024:.0f} KiB, actions differ by {spread:.3f} on average')


if __name__ == '__main__':
    main(Path(sys.argv[1]), Path(sys.argv[2]))
