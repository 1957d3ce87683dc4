"""The drafting head of a checkpoint folder: loaded strictly, and computing what it should."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from flashrt_policies.checkpoint import CheckpointError
from flashrt_policies.hybrid_lm.loader import load
from flashrt_policies.hybrid_lm.mtp import DraftingLM
from flashrt_ros.commands import lm as command
from flashrt_ros.contract.context import Context
from flashrt_ros.errors import FlashrtError

transformers = pytest.importorskip('transformers', reason='saves the checkpoints')
sys.path.insert(0, str(Path(__file__).parent))
import lm_oracle  # noqa: E402

Tensors = dict[str, torch.Tensor]
DIMS = {**lm_oracle.hybrid(3), 'vocab_size': 257, 'eos_token_id': 256, 'mtp_num_hidden_layers': 1}


def head_layer(config: Any, seed: int) -> torch.nn.Module:
    """Return transformers' full-attention layer, as the head has one, with random weights."""
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5DecoderLayer

    index = config.layer_types.index('full_attention')
    layer = Qwen3_5DecoderLayer(config, index).eval().float()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in layer.parameters():
            value.normal_(0.0, 0.08 if value.dim() > 1 else 0.1, generator=generator)
    return layer


def head_tensors(model: Any, seed: int) -> Tensors:
    """Return the tensors of a random head, named as in a checkpoint."""
    hidden, generator = model.config.hidden_size, torch.Generator().manual_seed(seed)

    def new(*shape: int) -> torch.Tensor:
        return torch.empty(shape).normal_(0.0, 0.1, generator=generator)

    layer = head_layer(model.config, seed).state_dict()
    return {
        'mtp.fc.weight': new(hidden, 2 * hidden), 'mtp.norm.weight': new(hidden),
        'mtp.pre_fc_norm_embedding.weight': new(hidden),
        'mtp.pre_fc_norm_hidden.weight': new(hidden),
        **{f'mtp.layers.0.{name}': value for name, value in layer.items()},
    }  # fmt: skip


@pytest.fixture(scope='module')
def model() -> Any:
    """The oracle's model."""
    lm_oracle.plain_torch()
    return lm_oracle.build(DIMS, 3)


@pytest.fixture
def folder(model: Any, tmp_path: Path) -> Path:
    """Its checkpoint, with the head that transformers leaves out."""
    model.save_pretrained(tmp_path)
    change(tmp_path, lambda tensors: tensors.update(head_tensors(model, 5)))
    return tmp_path


def change(folder: Path, edit: Callable[[Tensors], object]) -> None:
    """Edit the stored tensors."""
    path = folder / 'model.safetensors'
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Small products gain nothing from more."""
    torch.set_num_threads(1)


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The family's zero-centred norm."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * (1 + weight)


def expected_guesses(model: Any, tokens: list[int], count: int) -> list[int]:
    """Guess `count` tokens after `tokens` with the head as transformers' layer computes it."""
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5TextRotaryEmbedding

    stored, layer = head_tensors(model, 5), head_layer(model.config, 5)
    embed, rotary = model.model.embed_tokens, Qwen3_5TextRotaryEmbedding(model.config)
    with torch.no_grad():
        hidden = model.model(torch.tensor([tokens[:-1]])).last_hidden_state  # [1, N, hidden]
        guessed = list(tokens)
        for _ in range(count):
            embedded = embed(torch.tensor([guessed[1:]]))
            pair = (
                norm(embedded, stored['mtp.pre_fc_norm_embedding.weight']),
                norm(hidden, stored['mtp.pre_fc_norm_hidden.weight']),
            )
            x = torch.cat(pair, -1) @ stored['mtp.fc.weight'].T
            rows = x.shape[1]
            turned = rotary(x, torch.arange(rows).expand(3, 1, rows))
            mask = torch.full((rows, rows), float('-inf')).triu(1)[None, None]
            out = layer(x, position_embeddings=turned, attention_mask=mask)
            out = out[0] if isinstance(out, tuple) else out
            made = norm(out[:, -1:], stored['mtp.norm.weight'])
            guessed.append(int(model.lm_head(made)[0, -1].argmax()))
            hidden = torch.cat((hidden, made), 1)
    return guessed[len(tokens) :]


