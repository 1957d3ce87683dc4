"""Host-side state: plain values and arrays, copied deeply and written without pickle."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np

from flashrt_ros.capsule.errors import HostStateError

# None, bool, int, float, str, bytes, numpy arrays, and lists and string-keyed dicts of these.
Value = Any
_PLAIN = frozenset({type(None), bool, int, float, str, bytes})
_TEXT = frozenset({str})
_TAG = '__flashrt__'  # marks the values that JSON has no word for


def copy(value: Value, where: str) -> Value:
    """A deep copy of `value`.

    Args:
        value: None, bool, int, float, str, bytes, an array of numbers, or lists and dicts.
        where: the path named in errors.

    Raises:
        HostStateError: something else is inside.
    """
    try:
        return _copy(value)
    except _Strange:
        path, kind = _find_strange(value, where)
        raise HostStateError(
            f'host state {path} holds a {kind}: use None, bool, int, float, str, '
            'bytes, number arrays, and lists and string-keyed dicts of these'
        ) from None


def again(value: Value) -> Value:
    """Another deep copy of what `copy` made."""
    return _copy(value)


class _Strange(Exception):
    """Something that no capsule can hold; where it is, is looked up afterwards."""


def _copy(value: Value) -> Value:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is list:
        if _PLAIN.issuperset(map(type, value)):
            return value.copy()
        return [_copy(item) for item in value]
    if kind is dict and _TAG not in value:
        made = {}
        for key, item in value.items():
            if type(key) is not str:
                raise _Strange
            made[key] = item if type(item) in _PLAIN else _copy(item)
        return made
    if isinstance(value, np.ndarray) and value.dtype.kind in 'biuf':
        return value.copy()
    if isinstance(value, np.generic):
        return value.item()
    raise _Strange


def _find_strange(value: Value, path: str) -> tuple[str, str]:
    """Path and type of the first value that cannot be copied."""
    inside: list[tuple[str, Value]] = []
    if type(value) is list:
        inside = [(f'{path}[{index}]', item) for index, item in enumerate(value)]
    elif type(value) is dict and _TEXT.issuperset(map(type, value)) and _TAG not in value:
        inside = [(f'{path}/{key}', item) for key, item in value.items()]
    for deeper, item in inside:
        try:
            _copy(item)
        except _Strange:
            return _find_strange(item, deeper)
    return path, type(value).__name__


def encode(value: Value) -> Value:
    """`value` in terms of JSON; the inverse of `decode`."""
    if isinstance(value, float):
        return {_TAG: 'float', 'hex': value.hex()}  # exact, and says inf and nan
    if isinstance(value, bytes):
        return {_TAG: 'bytes', 'base64': base64.b64encode(value).decode()}
    if isinstance(value, np.ndarray):
        data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        return {_TAG: 'array', 'dtype': value.dtype.str, 'shape': value.shape, 'base64': data}
    if isinstance(value, list):
        return [encode(item) for item in value]
    if isinstance(value, dict):
        return {key: encode(item) for key, item in value.items()}
    return value


def decode(value: Value) -> Value:
    """The value that `encode` wrote.

    Raises:
        HostStateError: it was not written by `encode`.
    """
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    if _TAG not in value:
        return {key: decode(item) for key, item in value.items()}
    try:
        if value[_TAG] == 'float':
            return float.fromhex(value['hex'])
        data = base64.b64decode(value['base64'], validate=True)
        if value[_TAG] == 'bytes':
            return data
        dtype = np.dtype(value['dtype'])
        if dtype.kind not in 'biuf':
            raise ValueError(f'dtype {dtype}')
        return np.frombuffer(data, dtype).reshape(value['shape']).copy()
    except (KeyError, TypeError, ValueError) as error:
        raise HostStateError(
            f'host state is not readable: {error}; take a new snapshot'
        ) from error


def canonical(value: Value) -> bytes:
    """One byte string per value, for digests."""
    return json.dumps(encode(value), sort_keys=True, separators=(',', ':')).encode()
