"""A small typed byte format: plain values in, one checked array of bytes out, and back.

Every value starts with a one-byte tag, so the bytes describe themselves; nothing is ever
executed to read them. `seal` adds a magic number, the length and a digest, so that bytes which
were cut, mixed up or touched are refused before anything is looked at.
"""

from __future__ import annotations

import functools
import hashlib
import struct
import sys
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flashrt_ros.errors import FlashrtError

MAGIC = b'FRSTATE1'
_DIGEST = 16
_HEADER = struct.Struct(f'<8s{_DIGEST}sQ')
_SIZE = struct.Struct('<I')
_LITTLE = sys.byteorder == 'little'
_PLAIN_KINDS = 'biuf'  # bool, integers, floats: the only array types that may travel
_GENERATOR, _QUEUE = 'generator', 'deque'  # keys under which `plain` puts what these hold


class StateError(FlashrtError, ValueError):
    """Bytes that are no state, or the state of something else; the message is one line."""


def pack(value: Any) -> bytes:
    """Encode None, bool, int, float, str, bytes, numpy values, lists, tuples and dicts.

    Raises:
        StateError: for a value of any other type.
    """
    out = bytearray()
    _write(out, value)
    return bytes(out)


def unpack(data: bytes) -> Any:
    """Decode what `pack` wrote; arrays come back as fresh, writable copies.

    Raises:
        StateError: if the bytes end early, go on too long or hold an unknown tag.
    """
    try:
        value, end = _read(data, 0)
    except (struct.error, IndexError, UnicodeDecodeError, TypeError, ValueError) as error:
        raise StateError(f'state bytes are damaged: {error}') from None
    if end != len(data):
        raise StateError(f'state bytes are damaged: {len(data) - end} bytes left over')
    return value


def seal(value: Any) -> NDArray[np.uint8]:
    """Pack `value` behind a header (magic, digest, length); uint8 [n]."""
    body = pack(value)
    digest = hashlib.blake2b(body, digest_size=_DIGEST).digest()
    return np.frombuffer(_HEADER.pack(MAGIC, digest, len(body)) + body, np.uint8).copy()


def unseal(data: NDArray[np.uint8] | bytes) -> Any:
    """Check header, length and digest of what `seal` made, then unpack it.

    Raises:
        StateError: naming the first thing that is wrong.
    """
    raw = data.tobytes() if isinstance(data, np.ndarray) else bytes(data)
    if len(raw) < _HEADER.size:
        raise StateError(f'state has {len(raw)} bytes; a state has at least {_HEADER.size}')
    magic, digest, length = _HEADER.unpack_from(raw)
    if magic != MAGIC:
        raise StateError(f'state starts with {magic!r}; expected {MAGIC!r}')
    body = raw[_HEADER.size :]
    if len(body) != length:
        raise StateError(f'state body has {len(body)} bytes; its header says {length}')
    if hashlib.blake2b(body, digest_size=_DIGEST).digest() != digest:
        raise StateError('state bytes do not match their digest; take the snapshot again')
    return unpack(body)


def _write(out: bytearray, value: Any) -> None:
    writer = _WRITERS.get(type(value))
    if writer is None:  # a type derived from one of them, or one that cannot be saved
        writer = next((w for kind, w in _WRITERS.items() if isinstance(value, kind)), None)
    if writer is None:
        raise StateError(f'a {type(value).__name__} cannot be saved; use numbers, text or arrays')
    writer(out, value)


def _write_none(out: bytearray, value: None) -> None:
    out += b'N'


def _write_bool(out: bytearray, value: bool) -> None:
    out += b'T' if value else b'F'


