"""Sizes of the flow policy's network; every one is a parameter of the recipe."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flashrt_policies.recipes import RecipeError, demand, fill


@dataclass(frozen=True)
class FlowSizes:
    """Sizes of `FlowVLA`.

    Attributes:
        stem: channels after the first convolution.
        stages: channels of each residual stage; the first works at a quarter of the image's
            resolution, each later one at half of its predecessor's; the last one is modulated
            by the text.
        blocks: residual blocks of each stage.
        groups: groups of every group normalisation.
        text_width: width of the byte encoder.
        text_kernel: bytes one convolution of the byte encoder spans (odd).
        text_layers: residual convolutions of the byte encoder.
        width: width of prefix and expert tokens.
        heads: attention heads.
        prefix_layers: transformer layers over image, proprioception and text tokens.
        expert_layers: transformer layers over the action tokens.
        mlp: hidden width of a feed-forward layer, in multiples of `width`.
        condition_width: width of the time condition.
        steps: Euler steps of the flow.
    """

    stem: int = 32
    stages: tuple[int, ...] = (64, 128, 192)
    blocks: tuple[int, ...] = (1, 2, 2)
    groups: int = 8
    text_width: int = 128
    text_kernel: int = 5
    text_layers: int = 2
    width: int = 192
    heads: int = 6
    prefix_layers: int = 2
    expert_layers: int = 3
    mlp: int = 3
    condition_width: int = 128
    steps: int = 10

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if min(value if isinstance(value, tuple) else (value,)) <= 0:
                raise RecipeError(f'model.{name} is {value}; want positive integers')
        demand(
            (
                len(self.blocks) == len(self.stages) >= 2,
                f'model.stages has {len(self.stages)} entries and model.blocks '
                f'{len(self.blocks)}; want the same number, two or more',
            ),
            *(
                (
                    channels % self.groups == 0,
                    f'model.stages: {channels} channels do not split into {self.groups} groups; '
                    'want multiples of model.groups',
                )
                for channels in (self.stem, *self.stages)
            ),
            (
                self.width % self.heads == 0,
                f'model.width {self.width} does not split into {self.heads} heads; '
                'want a multiple',
            ),
            (
                self.text_kernel % 2 == 1,
                f'model.text_kernel is {self.text_kernel}; want an odd number',
            ),
        )

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> FlowSizes:
        """Check a mapping from a config and return the sizes.

        Raises:
            RecipeError: one line that names the key and says what would be right.
        """
        return fill(cls, raw, 'model')

    def reduction(self) -> int:
        """Return by how much the last stage's map is smaller than the image."""
        return 4 * 2 ** (len(self.stages) - 1)
