"""lerobot's own π0, π0.5 and SmolVLA on the same device, where lerobot is installed.

Base dimensions, random weights, bfloat16 as lerobot offers it, inputs on the device as its
processors leave them; what is timed is `predict_action_chunk`. `lerobot-compiled` is its own
``compile_model`` with mode reduce-overhead (max-autotune, its default, compiles for over ten
minutes). Each runs in a process of its own::

    python -m flashrt_ros.bench.policy_peers lerobot-eager pi05 2 cuda
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from flashrt_ros.bench.report import Row

PEERS = ('lerobot-eager', 'lerobot-compiled')
SECONDS = {'lerobot-eager': 180.0, 'lerobot-compiled': 600.0}  # for one work
LANGUAGE = {'pi05': 200, 'pi0': 48, 'smolvla': 48}
HORIZON, SIDE, WIDTH = 50, 224, 32


def compare(
    rows: list[Row], device: str, peers: tuple[str, ...], log: Callable[[str], None]
) -> None:
    """Put every peer's figure, or why there is none, beside the rows of whole chunks."""
    for row in rows:
        words = row.work.split()
        if len(words) != 2 or 'view' not in words[1]:
            continue
        for peer in peers:
            log(f'{row.work}: {peer} ...')
            row.peers[peer] = figure(peer, words[0], int(words[1][0]), device)


def figure(peer: str, family: str, views: int, device: str) -> float | str:
    """Return a peer's median in milliseconds, or the reason why there is none."""
    missing = [need for need in ('lerobot', 'transformers') if not importlib.util.find_spec(need)]
    if missing:
        return f'{missing[0]} is not installed'
    if device == 'cpu':
        return 'measured on a GPU alone'
    command = [sys.executable, '-m', 'flashrt_ros.bench.policy_peers', peer, family, str(views)]
    try:
        done = subprocess.run(
            [*command, device], capture_output=True, text=True, timeout=SECONDS[peer]
        )
    except subprocess.TimeoutExpired:
        return f'no figure within {SECONDS[peer]:.0f} s'
    if done.returncode:
        return (done.stderr.strip().splitlines() or ['failed'])[-1][:120]
    return float(json.loads(done.stdout.strip().splitlines()[-1])['ms'])


def features(views: int) -> dict[str, Any]:
    """Return the features of a policy with this many cameras."""
    from lerobot.configs.types import FeatureType, PolicyFeature

    seen = {
        f'observation.images.cam{i}': PolicyFeature(FeatureType.VISUAL, (3, SIDE, SIDE))
        for i in range(views)
    }
    seen['observation.state'] = PolicyFeature(FeatureType.STATE, (WIDTH,))
    done = {'action': PolicyFeature(FeatureType.ACTION, (WIDTH,))}
    return {'input_features': seen, 'output_features': done}


def stand_in() -> None:
    """Give SmolVLA the published sizes of its language model: nothing is fetched."""
    import types

    from lerobot.policies.smolvla import smolvlm_with_expert as module
    from transformers import SmolVLMConfig

    text = {
        'model_type': 'llama', 'hidden_size': 960, 'intermediate_size': 2560,
        'num_hidden_layers': 32, 'num_attention_heads': 15, 'num_key_value_heads': 5,
        'head_dim': 64, 'vocab_size': 49280, 'max_position_embeddings': 8192,
        'rms_norm_eps': 1e-5, 'rope_theta': 1e5, 'pad_token_id': 2,
    }  # fmt: skip
    vision = {
        'hidden_size': 768, 'intermediate_size': 3072, 'num_hidden_layers': 12,
        'num_attention_heads': 12, 'image_size': 512, 'patch_size': 16,
    }  # fmt: skip
    config = SmolVLMConfig(
        text_config=text, vision_config=vision, scale_factor=4, image_token_id=49190,
        pad_token_id=2,
    )  # fmt: skip
    marks = types.SimpleNamespace(fake_image_token_id=49189, global_image_token_id=49152)
    module.AutoConfig = types.SimpleNamespace(from_pretrained=lambda *a, **k: config)
    module.AutoProcessor = types.SimpleNamespace(
        from_pretrained=lambda *a, **k: types.SimpleNamespace(tokenizer=marks)
    )


def build(peer: str, family: str, views: int, device: str) -> Any:
    """Return lerobot's policy with random weights."""
    import torch

    options = {
        **features(views), 'device': device, 'chunk_size': HORIZON, 'n_action_steps': HORIZON,
        'compile_model': peer == 'lerobot-compiled', 'compile_mode': 'reduce-overhead',
    }  # fmt: skip
    names = {'pi05': 'PI05', 'pi0': 'PI0', 'smolvla': 'SmolVLA'}
    if family == 'smolvla':
        stand_in()
    else:
        options['dtype'] = 'bfloat16'
    base = f'lerobot.policies.{family}'
    config = importlib.import_module(f'{base}.configuration_{family}')
    module = importlib.import_module(f'{base}.modeling_{family}')
    with torch.device(device):
        policy = getattr(module, f'{names[family]}Policy')(
            getattr(config, f'{names[family]}Config')(**options)
        ).eval()
    if family == 'smolvla':
        policy.to(device)
        policy.model.vlm_with_expert.vlm.to(torch.bfloat16)
        policy.model.vlm_with_expert.lm_expert.to(torch.bfloat16)
    with torch.no_grad():
        for label, weight in policy.named_parameters():
            if label.endswith('dense.weight'):
                weight.normal_(0, 0.02)  # lerobot zeroes the modulations
    return policy


def batch(family: str, views: int, device: str) -> dict[str, Any]:
    """Return one observation as lerobot's processors leave it."""
    import torch

    length = LANGUAGE[family]
    seen: dict[str, Any] = {
        f'observation.images.cam{i}': torch.rand(1, 3, SIDE, SIDE, device=device)
        for i in range(views)
    }
    seen['observation.state'] = torch.rand(1, WIDTH, device=device) * 2 - 1
    seen['observation.language.tokens'] = torch.randint(5, 40000, (1, length), device=device)
    mask = torch.arange(length, device=device) < min(length, 64)
    seen['observation.language.attention_mask'] = mask[None]
    return seen


def main(peer: str, family: str, views: str, device: str) -> None:
    """Measure one work and print its figure."""
    import torch

    torch.backends.cudnn.benchmark = True  # what lerobot-eval sets
    torch.backends.cuda.matmul.allow_tf32 = True
    policy = build(peer, family, int(views), device)
    seen = batch(family, int(views), device)
    samples = []
    for index in range(23):
        torch.cuda.synchronize()
        began = time.perf_counter()
        policy.predict_action_chunk(dict(seen))
        torch.cuda.synchronize()
        if index >= 3:
            samples.append((time.perf_counter() - began) * 1e3)
    print(json.dumps({'ms': round(statistics.median(samples), 3), 'best': min(samples)}))


if __name__ == '__main__':
    main(*sys.argv[1:5])
