"""A checkpoint that does not fit is one line that names what is wrong and what would be right."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from flashrt_policies.checkpoint import CheckpointError
from flashrt_policies.hybrid_lm.config import parse_config
from flashrt_policies.hybrid_lm.loader import load
from flashrt_policies.hybrid_lm.text import load_tokenizer

pytest.importorskip('transformers', reason='saves the checkpoints')
sys.path.insert(0, str(Path(__file__).parent))
import lm_oracle

Tensors = dict[str, torch.Tensor]
FIRST = 'model.layers.0.mlp.up_proj.weight'


@pytest.fixture(scope='module')
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that loads."""
    path = tmp_path_factory.mktemp('good')
    lm_oracle.build(lm_oracle.hybrid(4), 4).save_pretrained(path)
    load(path, 'cpu')
    return path


@pytest.fixture
def copy(good: Path, tmp_path: Path) -> Path:
    """A copy of it to spoil."""
    return Path(shutil.copytree(good, tmp_path / 'copy'))


def change(folder: Path, edit: Callable[[Tensors], None]) -> None:
    """Edit the stored tensors."""
    path = folder / 'model.safetensors'
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path)


def fails(folder: Path, match: str) -> None:
    """Loading raises one line that says `match`."""
    with pytest.raises(CheckpointError, match=match) as caught:
        load(folder, 'cpu')
    assert '\n' not in str(caught.value)


def drop(tensors: Tensors) -> None:
    """Leave one out."""
    del tensors[FIRST]


def add(tensors: Tensors) -> None:
    """Store one more."""
    tensors['model.layers.0.mlp.bogus.weight'] = torch.zeros(3)


def turn(tensors: Tensors) -> None:
    """Store one transposed."""
    tensors[FIRST] = tensors[FIRST].T.contiguous()


def spoil(tensors: Tensors) -> None:
    """Make one value no number."""
    tensors[FIRST][0, 0] = float('nan')


def whole(tensors: Tensors) -> None:
    """Store integers."""
    tensors[FIRST] = tensors[FIRST].to(torch.int32)


@pytest.mark.parametrize(
    ('edit', 'match'),
    [
        (drop, "tensor 'model.layers.0.mlp.up_proj.weight' is missing; want it in one of"),
        (add, "bogus.weight' is unknown to this architecture; want only its own"),
        (turn, r"up_proj.weight' has shape \[.*\]; want \["),
        (spoil, "up_proj.weight' holds NaN or infinity; want finite numbers"),
        (whole, "up_proj.weight' is torch.int32; want floating point"),
    ],
)
def test_bad_tensors(edit: Callable[[Tensors], None], match: str, copy: Path) -> None:
    """Missing, extra, misshapen, not finite, of the wrong kind."""
    change(copy, edit)
    fails(copy, match)


def test_bad_files(copy: Path) -> None:
    """A shard that the index names and nobody has, a cut file, no weights, no config."""
    index = copy / 'model.safetensors.index.json'
    index.write_text(json.dumps({'weight_map': {FIRST: 'model-2.safetensors'}}))
    fails(copy, 'model-2.safetensors is missing')
    index.write_text(json.dumps({'weight_map': {FIRST: '../out.safetensors'}}))
    fails(copy, 'want a plain file name')
    index.write_text('{}')
    fails(copy, 'has no weight_map')
    index.unlink()
    path = copy / 'model.safetensors'
    path.write_bytes(path.read_bytes()[:-100])
    fails(copy, 'cannot be read')
    path.unlink()
    fails(copy, r'holds no \*.safetensors')
    (copy / 'config.json').write_text('{')
    fails(copy, 'is not JSON')
    (copy / 'config.json').unlink()
    fails(copy, 'config.json is missing')


@pytest.mark.parametrize(
    ('edit', 'match'),
    [
        ({'model_type': 'bert'}, "model_type 'bert'; want one of"),
        ({'hidden_size': None}, 'hidden_size is None; want a positive integer'),
        ({'layer_types': ['linear_attention']}, 'want 4 of'),
        ({'num_attention_heads': 5}, 'want a multiple'),
        ({'rope_parameters': {'rope_type': 'yarn'}}, "rope_type 'yarn'; want one of"),
        ({'hidden_act': 'gelu'}, 'want silu'),
        ({'text_config': []}, r'text_config is \[\]; want a JSON object'),
        ({'rms_norm_eps': 'small'}, "rms_norm_eps is 'small'; want a positive number"),
        ({'rope_parameters': 'x'}, "rope_parameters is 'x'; want a JSON object"),
        ({'rope_parameters': {'rope_theta': 'x'}}, "rope_theta is 'x'; want a positive number"),
        ({'rope_parameters': {'rope_type': 'linear'}}, 'factor is None; want a positive number'),
        ({'partial_rotary_factor': 7}, 'want an even number from 2 to 256'),
        ({'eos_token_id': 'x'}, 'want an integer or a list of them'),
        ({'layer_types': [['a']] * 4}, 'want 4 of'),
        ({'mtp_num_hidden_layers': -1}, 'want an integer from 0 on'),
    ],
)
def test_bad_configs(edit: dict[str, Any], match: str) -> None:
    """An architecture that is not served is refused before any weight is read."""
    raw = {
        'model_type': 'qwen3_5_text', 'vocab_size': 30, 'hidden_size': 16,
        'intermediate_size': 24, 'num_hidden_layers': 4, 'num_attention_heads': 4,
        'num_key_value_heads': 2,
    }  # fmt: skip
    parse_config(raw)
    with pytest.raises(CheckpointError, match=match):
        parse_config({**raw, **edit})


