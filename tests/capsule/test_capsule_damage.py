"""Damaged, forged and misplaced files: refused with the reason, live buffers unchanged."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from flashrt_ros.capsule import envelope
from flashrt_ros.capsule.errors import StoreError
from flashrt_ros.capsule.registry import Registry
from flashrt_ros.capsule.store import DiskStore
from flashrt_ros.contract.context import Context


def registry(ctx: Context, path: Path, **options: Any) -> Registry:
    """A registry with a disk tier."""
    return Registry(ctx, gpu_bytes=1 << 20, store=DiskStore(path, **options))


def flip(path: Path, where: float) -> None:
    """Change one bit of a file."""
    data = bytearray(path.read_bytes())
    data[min(int(len(data) * where), len(data) - 1)] ^= 1
    path.write_bytes(data)


def splice(path: Path) -> None:
    """The front of one file, the end of another."""
    other = next(p for p in path.parent.glob(f'*{path.suffix}') if p != path)
    data, rest = path.read_bytes(), other.read_bytes()
    path.write_bytes(data[: len(data) // 2] + rest[len(rest) // 2 :])


def swap(path: Path) -> None:
    """A sound file under another's name."""
    other = next(p for p in path.parent.glob(f'*{path.suffix}') if p != path)
    path.write_bytes(other.read_bytes())


def link(path: Path) -> None:
    """A symbolic link to the file's content."""
    moved = path.parent.parent / 'elsewhere'
    path.rename(moved)
    path.symlink_to(moved)


def long_header(path: Path) -> None:
    """Lengths that do not add up."""
    data = bytearray(path.read_bytes())
    data[16:24] = struct.pack('<Q', 1 << 60)
    path.write_bytes(data)


FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    'flipped front': (lambda path: flip(path, 0.0), 'no capsule file of this version'),
    'flipped digest': (lambda path: flip(path, 40 / path.stat().st_size), 'altered'),
    'flipped mac': (lambda path: flip(path, 135 / path.stat().st_size), 'is signed'),
    'flipped header': (lambda path: flip(path, 170 / path.stat().st_size), 'altered'),
    'flipped payload': (lambda path: flip(path, 1.0), 'altered'),
    'truncated': (lambda path: os.truncate(path, path.stat().st_size - 1), 'truncated'),
    'cut to nothing': (lambda path: os.truncate(path, 3), 'truncated'),
    'longer': (lambda path: path.write_bytes(path.read_bytes() + b'x'), 'spliced'),
    'spliced': (splice, 'altered|spliced|truncated'),
    'other lengths': (long_header, 'truncated or spliced'),
    'swapped': (swap, 'not the digest of its content'),
    'symbolic link': (link, 'is a link'),
    'hard link': (lambda path: os.link(path, path.parent.parent / 'x'), 'linked from elsewhere'),
    'open to others': (lambda path: path.chmod(0o644), 'chmod 600'),
    'gone': (lambda path: path.unlink(), 'cannot be read'),
}


@pytest.mark.parametrize('kind', ['capsule', 'segment'])
@pytest.mark.parametrize('fault', list(FAULTS))
def test_a_damaged_file_is_refused_and_nothing_live_changes(
    stored: Any, fault: str, kind: str
) -> None:
    """Planted faults: the reason and the file are named; live bytes stay."""
    brain, session, capsules, path = stored
    capsule, _ = capsules[0]
    name = capsule.file if kind == 'capsule' else capsule.texts[0].node.file
    damage, reason = FAULTS[fault]
    damage(path / f'{name}.{kind}')
    then = brain.bytes()
    for live in session.registry.lives:
        live.let_go()
    with pytest.raises(StoreError, match=rf'(?s){name}\.{kind}.*({reason})'):
        session.restore(capsule)
    assert brain.bytes() == then
    with pytest.raises(StoreError, match=reason):
        DiskStore(path).read(name, kind)


def test_a_file_that_only_parses_elsewhere_is_refused(stored: Any) -> None:
    """Planted fault: a sound envelope whose tensors are not the closure's."""
    brain, session, capsules, path = stored
    capsule, _ = capsules[0]
    file = path / f'{capsule.file}.capsule'
    header, _ = DiskStore(path).read(capsule.file, 'capsule')
    then = brain.bytes()
    for tensors, says in (
        ({'state': torch.zeros(8)}, "holds \\['state'\\]"),
        (
            {
                'state': torch.zeros(9),
                'count': torch.zeros(1, dtype=torch.int64),
                'flags': torch.zeros(3, dtype=torch.uint8),
            },
            "'state' as torch.float32 \\(9,\\)",
        ),
    ):
        file.write_bytes(b''.join(envelope.pack('capsule', header, tensors, None)[1]))
        with pytest.raises(StoreError, match=says):
            session.restore(capsule)
    assert brain.bytes() == then


@pytest.mark.parametrize(
    'change',
    [
        {'ropes': [[]]},
        {'ropes': []},
        {'lengths': [99]},
        {'ropes': [[['f' * 64, 1, 2, 2]]]},
        {'ropes': [[['f' * 64, 0, 2, 3]]]},
        {'ropes': [[['f' * 64, 0, 'x', 2]]]},
        {'host': {'queue': {'__flashrt__': 'array', 'dtype': 'O', 'shape': [], 'base64': ''}}},
        {'host': {'queue': {'__flashrt__': 'what'}}},
        {'position': 'x'},
        {'schema': {}},
        {'fingerprint': []},
    ],
)
def test_a_header_that_makes_no_sense_is_refused(stored: Any, change: dict[str, Any]) -> None:
    """Planted faults behind a sound digest: structure is checked as well."""
    brain, _, capsules, path = stored
    name = capsules[0][0].file
    header, _ = DiskStore(path).read(name, 'capsule')
    parts = envelope.pack('capsule', {**header, **change}, {}, None)[1]
    (path / f'{name}.capsule').write_bytes(b''.join(parts))
    fresh = brain.session(registry(brain.ctx, path))
    assert name in fresh.registry.refused
    assert len(fresh.registry.capsules) == 2


def test_a_store_is_listed_by_headers_alone(stored: Any) -> None:
    """Damage behind the header is found when the bytes are asked for, and not before."""
    brain, _, capsules, path = stored
    name = capsules[0][0].file
    flip(path / f'{name}.capsule', 1.0)
    store = DiskStore(path)
    assert store.header(name, 'capsule')['digest'] == name
    fresh = brain.session(registry(brain.ctx, path))
    assert not fresh.registry.refused
    found = {capsule.file: capsule for capsule in fresh.registry.capsules}
    then = brain.bytes()
    for refuse in (
        lambda: fresh.restore(found[name]),
        lambda: store.read(name, 'capsule'),
        lambda: store.verify(name),
    ):
        with pytest.raises(StoreError, match='altered'):
            refuse()
    assert brain.bytes() == then


def test_a_header_that_is_no_json_is_refused(stored: Any) -> None:
    """Planted fault behind sound digests."""
    brain, _, capsules, path = stored
    name = capsules[0][0].file
    for text in (b'[]', b'{', b'[' * 100_000):
        front = envelope._FRONT.pack(
            envelope._MAGIC, b'capsule', len(text), 0,
            envelope._sha256(text), envelope._sha256(b''),
        )  # fmt: skip
        data = front + envelope._sha256(front) + bytes(32) + text
        (path / f'{name}.capsule').write_bytes(data)
        with pytest.raises(StoreError, match='has no header'):
            DiskStore(path).header(name, 'capsule')