def test_the_guesses_are_those_of_the_reference(model: Any, folder: Path) -> None:
    """Three guesses a round, each from the last, after prompts and rounds."""
    config, weights = load(folder, 'cpu', drafts=True)
    lm = DraftingLM(Context('cpu'), config, weights, capacity=200, drafts=3)
    generator = torch.Generator().manual_seed(1)
    for count in (2, 63, 65):
        lm.reset()
        lm.append(torch.randint(257, (count,), generator=generator))
        for _ in range(3):
            tokens = [*lm.tokens, lm.token]
            lm.round(4)
            assert lm.ahead.rows.tensor.tolist()[1:] == expected_guesses(model, tokens, 3)


def test_with_and_without_the_head(model: Any, folder: Path, tmp_path_factory: Any) -> None:
    """A folder with the head loads both ways, and generates what transformers does."""
    plain_config, plain = load(folder, 'cpu')
    config, weights = load(folder, 'cpu', drafts=True)
    assert plain.drafts is None and weights.drafts is not None and config == plain_config
    assert plain.digest != weights.digest  # capsules of one are not for the other
    bare = tmp_path_factory.mktemp('bare')
    model.save_pretrained(bare)
    assert load(bare, 'cpu')[1].digest == plain.digest
    with pytest.raises(CheckpointError, match=r"tensor 'mtp\..*' is missing; want it in one of"):
        load(bare, 'cpu', drafts=True)
    lm = DraftingLM(Context('cpu'), config, weights, capacity=200, drafts=2)
    tokens = torch.randint(257, (50,), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        out = model.generate(
            tokens[None], attention_mask=torch.ones(1, 50, dtype=torch.long), max_new_tokens=64,
            do_sample=False, eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
    lm.append(tokens)
    assert list(lm.generate(64, stops=())) == out[0, 50:].tolist()


@pytest.mark.parametrize(
    ('edit', 'match'),
    [
        (lambda t: t.pop('mtp.fc.weight'), r"'mtp.fc.weight' is missing; want it in one of"),
        (
            lambda t: t.pop('mtp.layers.0.self_attn.q_norm.weight'),
            r"'mtp.layers.0.self_attn.q_norm.weight' is missing",
        ),
        (
            lambda t: t.update({'mtp.fc.weight': t['mtp.fc.weight'][:, :-1].contiguous()}),
            r"'mtp.fc.weight' has shape \[.*\]; want \[",
        ),
        (
            lambda t: t.update({'mtp.layers.1.mlp.up_proj.weight': torch.zeros(2)}),
            r"'mtp.layers.1.mlp.up_proj.weight' is unknown to this architecture",
        ),
        (
            lambda t: t['mtp.norm.weight'].fill_(float('nan')),
            r"'mtp.norm.weight' holds NaN or infinity; want finite numbers",
        ),
    ],
)
def test_a_bad_head_is_named(edit: Callable[[Tensors], object], match: str, folder: Path) -> None:
    """Missing, misshapen, extra, not finite; without drafts the head is not read at all."""
    change(folder, edit)
    load(folder, 'cpu')
    with pytest.raises(CheckpointError, match=match) as caught:
        load(folder, 'cpu', drafts=True)
    assert '\n' not in str(caught.value)


def test_heads_that_are_not_served(folder: Path) -> None:
    """Two layers, or a family that has no such head, are refused before a weight is read."""
    config = json.loads((folder / 'config.json').read_text())
    config['mtp_num_hidden_layers'] = 2
    (folder / 'config.json').write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match='mtp_num_hidden_layers 2; want 1'):
        load(folder, 'cpu', drafts=True)
    config = {
        'model_type': 'llama', 'vocab_size': 60, 'hidden_size': 32, 'intermediate_size': 48,
        'num_hidden_layers': 2, 'num_attention_heads': 4,
    }  # fmt: skip
    (folder / 'config.json').write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r'llama has no mtp\.\* head; want Qwen3.5'):
        load(folder, 'cpu', drafts=True)


def test_generate_shows_how_often_the_head_was_right(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`flashrt lm generate --mtp` writes the same text and the share of right guesses."""
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers(dest='command'))
    texts = []
    for more in ((), ('--mtp',), ('--mtp', '3')):
        words = ['lm', 'generate', str(folder), '--prompt', 'hello', '--tokens', '24', *more]
        assert command.run(parser.parse_args([*words, '--capacity', '200'])) == 0
        shown = capsys.readouterr()
        texts.append(shown.out)
        assert ('guesses right' in shown.err) == bool(more)
    assert texts[0] == texts[1] == texts[2]
    words = ['lm', 'generate', str(folder), '--prompt', 'x', '--mtp', '2', '--temperature', '1']
    with pytest.raises(FlashrtError, match='want 0 or more, and greedy'):
        command.run(parser.parse_args(words))
