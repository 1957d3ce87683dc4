"""Write the checkpoint folders and actions that `test_vla_parity.py` compares with.

Run where lerobot 0.6.1 and transformers are installed (the test suite needs neither):

    python tests/policies_vla/make_vla_fixtures.py tests/policies_vla/fixtures

Each family is built by lerobot's own classes at tiny sizes with random weights, saved by lerobot's
own `save_pretrained` with both processors, loaded again by lerobot in float32, and run on two
observations with a given noise, with and without real-time chunking. Sizes that lerobot writes
into its code are replaced here: nothing of what is saved says so, and the loader must read them
off the tensors.
"""

from __future__ import annotations

import json
import os
import sys
import types
from pathlib import Path
from typing import Any

os.environ['HF_HUB_OFFLINE'] = '1'
import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

TEXTS = [
    'open the top drawer', 'push the red button and close the lid', 'lift the blue cube\n',
    'pick up the small peg, then put it into the green hole',
]  # fmt: skip
STATE, ACTION, HORIZON = 7, 6, 10
HEIGHT, WIDTH = 20, 26
CAMERAS = ('front', 'wrist')


def tokenizer(folder: Path, bos: bool) -> Any:
    """Train a little tokenizer, save it as `tokenizer.json`; return it as transformers has it."""
    inner = Tokenizer(models.BPE(unk_token='<unk>', byte_fallback=False))
    inner.normalizer = normalizers.Replace(' ', '\u2581')
    if not bos:
        inner.normalizer = None
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ['<pad>', '<bos>', '<unk>']
    letters = [chr(i) for i in range(32, 127)] + ['\n']
    trainer = trainers.BpeTrainer(
        vocab_size=220, special_tokens=special, initial_alphabet=letters if bos else [],
        show_progress=False,
    )  # fmt: skip
    inner.train_from_iterator([*TEXTS, 'Task: , State: 127 3;\nAction: '], trainer)
    if bos:
        inner.post_processor = processors.TemplateProcessing(
            single='<bos> $A', special_tokens=[('<bos>', 1)]
        )
    inner.save(str(folder / 'tokenizer.json'))
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_file=str(folder / 'tokenizer.json'), pad_token='<pad>', unk_token='<unk>'
    )


def features() -> dict[str, Any]:
    """What the policies see and do."""
    from lerobot.configs.types import FeatureType, PolicyFeature

    seen = {
        f'observation.images.{name}': PolicyFeature(FeatureType.VISUAL, (3, HEIGHT, WIDTH))
        for name in CAMERAS
    }
    seen['observation.state'] = PolicyFeature(FeatureType.STATE, (STATE,))
    return {
        'input_features': seen,
        'output_features': {'action': PolicyFeature(FeatureType.ACTION, (ACTION,))},
        'chunk_size': HORIZON, 'n_action_steps': HORIZON, 'device': 'cpu',
    }  # fmt: skip


def statistics(generator: torch.Generator) -> dict[str, dict[str, torch.Tensor]]:
    """Statistics as a dataset has them: all kinds at once."""
    stats = {}
    for name, size in (('observation.state', STATE), ('action', ACTION)):
        mean = torch.randn(size, generator=generator)
        std = torch.rand(size, generator=generator) + 0.3
        stats[name] = {
            'mean': mean, 'std': std, 'min': mean - 3 * std, 'max': mean + 3 * std,
            'q01': mean - 2 * std, 'q99': mean + 2.2 * std,
        }  # fmt: skip
    return stats


def tiny_configs() -> dict[str, Any]:
    """Return makers of small transformers configs that stay small when code sets large sizes."""
    from transformers import GemmaConfig, PaliGemmaConfig

    def paligemma() -> Any:
        return PaliGemmaConfig(
            vision_config={
                'model_type': 'siglip_vision_model', 'hidden_size': 32, 'intermediate_size': 48,
                'patch_size': 6, 'image_size': 12, 'num_hidden_layers': 2,
                'num_attention_heads': 16, 'vision_use_head': False, 'vocab_size': 224,
            },
            text_config={
                'model_type': 'gemma', 'hidden_size': 40, 'num_hidden_layers': 2,
                'intermediate_size': 64, 'num_attention_heads': 8, 'num_key_value_heads': 1,
                'vocab_size': 224, 'is_encoder_decoder': False, 'tie_word_embeddings': True,
            },
        )  # fmt: skip

    class Whole:
        """The same for the nested configs of the language model and the image tower."""

        def __new__(cls) -> Any:
            config = paligemma()
            text, vision = config.text_config, config.vision_config
            plain = type(config).__setattr__
            limits = {
                id(text): {'vocab_size': 224},
                id(vision): {'intermediate_size': 48, 'projection_dim': 40},
            }

            def guarded(self: Any, name: str, value: Any) -> None:
                plain(self, name, limits.get(id(self), {}).get(name, value))

            for one in (text, vision):
                kind = type(one)
                one.__class__ = type(kind.__name__, (kind,), {'__setattr__': guarded})
            return config

    def gemma(**sizes: Any) -> Any:
        return GemmaConfig(**{**sizes, 'vocab_size': 224})

    return {'paligemma': Whole, 'gemma': gemma}


