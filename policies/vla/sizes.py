"""Sizes of the three families, read off a checkpoint's tensors.

lerobot's folders do not say them: they stand in its code, or in another model's config on the
hub. What the shapes leave open (how many heads share a projection) is the same for every release
of a family, and is said here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from flashrt_policies.checkpoint import CheckpointError
from flashrt_policies.kernels.vla.rope import Heads
from flashrt_policies.vla.tensors import Source

PI = 'model.paligemma_with_expert.'
SMOL = 'model.vlm_with_expert.'
PI_TOWER = f'{PI}paligemma.model.vision_tower.vision_model.'
PI_TEXT = f'{PI}paligemma.model.language_model.'
PI_EXPERT = f'{PI}gemma_expert.model.'
SMOL_TOWER = f'{SMOL}vlm.model.vision_model.'
SMOL_TEXT = f'{SMOL}vlm.model.text_model.'
SMOL_EXPERT = f'{SMOL}lm_expert.'
SMOL_HEAD = 64  # numbers in a head of every SmolLM2 and of its image tower


@dataclass(frozen=True)
class Tower:
    """The image tower: width, layers, heads, mlp; patch and image side in pixels; its output.

    Attributes:
        shuffle: side of the square of patches that becomes one token.
        out: width of a token.
    """

    width: int
    layers: int
    heads: int
    mlp: int
    patch: int
    side: int
    shuffle: int
    out: int

    @property
    def tokens(self) -> int:
        """Tokens of one image."""
        return (self.side // self.patch // self.shuffle) ** 2


@dataclass(frozen=True)
class Stack:
    """A stack of decoder layers: width, layers, heads, and the hidden width of its MLP."""

    width: int
    layers: int
    heads: Heads
    mlp: int


@dataclass(frozen=True)
class Sizes:
    """One policy's network: its three stacks, vocabulary, and widths of action and state."""

    tower: Tower
    text: Stack
    expert: Stack
    vocabulary: int
    action: int
    state: int


FULL = {
    'pi0': Sizes(
        Tower(1152, 27, 16, 4304, 14, 224, 1, 2048),
        Stack(2048, 18, Heads(8, 1, 256), 16384),
        Stack(1024, 18, Heads(8, 1, 256), 4096),
        257152, 32, 32,
    ),
    'smolvla': Sizes(
        Tower(768, 12, 12, 3072, 16, 512, 4, 960),
        Stack(960, 16, Heads(15, 5, 64), 2560),
        Stack(720, 16, Heads(15, 5, 64), 2048),
        49280, 32, 32,
    ),
}  # fmt: skip
FULL['pi05'] = FULL['pi0']


def read_sizes(family: str, source: Source) -> Sizes:
    """Return the sizes of a checkpoint.

    Raises:
        CheckpointError: a tensor is missing, or shapes that no such network has.
    """
    smol = family == 'smolvla'
    tower = _tower(source, smol)
    text = _stack(source, SMOL_TEXT if smol else PI_TEXT, smol)
    expert = _stack(source, SMOL_EXPERT if smol else PI_EXPERT, smol)
    if text.heads != expert.heads:
        raise CheckpointError(
            f'the expert has heads {tuple(expert.heads)} and the language model '
            f'{tuple(text.heads)}; want the same: they attend to each other'
        )
    if text.layers != expert.layers:
        raise CheckpointError(
            f'the expert has {expert.layers} layers and the language model {text.layers}; want '
            'as many: each attends to its own'
        )
    state = 0 if family == 'pi05' else source.shape('model.state_proj.weight')[1]
    action = source.shape('model.action_in_proj.weight')[1]
    return Sizes(tower, text, expert, source.shape(embedding(source, smol))[0], action, state)


def embedding(source: Source, smol: bool) -> str:
    """Return the name of the token embedding; a tied one may be stored as the head alone."""
    name = f'{SMOL_TEXT if smol else PI_TEXT}embed_tokens.weight'
    if source.has(name):
        return name
    return f'{SMOL}vlm.lm_head.weight' if smol else f'{PI}paligemma.lm_head.weight'


def _count(source: Source, pattern: str) -> int:
    count = 0
    while source.has(pattern.format(count)):
        count += 1
    return count


def _tower(source: Source, smol: bool) -> Tower:
    base = SMOL_TOWER if smol else PI_TOWER
    width, _, patch, _ = source.shape(f'{base}embeddings.patch_embedding.weight')
    patches = source.shape(f'{base}embeddings.position_embedding.weight')[0]
    side = math.isqrt(patches)
    if side * side != patches:
        raise CheckpointError(f'the image tower has {patches} positions; want a square number')
    mlp = source.shape(f'{base}encoder.layers.0.mlp.fc1.weight')[0]
    heads, shuffle = 16, 1
    if smol:
        out, joined = source.shape(f'{SMOL}vlm.model.connector.modality_projection.proj.weight')
        shuffle = math.isqrt(joined // width)
        heads = 16 if width == 1152 else max(1, width // SMOL_HEAD)
    else:
        out = source.shape(f'{PI}paligemma.model.multi_modal_projector.linear.weight')[0]
    layers = _count(source, base + 'encoder.layers.{}.mlp.fc1.weight')
    return Tower(width, layers, heads, mlp, patch, side * patch, shuffle, out)


def _stack(source: Source, base: str, smol: bool) -> Stack:
    layer = f'{base}layers.0.'
    queries, width = source.shape(f'{layer}self_attn.q_proj.weight')
    keys = source.shape(f'{layer}self_attn.k_proj.weight')[0]
    dim = SMOL_HEAD if smol else keys  # Gemma has one key head here
    if queries % dim or keys % dim:
        raise CheckpointError(
            f'{layer}self_attn: {queries} and {keys} rows do not split into heads of {dim}'
        )
    mlp = source.shape(f'{layer}mlp.gate_proj.weight')[0]
    layers = _count(source, base + 'layers.{}.self_attn.q_proj.weight')
    return Stack(width, layers, Heads(queries // dim, keys // dim, dim), mlp)
