"""`robot.json`: what an openpi checkpoint folder does not say of the robot it is for.

Its owner writes it beside the weights, and the folder is whole wherever it is opened. Each key is
explained in `docs/vla-policies.md`. Loads no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flashrt_policies.checkpoint import CheckpointError
from flashrt_policies.vla.folder import read_json

NAME = 'robot.json'
SLOTS = ('base_0_rgb', 'left_wrist_0_rgb', 'right_wrist_0_rgb')  # in the network's order
EXAMPLE = (
    '{"cameras": {"front": {"slot": "base_0_rgb", "hw": [480, 640]}}, "relative": [], '
    '"horizon": 50}'
)
KEYS = frozenset(
    {
        'cameras', 'relative', 'horizon', 'steps', 'asset', 'state_dim', 'action_dim',
        'state_in_prompt', 'prompt_tokens', 'adapt_to_pi',
    }
)  # fmt: skip


@dataclass(frozen=True)
class Robot:
    """What the file says.

    Attributes:
        where: the file.
        values: its object, keys checked.
    """

    where: Path
    values: Mapping[str, Any]

    def count(self, key: str, default: int | None) -> int:
        """Return a positive number, or the default where the key is not there.

        Raises:
            CheckpointError: neither, or no positive number.
        """
        value = self.values.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise CheckpointError(f'{self.where}: {key} is {value!r}; want a positive number')
        return value

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false, the default where the key is not there."""
        value = self.values.get(key, default)
        if not isinstance(value, bool):
            raise CheckpointError(f'{self.where}: {key} is {value!r}; want true or false')
        return value

    def cameras(self) -> dict[str, tuple[int, int]]:
        """Return the robot's cameras and the sizes of their images, in the network's order."""
        raw = self.values.get('cameras')
        if not isinstance(raw, dict) or not raw:
            raise CheckpointError(f'{self.where}: cameras is {raw!r}; want one or more: {EXAMPLE}')
        found: dict[str, tuple[str, tuple[int, int]]] = {}
        for name, entry in raw.items():
            if not isinstance(entry, dict) or set(entry) != {'slot', 'hw'}:
                raise CheckpointError(
                    f'{self.where}: camera {name!r} is {entry!r}; want a slot and hw: {EXAMPLE}'
                )
            slot, sides = entry['slot'], entry['hw']
            if slot not in SLOTS or slot in found:
                raise CheckpointError(
                    f'{self.where}: camera {name!r} has slot {slot!r}; want one of '
                    f'{", ".join(SLOTS)}, each once'
                )
            if not isinstance(sides, list) or len(sides) != 2 or not all(map(_pixels, sides)):
                raise CheckpointError(
                    f'{self.where}: camera {name!r} has hw {sides!r}; want [height, width], pixels'
                )
            found[slot] = (name, (sides[0], sides[1]))
        return dict(found[slot] for slot in SLOTS if slot in found)

    def relative(self, count: int) -> tuple[int, ...]:
        """Return the indices of the actions that are offsets from the state, rising.

        Args:
            count: of what both a state and an action have.
        """
        raw = self.values.get('relative')
        good = isinstance(raw, list) and all(type(i) is int and 0 <= i < count for i in raw)
        if not isinstance(raw, list) or not good:
            raise CheckpointError(
                f'{self.where}: relative is {raw!r}; want the indices below {count} of the '
                'actions that the network gives as offsets from the state, [] for none'
            )
        return tuple(sorted(set(raw)))


def _pixels(value: object) -> bool:
    return type(value) is int and value > 0


def read_robot(path: Path) -> Robot:
    """Return a folder's file.

    Raises:
        CheckpointError: missing, no JSON object, or a key that means nothing here.
    """
    where = path / NAME
    if not where.is_file():
        raise CheckpointError(
            f'{where} is missing: openpi does not store which robot a checkpoint is for; '
            f'write it: {EXAMPLE} (docs/vla-policies.md explains each key)'
        )
    values = read_json(where)
    unknown = sorted(set(values) - KEYS)
    if unknown:
        raise CheckpointError(
            f'{where}: key {unknown[0]!r} is not known; want some of {", ".join(sorted(KEYS))}'
        )
    return Robot(where, values)