def tiny_stack(variant: str) -> Any:
    """Return the sizes of a stack, by the name of the large one."""
    large = variant == 'gemma_2b'
    return types.SimpleNamespace(
        width=40 if large else 24, depth=2, mlp_dim=64 if large else 48, num_heads=8,
        num_kv_heads=1, head_dim=16,
    )  # fmt: skip


def tiny_pi() -> None:
    """Replace the sizes that lerobot's π0 and π0.5 have in their code."""
    from lerobot.policies.pi0 import modeling_pi0
    from lerobot.policies.pi05 import modeling_pi05

    for module in (modeling_pi0, modeling_pi05):
        module.CONFIG_MAPPING = tiny_configs()
        module.get_gemma_config = tiny_stack


def tiny_smolvla() -> None:
    """Replace the vision-language model that lerobot's SmolVLA downloads."""
    from lerobot.policies.smolvla import smolvlm_with_expert
    from transformers import SmolVLMConfig

    text = {
        'model_type': 'llama', 'hidden_size': 48, 'intermediate_size': 64,
        'num_hidden_layers': 3, 'num_attention_heads': 2, 'num_key_value_heads': 1,
        'head_dim': 64, 'vocab_size': 224, 'max_position_embeddings': 512, 'rms_norm_eps': 1e-5,
        'rope_theta': 1e5, 'pad_token_id': 0,
    }  # fmt: skip
    vision = {
        'hidden_size': 32, 'intermediate_size': 48, 'num_hidden_layers': 2,
        'num_attention_heads': 1, 'image_size': 16, 'patch_size': 4,
    }  # fmt: skip
    config = SmolVLMConfig(
        text_config=text, vision_config=vision, scale_factor=2, image_token_id=223, pad_token_id=0
    )
    marks = types.SimpleNamespace(fake_image_token_id=222, global_image_token_id=221)
    module = smolvlm_with_expert
    module.AutoConfig = types.SimpleNamespace(from_pretrained=lambda *a, **k: config)
    module.AutoProcessor = types.SimpleNamespace(
        from_pretrained=lambda *a, **k: types.SimpleNamespace(tokenizer=marks)
    )
    module.get_intermediate_size = lambda hidden: 2 * hidden


def build(family: str) -> tuple[Any, Any]:
    """Return lerobot's policy with random weights, and its processor factory."""
    common = features()
    if family == 'smolvla':
        tiny_smolvla()
        from lerobot.policies.smolvla.configuration_smolvla import SmolVLAConfig
        from lerobot.policies.smolvla.modeling_smolvla import SmolVLAPolicy
        from lerobot.policies.smolvla.processor_smolvla import make_smolvla_pre_post_processors

        config = SmolVLAConfig(
            **common, num_vlm_layers=2, resize_imgs_with_padding=(16, 16), num_steps=4
        )
        policy = SmolVLAPolicy(config)
        policy.model.vlm_with_expert.vlm.to(torch.bfloat16)
        return policy, make_smolvla_pre_post_processors
    tiny_pi()
    size = {'image_resolution': (12, 12), 'num_inference_steps': 4}
    if family == 'pi0':
        from lerobot.policies.pi0.configuration_pi0 import PI0Config
        from lerobot.policies.pi0.modeling_pi0 import PI0Policy
        from lerobot.policies.pi0.processor_pi0 import make_pi0_pre_post_processors

        return PI0Policy(
            PI0Config(**common, **size, dtype='bfloat16')
        ), make_pi0_pre_post_processors
    from lerobot.policies.pi05.configuration_pi05 import PI05Config
    from lerobot.policies.pi05.modeling_pi05 import PI05Policy
    from lerobot.policies.pi05.processor_pi05 import make_pi05_pre_post_processors

    return PI05Policy(
        PI05Config(**common, **size, dtype='bfloat16')
    ), make_pi05_pre_post_processors


