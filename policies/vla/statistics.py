"""Normalisation statistics of a folder: found wherever lerobot has put them, or refused.

Three generations of folders keep them in three places: in the processors' own files as
`action.mean`; in `model.safetensors` as `unnormalize_outputs.buffer_action.mean`; and there under
a dataset's name, as `so100.buffer_action.mean`. A statistic that is nowhere, that stands in one
place twice with different values, or that is not finite is an error: a policy that runs without
its statistics moves the robot wrongly and says nothing. Loads no torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from flashrt_policies.checkpoint import CheckpointError
from flashrt_policies.vla.folder import ACTION, MODES, STATE, Folder


@dataclass(frozen=True)
class Scale:
    """How one vector is normalised; in lerobot's order of operations, so that it rounds alike.

    Attributes:
        mode: a key of `MODES`.
        first: float32 [N], mean or lower end.
        second: float32 [N], what normalising divides by.
        spread: float32 [N], what restoring multiplies by.
        low: float32 [N], lowest value of the data, as far as the statistics tell.
        high: float32 [N], highest value.
    """

    mode: str
    first: np.ndarray
    second: np.ndarray
    spread: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def normalise(self, x: np.ndarray) -> np.ndarray:
        """Return [..., N] in the network's units."""
        if self.mode == 'IDENTITY':
            return x
        if self.mode == 'MEAN_STD':
            return (x - self.first) / self.second
        return np.float32(2) * (x - self.first) / self.second - np.float32(1)

    @property
    def restoring(self) -> tuple[np.ndarray, np.ndarray]:
        """Gain and shift, float32 [N] each, that bring the network's numbers back."""
        if self.mode == 'IDENTITY':
            return np.ones_like(self.first), np.zeros_like(self.first)
        if self.mode == 'MEAN_STD':
            return self.spread, self.first
        half = self.spread / 2
        return half, self.first + half


def read_statistics(folder: Folder) -> dict[str, Scale]:
    """Return the normalisation of 'STATE' and of 'ACTION'.

    Raises:
        CheckpointError: a statistic is missing, ambiguous, of another length, or not finite.
    """
    found = dict(_stored(folder))
    return {
        kind: _scale(folder, found, kind, key, size)
        for kind, key, size in (
            ('STATE', STATE, folder.state_dim),
            ('ACTION', ACTION, folder.action_dim),
        )
    }


def _stored(folder: Folder) -> Iterator[tuple[str, np.ndarray]]:
    """Yield 'file: name' and value of every tensor that may be a statistic."""
    from safetensors import SafetensorError, safe_open

    endings = tuple(f'.{name}' for names in MODES.values() for name in names)
    for file in dict.fromkeys((*folder.files, folder.weights.name)):
        path = folder.path / file
        if not path.is_file():
            raise CheckpointError(f'{path} is missing; want every file the folder names')
        try:
            with safe_open(path, framework='np') as tensors:
                for key in sorted(tensors.keys()):
                    if key.endswith(endings):
                        yield f'{file}: {key}', np.asarray(tensors.get_tensor(key), np.float32)
        except (SafetensorError, OSError, ValueError) as error:
            reason = ' '.join(str(error).split())
            raise CheckpointError(
                f'{path} cannot be read ({reason}); want a whole safetensors file'
            ) from None


def _find(folder: Folder, found: dict[str, np.ndarray], key: str, name: str) -> np.ndarray:
    """Return one statistic, wherever it stands."""
    spellings = (f'{key}.{name}', f'buffer_{key.replace(".", "_")}.{name}')
    hits = {
        where: value for where, value in found.items()
        if any(_ends(where.split(': ', 1)[1], spelling) for spelling in spellings)
    }  # fmt: skip
    if not hits:
        raise CheckpointError(
            f'{folder.path}: statistic {spellings[0]!r} is missing; want it in one of '
            f'{", ".join((*folder.files, folder.weights.name))} (looked for {spellings[1]!r} too)'
        )
    for where, value in hits.items():
        if not np.isfinite(value).all():
            raise CheckpointError(
                f'{folder.path}/{where} holds NaN or infinity; want real statistics'
            )
    values = list(hits.values())
    if any(not np.array_equal(values[0], value) for value in values[1:]):
        raise CheckpointError(
            f'{folder.path}: statistic {spellings[0]!r} stands in {", ".join(hits)} with '
            'different values; want one'
        )
    return values[0].reshape(-1)


def _ends(key: str, spelling: str) -> bool:
    """Whether a stored name is this one, alone or under a prefix."""
    return key == spelling or key.endswith((f'.{spelling}', f'_{spelling}', f'/{spelling}'))


def _scale(folder: Folder, found: dict[str, np.ndarray], kind: str, key: str, size: int) -> Scale:
    mode = folder.modes[kind]
    one, zero = np.ones(size, np.float32), np.zeros(size, np.float32)
    if mode == 'IDENTITY':
        low, high = _range(found, key, -one, one)
        return Scale(mode, zero, one, one, low, high)
    first, second = (_find(folder, found, key, name) for name in MODES[mode])
    for name, value in zip(MODES[mode], (first, second), strict=True):
        if value.shape != (size,):
            raise CheckpointError(
                f'{folder.path}: statistic {key}.{name} has {value.size} numbers; want {size}'
            )
    eps = np.float32(folder.eps)
    if mode == 'MEAN_STD':
        if (second < 0).any():
            raise CheckpointError(f'{folder.path}: statistic {key}.std is negative; want spreads')
        low, high = _range(found, key, first - 5 * second, first + 5 * second)
        return Scale(mode, first, second + eps, second, low, high)
    span = second - first
    if (span < 0).any():
        names = MODES[mode]
        raise CheckpointError(
            f'{folder.path}: statistic {key}.{names[0]} is above {names[1]}; want a range'
        )
    low, high = _range(found, key, first - span, second + span)
    span = np.where(span == 0, eps, span)
    return Scale(mode, first, span, span, low, high)


def _range(
    found: dict[str, np.ndarray], key: str, low: np.ndarray, high: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the data's own lowest and highest values where they are stored, or those given."""
    stored = {}
    for where, value in found.items():
        for name in ('min', 'max'):
            fits = value.size == low.size and bool(np.isfinite(value).all())
            if where.split(': ', 1)[1] == f'{key}.{name}' and fits:
                stored[name] = value.reshape(-1)
    if len(stored) == 2:
        low, high = stored['min'], stored['max']
    return low.astype(np.float32), high.astype(np.float32)