def _write_int(out: bytearray, value: int) -> None:
    raw = value.to_bytes(value.bit_length() // 8 + 1, 'little', signed=True)
    out += b'i' + struct.pack('<H', len(raw)) + raw


def _write_float(out: bytearray, value: float) -> None:
    out += b'f' + struct.pack('<d', value)


def _write_text(out: bytearray, value: str) -> None:
    raw = value.encode()
    out += b's' + _SIZE.pack(len(raw)) + raw


def _write_bytes(out: bytearray, value: bytes) -> None:
    out += b'b' + _SIZE.pack(len(value)) + value


def _write_items(out: bytearray, value: list[Any] | tuple[Any, ...]) -> None:
    out += (b'l' if isinstance(value, list) else b't') + _SIZE.pack(len(value))
    for item in value:
        _write(out, item)


def _write_dict(out: bytearray, value: dict[str, Any]) -> None:
    out += b'd' + _SIZE.pack(len(value))
    for key, item in value.items():
        if not isinstance(key, str):
            raise StateError(f'dict key {key!r} cannot be saved; keys must be strings')
        _write_text(out, key)
        _write(out, item)


def _write_array(out: bytearray, value: np.ndarray | np.generic) -> None:
    dtype = value.dtype
    if dtype.kind not in _PLAIN_KINDS:
        raise StateError(f'an array of {dtype} cannot be saved; use numbers or bools')
    # A numpy scalar keeps its type: 'g' comes back as np.float64, not as an array of no shape.
    out += b'g' if isinstance(value, np.generic) else b'a'
    out += _array_head(dtype, value.shape)
    if dtype.isnative and _LITTLE:
        out += value.tobytes()
    else:
        out += value.astype(dtype.newbyteorder('<')).tobytes()


# In the order in which a derived type is tried: numpy's float64 is a float, a bool is an int.
_WRITERS: dict[type, Callable[[bytearray, Any], None]] = {
    np.ndarray: _write_array,
    np.generic: _write_array,
    type(None): _write_none,
    bool: _write_bool,
    int: _write_int,
    float: _write_float,
    str: _write_text,
    bytes: _write_bytes,
    list: _write_items,
    tuple: _write_items,
    dict: _write_dict,
}


@functools.lru_cache(512)
def _array_head(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Type and shape of an array, as they stand before its bytes."""
    name = dtype.newbyteorder('<').str.encode()
    return (
        struct.pack('<BB', len(name), len(shape)) + name + struct.pack(f'<{len(shape)}I', *shape)
    )


def _read(data: bytes, at: int) -> tuple[Any, int]:
    tag, at = data[at : at + 1], at + 1
    if tag in (b'N', b'T', b'F'):
        return {b'N': None, b'T': True, b'F': False}[tag], at
    if tag == b'f':
        return struct.unpack_from('<d', data, at)[0], at + 8
    if tag == b'i':
        (size,) = struct.unpack_from('<H', data, at)
        raw, at = _take(data, at + 2, size)
        return int.from_bytes(raw, 'little', signed=True), at
    if tag in (b'a', b'g'):
        return _read_array(data, at, scalar=tag == b'g')
    if tag in (b's', b'b', b'l', b't', b'd'):
        (size,) = struct.unpack_from('<I', data, at)
        return _read_sized(data, at + 4, tag, size)
    raise StateError(f'state bytes are damaged: unknown tag {tag!r}')


def _read_sized(data: bytes, at: int, tag: bytes, size: int) -> tuple[Any, int]:
    if tag in (b's', b'b'):
        raw, at = _take(data, at, size)
        return (raw.decode() if tag == b's' else raw), at
    items = []
    for _ in range(size * (2 if tag == b'd' else 1)):
        item, at = _read(data, at)
        items.append(item)
    if tag == b'd':
        return dict(zip(items[::2], items[1::2], strict=True)), at
    return (items if tag == b'l' else tuple(items)), at


def _read_array(data: bytes, at: int, *, scalar: bool) -> tuple[Any, int]:
    name_size, ndim = struct.unpack_from('<BB', data, at)
    name, at = _take(data, at + 2, name_size)
    dtype = np.dtype(name.decode())
    if dtype.kind not in _PLAIN_KINDS:
        raise StateError(f'state bytes are damaged: array type {dtype} is not allowed')
    shape = struct.unpack_from(f'<{ndim}I', data, at)
    raw, at = _take(data, at + 4 * ndim, int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)
    array = np.frombuffer(raw, dtype).reshape(shape).copy()
    return (array[()] if scalar else array), at


def _take(data: bytes, at: int, size: int) -> tuple[bytes, int]:
    if at + size > len(data):
        raise StateError(f'state bytes are damaged: {size} bytes wanted, {len(data) - at} left')
    return data[at : at + size], at + size


def plain(value: Any) -> Any:
    """A deep copy of `value` that `pack` takes: of generators and queues, what they hold."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, np.random.Generator):
        return {_GENERATOR: value.bit_generator.state}
    if isinstance(value, deque):
        return {_QUEUE: [plain(item) for item in value], 'maxlen': value.maxlen}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, tuple):
        return tuple(plain(item) for item in value)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


def fresh(value: Any) -> Any:
    """What `plain` was given, made anew: one saved value can be put back many times."""
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, list):
        return [fresh(item) for item in value]
    if isinstance(value, tuple):
        return tuple(fresh(item) for item in value)
    if isinstance(value, dict):
        if value.keys() == {_GENERATOR}:
            generator = np.random.Generator(np.random.PCG64(0))
            generator.bit_generator.state = value[_GENERATOR]
            return generator
        if value.keys() == {_QUEUE, 'maxlen'}:
            return deque(map(fresh, value[_QUEUE]), value['maxlen'])
        return {key: fresh(item) for key, item in value.items()}
    return value


def generator_state(value: Any) -> dict[str, Any] | None:
    """The state inside `value` where it stands for a random generator, else None."""
    return value[_GENERATOR] if isinstance(value, dict) and value.keys() == {_GENERATOR} else None


def renew(attributes: dict[str, Any], name: str, value: dict[str, Any]) -> None:
    """Put a saved random generator into `attributes`; into the one that stands there, if any."""
    held = attributes.get(name)
    if isinstance(held, np.random.Generator) and type(held.bit_generator) is np.random.PCG64:
        held.bit_generator.state = value[_GENERATOR]
    else:
        attributes[name] = fresh(value)
