"""GGUF files of Llama-style models, read through the `gguf` library and dequantised on loading."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flashrt_policies.checkpoint import CheckpointError, tensor_digest, weights_digest
from flashrt_policies.hybrid_lm.config import LMConfig, parse_config
from flashrt_policies.hybrid_lm.loader import copy_in
from flashrt_policies.hybrid_lm.text import FileTokenizer
from flashrt_policies.hybrid_lm.weights import Weights, allocate, slots

FAMILIES = ('llama', 'qwen2', 'qwen3')
LAYER = {
    'attn_norm': 'input_layernorm', 'ffn_norm': 'post_attention_layernorm',
    'attn_q': 'self_attn.q_proj', 'attn_k': 'self_attn.k_proj', 'attn_v': 'self_attn.v_proj',
    'attn_output': 'self_attn.o_proj', 'attn_q_norm': 'self_attn.q_norm',
    'attn_k_norm': 'self_attn.k_norm', 'ffn_gate': 'mlp.gate_proj', 'ffn_up': 'mlp.up_proj',
    'ffn_down': 'mlp.down_proj',
}  # fmt: skip
TOP = {
    'token_embd.weight': 'model.embed_tokens.weight', 'output_norm.weight': 'model.norm.weight',
    'output.weight': 'lm_head.weight',
}  # fmt: skip


class GgufFile:
    """One open GGUF file.

    Args:
        path: the file.

    Raises:
        CheckpointError: the library or the file is missing, or it is no GGUF file.
    """

    def __init__(self, path: Path) -> None:
        try:
            import gguf
        except ImportError:
            raise CheckpointError(
                f'{path} needs the gguf library; install it with `pip install gguf`'
            ) from None
        if not path.is_file():
            raise CheckpointError(f'{path} is missing; want a .gguf file')
        self.path = path
        try:
            self.reader = gguf.GGUFReader(str(path))
        except (ValueError, OSError, KeyError, IndexError) as error:
            raise CheckpointError(f'{path} cannot be read ({error}); want a GGUF file') from None
        self._dequantize = gguf.quants.dequantize

    def get(self, key: str, default: Any = None) -> Any:
        """Return a metadata value, or `default` where the file has none."""
        field = self.reader.get_field(key)
        return default if field is None else field.contents()

    def tensors(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield name and float32 values of each tensor, one in memory at a time."""
        for tensor in self.reader.tensors:
            yield tensor.name, self._dequantize(tensor.data, tensor.tensor_type)


def read_config(file: GgufFile) -> LMConfig:
    """Return the architecture of a GGUF file.

    Raises:
        CheckpointError: a family that is not served, or a size is missing.
    """
    family = file.get('general.architecture')
    if family not in FAMILIES:
        raise CheckpointError(
            f'{file.path}: architecture {family!r}; want one of {", ".join(FAMILIES)}'
        )
    names = [tensor.name for tensor in file.reader.tensors]
    kind = file.get(f'{family}.rope.scaling.type', 'none')
    if kind != 'none':
        raise CheckpointError(f'{file.path}: rope scaling {kind!r}; want none')
    embedding = next((t for t in file.reader.tensors if t.name == 'token_embd.weight'), None)
    raw = {
        'model_type': family,
        'vocab_size': None if embedding is None else int(embedding.shape[1]),
        'hidden_size': file.get(f'{family}.embedding_length'),
        'intermediate_size': file.get(f'{family}.feed_forward_length'),
        'num_hidden_layers': file.get(f'{family}.block_count'),
        'num_attention_heads': file.get(f'{family}.attention.head_count'),
        'num_key_value_heads': file.get(f'{family}.attention.head_count_kv'),
        'rms_norm_eps': file.get(f'{family}.attention.layer_norm_rms_epsilon', 1e-6),
        'rope_theta': file.get(f'{family}.rope.freq_base', 10000.0),
        'max_position_embeddings': file.get(f'{family}.context_length'),
        'tie_word_embeddings': 'output.weight' not in names,
        'attention_bias': 'blk.0.attn_q.bias' in names,
        'eos_token_id': file.get('tokenizer.ggml.eos_token_id'),
    }
    width = file.get(f'{family}.attention.key_length')
    if width is not None:
        raw['head_dim'] = width
    try:
        return parse_config(raw)
    except CheckpointError as error:
        raise CheckpointError(f'{file.path}: {error}') from None


