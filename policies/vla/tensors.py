"""Tensors by name: out of a file, strictly, or made on the device to measure with.

Both kinds of source answer `take`; what a family asks for is the whole of what it is. A file's
tensor that nobody asked for is an error unless it is known to be idle, and a size that the file
contradicts is one too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from flashrt_policies.checkpoint import CheckpointError, tensor_digest, weights_digest

FLOATS = (torch.float32, torch.bfloat16, torch.float16)


class Source(Protocol):
    """Where a network's tensors come from."""

    device: torch.device
    dtype: torch.dtype

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor without reading it."""

    def has(self, name: str) -> bool:
        """Whether there is such a tensor."""

    def take(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Return a tensor of this shape on the device, in `dtype` or the source's own."""


class FileSource:
    """The tensors of a `model.safetensors`.

    Args:
        path: the file.
        device: where tensors go.
        dtype: what the network computes in; stored types may differ and are converted.

    Raises:
        CheckpointError: no whole safetensors file.
    """

    def __init__(self, path: Path, device: torch.device, dtype: torch.dtype) -> None:
        from safetensors import SafetensorError, safe_open

        self.path, self.device, self.dtype = path, device, dtype
        self._digests: dict[str, str] = {}
        try:
            self._file = safe_open(path, framework='pt', device='cpu')
            keys = list(self._file.keys())
            # openpi's folders have no `model.` in front.
            self._names = {f'model.{key.removeprefix("model.")}': key for key in keys}
        except (SafetensorError, OSError, ValueError) as error:
            reason = ' '.join(str(error).split())
            raise CheckpointError(
                f'{path} cannot be read ({reason}); want a whole safetensors file'
            ) from None

    def has(self, name: str) -> bool:
        """Whether the file has such a tensor."""
        return name in self._names

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape, from the header alone."""
        if name not in self._names:
            raise CheckpointError(f'{self.path}: tensor {name!r} is missing')
        return tuple(self._file.get_slice(self._names[name]).get_shape())

    def take(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Read a tensor.

        Raises:
            CheckpointError: missing, of another shape, not floating point, or not finite.
        """
        found = self.shape(name)
        if found != shape:
            raise CheckpointError(
                f'{self.path}: tensor {name!r} has shape {list(found)}; want {list(shape)}'
            )
        tensor = self._file.get_tensor(self._names[name])
        if tensor.dtype not in FLOATS:
            raise CheckpointError(
                f'{self.path}: tensor {name!r} is {tensor.dtype}; want one of '
                f'{", ".join(map(str, FLOATS))}'
            )
        if not bool(torch.isfinite(tensor).all()):
            raise CheckpointError(
                f'{self.path}: tensor {name!r} holds NaN or infinity; want finite numbers'
            )
        self._digests[name] = tensor_digest(name, tensor)
        return tensor.to(self.device, dtype or self.dtype)

    def finish(self, idle: tuple[str, ...]) -> str:
        """Return the digest of all that was taken; nothing else may be in the file.

        Args:
            idle: what may begin the name of a tensor that plays no part.

        Raises:
            CheckpointError: a tensor was never asked for.
        """
        for name in sorted(self._names):
            statistic = '.buffer_' in name or name.split('.')[1].startswith('normalize_')
            if name not in self._digests and not statistic and not name.startswith(idle):
                raise CheckpointError(
                    f'{self.path}: tensor {self._names[name]!r} is unknown to this architecture; '
                    'want only its own'
                )
        return weights_digest(self._digests)


class RandomSource:
    """Random tensors of any shape, made on the device: real sizes without a checkpoint.

    Args:
        device: where they are made.
        dtype: of those that are asked for in no other; every number is one of bfloat16, so that
            two sources of one seed and different types hold the same.
        seed: of the generator.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype, seed: int = 0) -> None:
        self.device, self.dtype, self._seed = device, dtype, seed
        self._generator = torch.Generator(device).manual_seed(seed)

    def has(self, name: str) -> bool:
        """There is always such a tensor."""
        return True

    def shape(self, name: str) -> tuple[int, ...]:
        """Sizes are given, not read."""
        raise CheckpointError(f'random tensor {name!r} has no shape; want the sizes given')

    def take(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Draw a tensor: a norm's scale near what it is when untrained, a matrix of its fan-in."""
        made = torch.empty(shape, device=self.device, dtype=torch.float32)
        made.normal_(0.0, 1.0, generator=self._generator)
        if len(shape) == 1:
            made *= 0.05
        else:
            small = 0.3 if '.dense.' in name or 'embedding' in name else 1.0
            made *= small * made[0].numel() ** -0.5
        if len(shape) == 1 and 'norm' in name and name.endswith('weight'):
            made += 0.0 if 'gemma' in name and 'vision' not in name else 1.0
        return made.bfloat16().to(dtype or self.dtype)

    def finish(self, idle: tuple[str, ...]) -> str:
        """Return what stands for a digest."""
        return weights_digest({'random': str(self._seed)})
