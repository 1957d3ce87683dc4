"""The envelope of every file on disk: a digest over header and payload, checked before parsing.

    magic 8 | kind 8 | header length 8 | payload length 8 | sha256 32 | hmac 32 | header | payload

The sha256 covers magic, kind, lengths, header and payload; the hmac covers the sha256 and is zero
when the store has no key. The header is JSON, the payload safetensors. Integers are little-endian.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
from typing import Any

import torch
from safetensors.torch import load, save

from flashrt_ros.capsule.errors import StoreError

_MAGIC = b'FLASHRT\x01'
_FRONT = struct.Struct('<8s8sQQ')
_SIZE = _FRONT.size + 64  # bytes before the header
_UNSIGNED = bytes(32)


def pack(
    kind: str, header: dict[str, Any], tensors: dict[str, torch.Tensor], key: bytes | None
) -> tuple[str, bytes]:
    """The digest (hexadecimal) and the bytes of a file.

    Args:
        kind: 'capsule' or 'segment'.
        header: in terms of JSON.
        tensors: in host memory, contiguous.
        key: signs the digest when given.
    """
    text = json.dumps(header, sort_keys=True).encode()
    payload = save(tensors)
    front = _FRONT.pack(_MAGIC, kind.encode(), len(text), len(payload))
    digest = _digest(front, text, payload)
    return digest.hex(), b''.join((front, digest, _sign(digest, key), text, payload))


def unpack(data: bytes, kind: str, key: bytes | None) -> tuple[str, dict[str, Any], bytes]:
    """Digest, header and payload of a file, after every check; nothing is parsed before.

    Raises:
        StoreError: truncated, longer than it says, of another kind or version, altered, or not
            signed with `key`.
    """
    if len(data) < _SIZE:
        raise StoreError(f'is truncated: {len(data)} bytes are no envelope; remove it')
    front = data[: _FRONT.size]
    magic, found, header_size, payload_size = _FRONT.unpack(front)
    if magic != _MAGIC:
        raise StoreError('is no capsule file of this version; remove it')
    if found.rstrip(b'\0') != kind.encode():
        raise StoreError(f'is of kind {found!r}, not {kind!r}: it was put under a wrong name')
    if len(data) != _SIZE + header_size + payload_size:
        expected = _SIZE + header_size + payload_size
        raise StoreError(f'has {len(data)} bytes instead of {expected}: truncated or spliced')
    digest, mac = data[_FRONT.size : _SIZE - 32], data[_SIZE - 32 : _SIZE]
    text, payload = data[_SIZE : _SIZE + header_size], data[_SIZE + header_size :]
    if not hmac.compare_digest(digest, _digest(front, text, payload)):
        raise StoreError('was altered: its digest does not match its content; remove it')
    if key is not None and not hmac.compare_digest(mac, _sign(digest, key)):
        reason = 'is not signed' if mac == _UNSIGNED else 'is signed with another key'
        raise StoreError(f'{reason}: this store accepts only files signed with its key')
    header = json.loads(text)
    if not isinstance(header, dict):
        raise StoreError('has no header; remove it')
    return digest.hex(), header, payload


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


def _digest(front: bytes, text: bytes, payload: bytes) -> bytes:
    hasher = hashlib.sha256(front)
    hasher.update(text)
    hasher.update(payload)
    return hasher.digest()


def _sign(digest: bytes, key: bytes | None) -> bytes:
    return _UNSIGNED if key is None else hmac.new(key, digest, hashlib.sha256).digest()