def load(
    path: Path | str | GgufFile,
    device: torch.device | str,
    dtype: torch.dtype = torch.bfloat16,
) -> tuple[LMConfig, Weights]:
    """Load a GGUF file.

    Args:
        path: the file, or the open one.
        device: where the weights go.
        dtype: element type of the matrices.

    Raises:
        CheckpointError: as `loader.load`; or the family is not served.
    """
    file = path if isinstance(path, GgufFile) else GgufFile(Path(path).expanduser())
    config = read_config(file)
    weights = allocate(config, torch.device(device), dtype)
    want, digests = slots(config, weights), {}
    for stored, values in file.tensors():
        name = plain_name(stored)
        where = f'{file.path}: tensor {stored!r}'
        if name == 'rope_freqs.weight':
            raise CheckpointError(f'{where} scales the rotation; want a file without it')
        if name not in want:
            raise CheckpointError(f'{where} is unknown to this architecture; want only its own')
        tensor = torch.from_numpy(np.array(values, dtype=np.float32))
        if config.model_type == 'llama' and name.endswith(('q_proj.weight', 'k_proj.weight')):
            heads = config.heads if 'q_proj' in name else config.kv_heads
            tensor = halves(tensor, heads)
        copy_in(where, want[name], tensor)
        digests[name] = tensor_digest(name, tensor)
    for name in want:
        if name not in digests:
            raise CheckpointError(f'{file.path}: tensor {name!r} is missing; want it in the file')
    weights.digest = weights_digest(digests)
    return config, weights


def halves(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Undo GGUF's order of a Llama projection: neighbouring pairs become the two halves of a head.

    Args:
        rows: [heads * D, N], rotated pairs side by side.
        heads: how many heads.
    """
    return rows.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)


def plain_name(stored: str) -> str:
    """Return the name that a Hugging Face folder has for a GGUF tensor."""
    parts = stored.split('.')
    if parts[0] == 'blk' and len(parts) == 4 and parts[2] in LAYER:
        return f'model.layers.{parts[1]}.{LAYER[parts[2]]}.{parts[3]}'
    return TOP.get(stored, stored)


def tokenizer(file: GgufFile) -> FileTokenizer:
    """Return the byte-level BPE tokenizer that a GGUF file carries.

    Raises:
        CheckpointError: it carries another kind.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    kind = file.get('tokenizer.ggml.model')
    if kind != 'gpt2':
        raise CheckpointError(f'{file.path}: tokenizer {kind!r}; want gpt2 (byte-level BPE)')
    words = file.get('tokenizer.ggml.tokens')
    merges = [tuple(pair.split(' ')) for pair in file.get('tokenizer.ggml.merges')]
    inner = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, merges))
    before: list[Any] = [pre_tokenizers.ByteLevel(add_prefix_space=False)]
    style = file.get('tokenizer.ggml.pre', 'default')
    if style in ('smollm', 'default'):
        before.insert(0, pre_tokenizers.Digits(individual_digits=True))
    elif style == 'qwen2':
        split = (
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
            r'| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+'
        )
        before = [
            pre_tokenizers.Split(Regex(split), 'isolated'),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    elif style != 'gpt-2':
        raise CheckpointError(
            f'{file.path}: splitting {style!r}; want one of smollm, qwen2, gpt-2, default'
        )
    inner.pre_tokenizer = pre_tokenizers.Sequence(before)
    inner.decoder = decoders.ByteLevel()
    types = file.get('tokenizer.ggml.token_type', [])
    inner.add_special_tokens(
        [AddedToken(word, special=True) for word, t in zip(words, types, strict=False) if t == 3]
    )
    eos = file.get('tokenizer.ggml.eos_token_id')
    stops = frozenset() if eos is None else frozenset({int(eos)})
    return FileTokenizer(inner, stops, file.get('tokenizer.chat_template'))