def randomise(policy: Any, generator: torch.Generator) -> None:
    """Draw every weight, the modulations that lerobot zeroes too; two bytes hold each exactly."""
    with torch.no_grad():
        for name, weight in policy.named_parameters():
            if weight.ndim == 1:
                draw = 0.1 * torch.randn(weight.shape, generator=generator)
                draw += float('norm' in name and name.endswith('weight') and bool(weight.max()))
            else:
                fan = weight[0].numel()
                draw = torch.randn(weight.shape, generator=generator) * fan**-0.5
                draw *= 0.5 if 'dense' in name or 'embedding' in name else 1.0
            weight.copy_(draw.bfloat16())


def observation(index: int, generator: torch.Generator) -> dict[str, Any]:
    """One observation as a robot gives it."""
    shape = (HEIGHT, WIDTH, 3)
    images = {
        name: torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
        for name in CAMERAS
    }
    state = torch.randn(STATE, generator=generator)
    return {'images': images, 'state': state, 'task': TEXTS[1 + index]}


def lerobot_actions(
    policy: Any, pre: Any, post: Any, seen: dict[str, Any], noise: torch.Tensor, **guided: Any
) -> torch.Tensor:
    """What lerobot does with an observation, processors included: float32 [H, A]."""
    batch = {
        f'observation.images.{name}': image.permute(2, 0, 1).float() / 255
        for name, image in seen['images'].items()
    }
    batch['observation.state'] = seen['state']
    batch['task'] = seen['task']
    batch = pre(batch)
    chunk = policy.predict_action_chunk(batch, noise=noise[None].clone(), **guided)
    return torch.stack([post(chunk[:, i])[0] for i in range(chunk.shape[1])]), chunk[0]


def main(target: Path) -> None:
    """Write all three families below `target`."""
    import lerobot.policies.factory  # noqa: F401
    from lerobot.configs.types import RTCAttentionSchedule
    from lerobot.policies.rtc.configuration_rtc import RTCConfig
    from lerobot.processor import tokenizer_processor

    for family in ('smolvla', 'pi0', 'pi05'):
        generator = torch.Generator().manual_seed(sum(map(ord, family)))
        folder = target / family
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
        words = tokenizer(folder, bos=family != 'smolvla')
        tokenizer_processor.AutoTokenizer = types.SimpleNamespace(
            from_pretrained=lambda *a, words=words, **k: words
        )
        policy, factory = build(family)
        randomise(policy, generator)
        stats = statistics(generator)
        pre, post = factory(policy.config, stats)
        policy.save_pretrained(folder)
        pre.save_pretrained(folder)
        post.save_pretrained(folder)
        (folder / 'README.md').unlink(missing_ok=True)
        config = policy.config
        if hasattr(config, 'dtype'):
            config.dtype = 'float32'
        policy = type(policy).from_pretrained(folder, config=config)
        arrays: dict[str, torch.Tensor] = {}
        tasks = []
        for index in range(2):
            seen = observation(index, generator)
            noise = torch.randn(HORIZON, policy.config.max_action_dim, generator=generator)
            actions, chunk = lerobot_actions(policy, pre, post, seen, noise)
            arrays[f'{index}/noise'], arrays[f'{index}/actions'] = noise, actions.contiguous()
            arrays[f'{index}/chunk'] = chunk.contiguous()
            arrays[f'{index}/state'] = seen['state']
            for name, image in seen['images'].items():
                arrays[f'{index}/{name}'] = image
            tasks.append(seen['task'])
        # The second observation again, against what the first chunk left three ticks later.
        policy.config.rtc_config = RTCConfig(
            prefix_attention_schedule=RTCAttentionSchedule.EXP, execution_horizon=HORIZON - 3
        )
        policy.init_rtc_processor()
        rest = arrays['0/chunk'][3:]
        guided, _ = lerobot_actions(
            policy, pre, post, seen, noise, inference_delay=2, prev_chunk_left_over=rest,
            execution_horizon=HORIZON - 3,
        )  # fmt: skip
        arrays['guided/actions'] = guided.contiguous()
        save_file(arrays, folder / 'expected.safetensors', {'tasks': json.dumps(tasks)})
        for path in folder.iterdir():
            path.chmod(0o644)
        total = sum(path.stat().st_size for path in folder.iterdir())
        spread = float(np.abs(arrays['0/actions'] - arrays['1/actions']).mean())
        print(f'{family}: {total / 1024:.0f} KiB, actions differ by {spread:.3f} on average')


if __name__ == '__main__':
    main(Path(sys.argv[1]))
