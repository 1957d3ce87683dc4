"""Sizes of the flow policy's network; every one is a parameter of the recipe."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flashrt_ros.errors import FlashrtError


class RecipeError(FlashrtError):
    """A recipe or a checkpoint's sizes hold an unknown, missing or impossible value."""


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

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> FlowSizes:
        """Check a mapping from a recipe or a config and return the sizes.

        Raises:
            RecipeError: one line that names the key and says what would be right.
        """
        known = {field.name: field.default for field in dataclasses.fields(cls)}
        for key, value in raw.items():
            if key not in known:
                raise RecipeError(f'model.{key} is unknown; want one of {", ".join(known)}')
            items = value if isinstance(known[key], tuple) else [value]
            if not isinstance(items, (list, tuple)) or not items or not all(map(_size, items)):
                raise RecipeError(f'model.{key} is {value!r}; want {_like(known[key])}')
        values: dict[str, Any] = {}
        for key, value in raw.items():
            values[key] = tuple(value) if isinstance(value, list) else value
        sizes = cls(**values)
        sizes._check()
        return sizes

    def _check(self) -> None:
        if len(self.stages) < 2 or len(self.stages) != len(self.blocks):
            raise RecipeError(
                f'model.stages has {len(self.stages)} entries and model.blocks '
                f'{len(self.blocks)}; want the same number, two or more'
            )
        for channels in (self.stem, *self.stages):
            if channels % self.groups:
                raise RecipeError(
                    f'model.stages: {channels} channels do not split into {self.groups} groups; '
                    'want multiples of model.groups'
                )
        if self.width % self.heads:
            raise RecipeError(
                f'model.width {self.width} does not split into {self.heads} heads; want a multiple'
            )
        if not self.text_kernel % 2:
            raise RecipeError(f'model.text_kernel is {self.text_kernel}; want an odd number')

    def reduction(self) -> int:
        """Return by how much the last stage's map is smaller than the image."""
        return 4 * 2 ** (len(self.stages) - 1)


def _size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _like(default: object) -> str:
    return 'a list of positive integers' if isinstance(default, tuple) else 'a positive integer'