def test_weights_that_fit_no_memory_are_one_line(copy: Path) -> None:
    """Sizes that nobody has memory for, and bytes where the vocabulary has no room for them."""
    config = json.loads((copy / 'config.json').read_text())
    (copy / 'config.json').write_text(json.dumps({**config, 'vocab_size': 10**13}))
    fails(copy, 'no room on cpu for the weights')
    with pytest.raises(CheckpointError, match='tokenizer.json is missing'):
        load_tokenizer(copy, 97)


def test_the_text_part_of_a_multimodal_checkpoint(good: Path, copy: Path) -> None:
    """Its prefix, its nested config, its vision tower and draft head are no obstacle."""
    config = json.loads((copy / 'config.json').read_text())
    (copy / 'config.json').write_text(
        json.dumps({'model_type': 'qwen3_5', 'text_config': config, 'dtype': 'float32'})
    )

    def edit(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.startswith('model.')]:
            tensors[name.replace('model.', 'model.language_model.', 1)] = tensors.pop(name)
        tensors['model.visual.patch_embed.weight'] = torch.zeros(2)
        tensors['mtp.fc.weight'] = torch.zeros(2)

    change(copy, edit)
    _, plain = load(good, 'cpu')
    _, nested = load(copy, 'cpu')
    assert plain.digest == nested.digest
    assert all(
        torch.equal(a.w_in, b.w_in) for a, b in zip(plain.layers, nested.layers, strict=True)
    )


def test_a_tied_head_that_differs_is_refused(tmp_path: Path) -> None:
    """The config says tied: a stored head must be the embedding, or absent."""
    dims = {**lm_oracle.hybrid(4), 'tie_word_embeddings': True}
    lm_oracle.build(dims, 4).save_pretrained(tmp_path)

    def same(tensors: Tensors) -> None:
        tensors['lm_head.weight'] = tensors['model.embed_tokens.weight'].clone()

    def other(tensors: Tensors) -> None:
        tensors['lm_head.weight'] = tensors['lm_head.weight'] + 1

    change(tmp_path, same)
    load(tmp_path, 'cpu')
    change(tmp_path, other)
    fails(tmp_path, "'lm_head.weight' differs from the embedding")


def test_weights_are_cast_and_scales_stay_wide(good: Path) -> None:
    """Matrices take the asked type; norms, decays and biases of time steps stay float32."""
    _, weights = load(good, 'cpu', torch.bfloat16)
    assert weights.embed.dtype == torch.bfloat16 and weights.norm.dtype == torch.float32
    for layer in weights.layers:
        assert layer.w_in.dtype == torch.bfloat16 and layer.norm_in.dtype == torch.float32


@pytest.mark.parametrize('tied', [False, True])
def test_tied_or_not_in_one_file_or_many(tied: bool, tmp_path: Path) -> None:
    """The same weights, however stored; the head is the embedding or another matrix."""
    model = lm_oracle.build({**lm_oracle.hybrid(4), 'tie_word_embeddings': tied}, 4)
    lm = lm_oracle.served(model, tmp_path / 'one', capacity=128)
    many = lm_oracle.served(model, tmp_path / 'many', capacity=128, max_shard_size='20KB')
    assert len(list((tmp_path / 'many').glob('*.safetensors'))) > 1
    assert lm.weights.digest == many.weights.digest
    assert (lm.weights.head is lm.weights.embed) == tied == lm.config.tied
    tokens = torch.arange(20) % model.config.vocab_size
    with torch.no_grad():
        want = model(tokens[None]).logits[0, -1]
    for one in (lm, many):
        one.append(tokens)
        assert (one.logits.tensor - want).abs().max() <= 2e-5


def test_a_multimodal_checkpoint_saved_by_transformers(tmp_path: Path) -> None:
    """Its text part computes what the whole model does of a text."""
    from transformers.models.qwen3_5 import Qwen3_5Config, Qwen3_5ForConditionalGeneration

    text = {
        'vocab_size': 97, 'hidden_size': 32, 'intermediate_size': 48, 'num_hidden_layers': 2,
        'layer_types': ['linear_attention', 'full_attention'], 'num_attention_heads': 4,
        'num_key_value_heads': 2, 'head_dim': 16, 'linear_num_key_heads': 2,
        'linear_num_value_heads': 4, 'linear_key_head_dim': 8, 'linear_value_head_dim': 8,
    }  # fmt: skip
    vision = {
        'depth': 1, 'hidden_size': 16, 'intermediate_size': 16, 'num_heads': 2,
        'out_hidden_size': 32, 'num_position_embeddings': 16,
    }  # fmt: skip
    lm_oracle.plain_torch()
    torch.manual_seed(0)
    marks = dict(zip(('image_token_id', 'video_token_id', 'vision_start_token_id',
                      'vision_end_token_id'), range(90, 94), strict=True))  # fmt: skip
    config = Qwen3_5Config(text_config=text, vision_config=vision, **marks)
    model = Qwen3_5ForConditionalGeneration(config).eval().float()
    lm = lm_oracle.served(model, tmp_path, capacity=128)
    tokens = torch.randint(0, 90, (70,), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        want = model(tokens[None]).logits[0, -1]
    lm.append(tokens)
    assert lm.config.multimodal
    assert (lm.logits.tensor - want).abs().max() <= 2e-5
