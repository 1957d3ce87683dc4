"""Fingerprint: the deployment that a capsule belongs to."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from flashrt_ros.capsule.closure import Closure
from flashrt_ros.capsule.errors import FingerprintError


class Fingerprint:
    """Named digests of weights, architecture, dtypes, kernels, closure and device.

    Args:
        fields: name to value; every value takes part in the comparison.
    """

    __slots__ = ('_fields',)

    def __init__(self, fields: Mapping[str, str]) -> None:
        self._fields = dict(sorted(fields.items()))

    @classmethod
    def of(
        cls, closure: Closure, device: torch.device | str = 'cpu', **fields: Any
    ) -> Fingerprint:
        """Digest what is given, and add the closure, torch, Triton and the device.

        Args:
            closure: its schema takes part.
            device: its kind and compute capability take part.
            fields: for instance weights=, architecture=, dtype=, quantisation=, kernels=. A
                string is taken as it is, tensors and files by their content, the rest as JSON.
        """
        made = {name: _value(name, value) for name, value in fields.items()}
        made['closure'] = closure.digest()
        made['torch'] = str(torch.__version__)
        made['triton'] = _triton_version()
        made['device'] = _device(torch.device(device))
        return cls(made)

    @property
    def fields(self) -> dict[str, str]:
        """A copy of all fields, by name."""
        return dict(self._fields)

    def digest(self) -> str:
        """sha256 of all fields, hexadecimal."""
        return hashlib.sha256(json.dumps(self._fields).encode()).hexdigest()

    def require(self, here: Fingerprint, what: str) -> None:
        """Raise `FingerprintError`, naming each field that differs, unless `here` is the same."""
        if self._fields == here._fields:
            return
        names = sorted({*self._fields, *here._fields})
        differs = [
            f'{name} ({_short(there)} there, {_short(now)} here)'
            for name in names
            if (there := self._fields.get(name)) != (now := here._fields.get(name))
        ]
        raise FingerprintError(
            f'{what} belongs to another deployment: {", ".join(differs)}; '
            'restore it where it was made or take a new snapshot'
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fingerprint) and self._fields == other._fields

    def __hash__(self) -> int:
        return hash(tuple(self._fields.items()))

    def __repr__(self) -> str:
        return f'Fingerprint({self.digest()[:12]}, {", ".join(self._fields)})'


def _short(value: str | None) -> str:
    if value is None:
        return 'missing'
    is_digest = len(value) == 64 and set(value) <= set('0123456789abcdef')
    return value[:12] if is_digest else value


def _value(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Path):
        hasher = hashlib.sha256()
        with value.open('rb') as file:
            while chunk := file.read(1 << 20):
                hasher.update(chunk)
        return hasher.hexdigest()
    if isinstance(value, torch.dtype):
        return str(value)
    if isinstance(value, torch.Tensor):
        return content_digest({name: value})
    if isinstance(value, Mapping) and value:
        kinds = {isinstance(item, torch.Tensor) for item in value.values()}
        if kinds == {True}:
            return content_digest(value)
    try:
        text = json.dumps(value, sort_keys=True)
    except TypeError as error:
        raise FingerprintError(
            f'fingerprint field {name!r} of type {type(value).__name__} has no digest: '
            'give a string, tensors, a path or JSON values'
        ) from error
    return hashlib.sha256(text.encode()).hexdigest()


def content_digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """sha256 over names, dtypes, shapes and bytes of `tensors`, hexadecimal."""
    hasher = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        hasher.update(f'{name}:{tensor.dtype}:{tuple(tensor.shape)};'.encode())
        flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        hasher.update(flat.cpu().numpy().data)
    return hasher.hexdigest()


def _triton_version() -> str:
    try:
        import triton
    except ImportError:
        return 'none'
    return str(triton.__version__)


def _device(device: torch.device) -> str:
    if device.type != 'cuda':
        return device.type
    major, minor = torch.cuda.get_device_capability(device)
    return f'cuda {torch.cuda.get_device_name(device)} sm_{major}{minor}'
