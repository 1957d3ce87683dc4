"""The recipe of a planner: every number of its training."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flashrt_policies import recipes
from flashrt_policies.checkpoint import DTYPES
from flashrt_policies.recipes import demand
from flashrt_policies.training.loop import Loop

KINDS = {'linear': 'linear_attention', 'full': 'full_attention'}


@dataclass(frozen=True)
class Sizes:
    """The network.

    Attributes:
        vocabulary: tokens at most: the 256 bytes, and what they are joined to.
        hidden: width of the residual stream.
        intermediate: width of the gated MLP.
        layers: what each mixes by: linear (Gated DeltaNet) or full (attention).
        heads: query heads of full attention.
        kv_heads: its key and value heads.
        head_dim: width of one of them; half of it is rotated.
        lin_heads: heads of Gated DeltaNet.
        lin_dim: width of their keys and values.
    """

    vocabulary: int = 1024
    hidden: int = 192
    intermediate: int = 384
    layers: tuple[str, ...] = ('linear', 'full', 'linear', 'full', 'linear', 'full')
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    lin_heads: int = 4
    lin_dim: int = 32

    def __post_init__(self) -> None:
        sizes = (self.hidden, self.intermediate, self.kv_heads, self.head_dim, self.lin_heads)
        demand(
            (
                set(self.layers) <= set(KINDS),
                f'model.layers is {list(self.layers)}; want a list of {", ".join(KINDS)}',
            ),
            (min(*sizes, self.lin_dim) > 0, 'model holds a number below 1; want positive ones'),
            (
                256 <= self.vocabulary <= 32767,
                f'model.vocabulary is {self.vocabulary}; want 256 to 32767',
            ),
            (self.heads % self.kv_heads == 0, 'model.heads is no multiple of model.kv_heads'),
        )


@dataclass(frozen=True)
class PlannerLoop(Loop):
    """The loop of a planner; a batch is of situations.

    Attributes:
        read: weight of the loss of predicting a state's own tokens.
        spell: weight of spelling the plan out.
        marks: weight of what is named inside a state: the marks, and which skill is meant.
        compile: let torch's compiler fuse the network; once for each width of a batch.
        measure: held-out situations per measurement.
        workers: processes that make up situations; 0 = none but the trainer's own.
    """

    read: float = 0.1
    spell: float = 0.5
    marks: float = 0.5
    compile: bool = False
    measure: int = 1024
    workers: int = 0


@dataclass(frozen=True)
class PlannerRecipe:
    """A training run.

    Attributes:
        seed: every random choice follows from it.
        dtype: element type of the exported matrices.
        words: the words file, beside the recipe.
        model: the network.
        train: the loop.
    """

    seed: int = 0
    dtype: str = 'float16'
    words: str = 'planner_words.yaml'
    model: Sizes = field(default_factory=Sizes)
    train: PlannerLoop = field(default_factory=PlannerLoop)

    def __post_init__(self) -> None:
        demand(
            (
                self.dtype in DTYPES,
                f'dtype is {self.dtype!r}; want one of {", ".join(DTYPES)}',
            ),
            (
                Path(self.words).name == self.words,
                f'words is {self.words!r}; want a file name',
            ),
        )

    def architecture(self) -> dict[str, Any]:
        """Return the checkpoint's ``config.json``, as the language model's loader reads it."""
        m = self.model
        return {
            'architectures': ['Qwen3_5ForCausalLM'],
            'model_type': 'qwen3_5_text',
            'dtype': self.dtype,
            'vocab_size': m.vocabulary,
            'hidden_size': m.hidden,
            'intermediate_size': m.intermediate,
            'num_hidden_layers': len(m.layers),
            'layer_types': [KINDS[kind] for kind in m.layers],
            'num_attention_heads': m.heads,
            'num_key_value_heads': m.kv_heads,
            'head_dim': m.head_dim,
            'linear_num_key_heads': m.lin_heads,
            'linear_num_value_heads': m.lin_heads,
            'linear_key_head_dim': m.lin_dim,
            'linear_value_head_dim': m.lin_dim,
            'linear_conv_kernel_dim': 4,
            'rope_parameters': {
                'rope_type': 'default',
                'rope_theta': 10000.0,
                'partial_rotary_factor': 0.5,
            },
            'rms_norm_eps': 1e-6,
            'hidden_act': 'silu',
            'tie_word_embeddings': True,
            'max_position_embeddings': 8192,
        }


def load(path: Path) -> PlannerRecipe:
    """Read a recipe.

    Raises:
        RecipeError: one line that names the file and the key and says what would be right.
    """
    return recipes.load(path, PlannerRecipe)


def parse(raw: Any) -> PlannerRecipe:
    """Check a mapping and return the recipe it describes.

    Raises:
        RecipeError: a key is unknown, or a value has the wrong type or range.
    """
    return recipes.fill(PlannerRecipe, raw)
