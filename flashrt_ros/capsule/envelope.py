"""The envelope of every file on disk: digests over header and payload, checked before parsing.

    magic 8 | kind 8 | header length 8 | payload length 8 | sha256 of the header 32
    | sha256 of the payload 32 | sha256 of all before 32 | hmac of that 32 | header | payload

The front alone commits to everything, so that a header can be checked and read without its
payload. The hmac is zero when the store has no key. The header is JSON, the payload safetensors.
Integers are little-endian. A file is made in parts that are views of the tensors: copies of
hundreds of MiB would hold up every other Python thread, those that replay included.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from safetensors.torch import load

from flashrt_ros.capsule.errors import StoreError

_MAGIC = b'FLASHRT\x02'
_FRONT = struct.Struct('<8s8sQQ32s32s')
SIZE = _FRONT.size + 64  # bytes before the header
_UNSIGNED = bytes(32)
_DTYPES = {
    torch.float64: 'F64', torch.float32: 'F32', torch.float16: 'F16', torch.bfloat16: 'BF16',
    torch.float8_e4m3fn: 'F8_E4M3', torch.float8_e5m2: 'F8_E5M2', torch.complex64: 'C64',
    torch.int64: 'I64', torch.int32: 'I32', torch.int16: 'I16', torch.int8: 'I8',
    torch.uint64: 'U64', torch.uint32: 'U32', torch.uint16: 'U16', torch.uint8: 'U8',
    torch.bool: 'BOOL',
}  # fmt: skip
Parts = Sequence[bytes | memoryview]  # of bytes; one after the other they are the file


class Front(NamedTuple):
    """What a checked front says: the file's digest, and sizes and digests of its parts."""

    digest: str
    header_size: int
    payload_size: int
    header_digest: bytes
    payload_digest: bytes


def pack(
    kind: str, header: dict[str, Any], tensors: dict[str, torch.Tensor], key: bytes | None
) -> tuple[str, Parts]:
    """The digest (hexadecimal) of a file, and its parts.

    Args:
        kind: 'capsule' or 'segment'.
        header: in terms of JSON.
        tensors: in host memory; they must not change while the parts are in use.
        key: signs the digest when given.
    """
    text = json.dumps(header, sort_keys=True).encode()
    payload = _payload(tensors)
    front = _FRONT.pack(
        _MAGIC, kind.encode(), len(text), size(payload), _sha256(text), _sha256(*payload)
    )
    digest = _sha256(front)
    return digest.hex(), [front + digest + _sign(digest, key) + text, *payload]


def size(parts: Parts) -> int:
    """Bytes of all parts."""
    return sum(map(len, parts))


def raw(tensor: torch.Tensor) -> memoryview:
    """The bytes of a tensor in host memory in the order of its indices; a view if it can be."""
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data


def _payload(tensors: Mapping[str, torch.Tensor]) -> Parts:
    """Safetensors, wide elements first, so that all are aligned."""
    ordered = sorted(tensors.items(), key=lambda item: -item[1].itemsize)
    rows, at = {}, 0
    for name, tensor in ordered:
        end = at + tensor.nbytes
        dtype, shape = _DTYPES.get(tensor.dtype), list(tensor.shape)
        if dtype is None:
            raise StoreError(
                f'takes no {tensor.dtype} ({name!r}): use {", ".join(_DTYPES.values())}'
            )
        rows[name] = {'dtype': dtype, 'shape': shape, 'data_offsets': [at, end]}
        at = end
    text = json.dumps(rows).encode()
    text += b' ' * (-len(text) % 8)
    return [len(text).to_bytes(8, 'little') + text, *(raw(tensor) for _, tensor in ordered)]


def open_front(data: bytes, size: int, kind: str, key: bytes | None) -> Front:
    """The front of a file, after every check that needs no more than that.

    Args:
        data: the first `SIZE` bytes, or less where the file ends.
        size: of the whole file.
        kind: 'capsule' or 'segment'.
        key: of the store, None when it has none.

    Raises:
        StoreError: truncated, longer than it says, of another kind or version, altered, or not
            signed with `key`.
    """
    if len(data) < SIZE:
        raise StoreError(f'is truncated: {len(data)} bytes are no envelope; remove it')
    front = data[: _FRONT.size]
    magic, found, header_size, payload_size, *digests = _FRONT.unpack(front)
    if magic != _MAGIC:
        raise StoreError('is no capsule file of this version; remove it')
    if found.rstrip(b'\0') != kind.encode():
        raise StoreError(f'is of kind {found!r}, not {kind!r}: it was put under a wrong name')
    if size != SIZE + header_size + payload_size:
        expected = SIZE + header_size + payload_size
        raise StoreError(f'has {size} bytes instead of {expected}: truncated or spliced')
    digest, mac = data[_FRONT.size : SIZE - 32], data[SIZE - 32 : SIZE]
    _require(digest, front)
    if not hmac.compare_digest(mac, _sign(digest, key)):
        if key is None:
            raise StoreError('is signed: open the store with its key')
        reason = 'is not signed' if mac == _UNSIGNED else 'is signed with another key'
        raise StoreError(f'{reason}: this store accepts only files signed with its key')
    return Front(digest.hex(), header_size, payload_size, *digests)


def open_header(front: Front, text: bytes) -> dict[str, Any]:
    """The header, after comparing its bytes with what the front says.

    Raises:
        StoreError: altered.
    """
    _require(front.header_digest, text)
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise StoreError('has no header; remove it')
    return header


def check_payload(front: Front, payload: bytes) -> None:
    """Raise `StoreError` unless these are the bytes that the front speaks of."""
    _require(front.payload_digest, payload)


def tensors(payload: bytes, expected: dict[str, tuple[torch.dtype, tuple[int, ...]]]) -> Any:
    """The payload's tensors by name, after comparing them with what the live closure expects.

    Raises:
        StoreError: a name, dtype or shape differs; names it.
    """
    found: dict[str, torch.Tensor] = load(payload)
    if found.keys() != expected.keys():
        raise StoreError(f'holds {sorted(found)}, the closure has {sorted(expected)}')
    for name, (dtype, shape) in expected.items():
        tensor = found[name]
        if tensor.dtype != dtype or tuple(tensor.shape) != shape:
            raise StoreError(
                f'holds {name!r} as {tensor.dtype} {tuple(tensor.shape)}, '
                f'the closure has {dtype} {shape}'
            )
    return found


def _sha256(*parts: bytes | memoryview) -> bytes:
    hasher = hashlib.sha256()
    for part in parts:
        hasher.update(part)
    return hasher.digest()


def _require(digest: bytes, data: bytes) -> None:
    if not hmac.compare_digest(digest, _sha256(data)):
        raise StoreError('was altered: its digest does not match its content; remove it')


def _sign(digest: bytes, key: bytes | None) -> bytes:
    return _UNSIGNED if key is None else hmac.new(key, digest, hashlib.sha256).digest()
