"""The language model computes what transformers computes, in float32 on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip('transformers', reason='transformers is the oracle here')
import sys

sys.path.insert(0, str(Path(__file__).parent))
import lm_oracle

LENGTHS = (1, 63, 64, 65, 129)
DENSE = {
    'vocab_size': 101, 'hidden_size': 48, 'intermediate_size': 64, 'num_hidden_layers': 3,
    'num_attention_heads': 6, 'num_key_value_heads': 2, 'head_dim': 16,
    'max_position_embeddings': 4096,
}  # fmt: skip
LLAMA3 = {
    'rope_type': 'llama3', 'rope_theta': 500000.0, 'factor': 8.0, 'low_freq_factor': 1.0,
    'high_freq_factor': 4.0, 'original_max_position_embeddings': 64,
}  # fmt: skip


@pytest.fixture(autouse=True)
def two_threads() -> None:
    """Keep small tests from fighting over cores."""
    torch.set_num_threads(2)
    lm_oracle.plain_torch()


def oracle(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Return the logits of the last token [vocab]."""
    with torch.no_grad():
        return model(tokens[None]).logits[0, -1]


def tokens_for(model: Any, count: int, seed: int) -> torch.Tensor:
    """Return `count` random tokens."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, model.config.vocab_size, (count,), generator=generator)


@pytest.mark.parametrize('seed', range(5))
def test_logits_agree_with_transformers_on_random_shapes(seed: int, tmp_path: Path) -> None:
    """Random dimensions, lengths around the chunk: logits within 2e-5."""
    model = lm_oracle.build(lm_oracle.hybrid(seed), seed)
    lm = lm_oracle.served(model, tmp_path)
    print('seed', seed, lm.config)
    for count in LENGTHS:
        tokens = tokens_for(model, count, seed)
        lm.reset()
        lm.append(tokens.tolist())
        error = (lm.logits.tensor - oracle(model, tokens)).abs().max().item()
        assert error <= 2e-5, f'{count} tokens: {error}'


@pytest.mark.parametrize('seed', [11, 12])
def test_a_prompt_in_pieces_is_the_same_prompt(seed: int, tmp_path: Path) -> None:
    """Whatever the split, the logits stay within 2e-5 of the whole prompt's."""
    model = lm_oracle.build(lm_oracle.hybrid(seed), seed)
    lm = lm_oracle.served(model, tmp_path)
    tokens = tokens_for(model, 200, seed)
    want = oracle(model, tokens)
    for split in (1, 63, 64, 100, 128, 199):
        lm.reset()
        lm.append(tokens[:split].tolist())
        lm.append(tokens[split:].tolist())
        error = (lm.logits.tensor - want).abs().max().item()
        assert error <= 2e-5, f'split at {split}: {error}'


@pytest.mark.parametrize('seed', [21, 22])
def test_greedy_text_is_that_of_transformers(seed: int, tmp_path: Path) -> None:
    """A folder saved by transformers, in shards, generates the same 64 greedy tokens."""
    model = lm_oracle.build(lm_oracle.hybrid(seed), seed)
    lm = lm_oracle.served(model, tmp_path, max_shard_size='20KB')
    assert len(list(tmp_path.glob('*.safetensors'))) > 1
    tokens = tokens_for(model, 70, seed)
    with torch.no_grad():
        out = model.generate(
            tokens[None],
            attention_mask=torch.ones(1, 70, dtype=torch.long),
            max_new_tokens=64,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    lm.append(tokens.tolist())
    assert list(lm.generate(64)) == out[0, 70:].tolist()


@pytest.mark.parametrize(
    ('family', 'more'),
    [
        ('llama', {}),
        ('llama', {'rope_parameters': LLAMA3, 'tie_word_embeddings': True}),
        ('llama', {'attention_bias': True}),
        ('qwen2', {}),
        ('qwen3', {}),
    ],
)
def test_models_with_full_attention_only(
    family: str, more: dict[str, Any], tmp_path: Path
) -> None:
    """Llama, Qwen2 and Qwen3 are the case in which every layer is full attention."""
    dims = {**DENSE, **more}
    if family == 'qwen2':
        dims['hidden_size'] = 96  # its heads share the hidden width
    model = lm_oracle.build(dims, 5, family)
    lm = lm_oracle.served(model, tmp_path)
    for count in (1, 65, 130):
        tokens = tokens_for(model, count, count)
        lm.reset()
        lm.append(tokens.tolist())
        error = (lm.logits.tensor - oracle(model, tokens)).abs().max().item()
        assert error <= 2e-5, f'{count} tokens: {error}'


def test_a_wrong_state_is_noticed(tmp_path: Path) -> None:
    """The planted fault of this file: one changed element of the state shows in the logits."""
    model = lm_oracle.build(lm_oracle.hybrid(1), 1)
    lm = lm_oracle.served(model, tmp_path)
    tokens = tokens_for(model, 80, 1)
    lm.consume(tokens[:79].tolist())
    assert lm.state.recurrent is not None
    lm.state.recurrent.tensor[0, 0] += 0.1
    lm.append(tokens[79:].tolist())
    assert (lm.logits.tensor - oracle(model, tokens)).abs().max().item() > 1e-4
