"""The disk tier: what comes back is exact, and what is not exact does not come back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load

from flashrt_ros.capsule import envelope
from flashrt_ros.capsule.errors import (
    BudgetError,
    FingerprintError,
    StoreError,
)
from flashrt_ros.capsule.registry import Registry
from flashrt_ros.capsule.store import DiskStore
from flashrt_ros.contract.context import Context


def registry(ctx: Context, path: Path, **options: Any) -> Registry:
    """A registry with a disk tier."""
    return Registry(ctx, gpu_bytes=1 << 20, store=DiskStore(path, **options))


def test_a_restarted_process_finds_its_capsules_and_re_enters(
    stored: Any, make_brain: Any
) -> None:
    """Same deployment, new process (here: new buffers): every capsule restores exactly."""
    brain, _, capsules, path = stored
    again = make_brain(Context(str(brain.ctx.device)))
    session = again.session(registry(again.ctx, path))
    found = session.registry.capsules
    assert sorted(c.digest for c in found) == sorted(c.digest for c, _ in capsules)
    latest = session.registry.latest('turn')
    assert latest is not None
    assert latest.position == 2
    by_digest = {c.digest: c for c in found}
    for capsule, expected in capsules:
        session.restore(by_digest[capsule.digest])
        assert again.bytes() == expected
        assert session.snapshot('turn', capsule.position).digest == capsule.digest
    first, second = (by_digest[c.digest] for c, _ in capsules[:2])
    assert second.parent is first
    # Descendants share their ancestors' segments again.
    assert second.texts[0].node.parent is first.texts[0].node


def test_a_lineage_costs_its_segments_once(stored: Any) -> None:
    """Three capsules of one lineage: each file adds what was appended."""
    brain, session, capsules, path = stored
    store = DiskStore(path)
    assert len(store.names('capsule')) == len(store.names('segment')) == 3
    before = store.used()
    session.restore(capsules[-1][0])
    brain.flags.tensor.add_(1)
    session.registry.commit(session.snapshot('turn', 9))
    assert len(store.names('segment')) == 3
    assert store.used() - before < before


def test_demoted_capsules_take_no_memory_and_come_back(stored: Any) -> None:
    """On disk only: the gpu tier has what the live state shares; a restore promotes."""
    brain, session, capsules, _ = stored
    assert session.registry.usage('gpu').used == 112 + 48 + 48  # three positions, one, one
    assert {c.tier for c, _ in capsules} == {'disk'}
    for capsule, expected in capsules:
        session.restore(capsule)
        assert capsule.tier == 'gpu'
        assert brain.bytes() == expected


def test_another_deployment_finds_nothing_and_is_told_why(stored: Any) -> None:
    """The fingerprint's difference is named for every capsule that was not adopted."""
    brain, _, capsules, path = stored
    other = brain.session(registry(brain.ctx, path), weights='w2')
    assert other.registry.capsules == ()
    assert len(other.registry.refused) == 3
    reason = other.registry.refused[capsules[0][0].file]
    assert 'weights (w1 there, w2 here)' in reason
    with pytest.raises(FingerprintError, match='weights'):
        other.registry.open(capsules[0][0].file, capsules[0][0].layout, other.fingerprint)


def test_signed_stores_refuse_what_is_not_signed(brain: Any, tmp_path: Path) -> None:
    """With a key: unsigned and otherwise signed files are refused. Without: signed ones are."""
    path = tmp_path / 'shared'
    session = brain.session(registry(brain.ctx, path, key=b'k1'))
    signed = session.snapshot('s')
    session.registry.commit(signed)
    assert brain.session(registry(brain.ctx, path, key=b'k1')).registry.latest() is not None
    other = brain.session(registry(brain.ctx, path, key=b'k2')).registry
    assert 'signed with another key' in other.refused[signed.digest]
    brain.step()
    session = brain.session(registry(brain.ctx, tmp_path / 'own'))
    unsigned = session.snapshot('u')
    session.registry.commit(unsigned)
    os.rename(tmp_path / 'own' / f'{unsigned.digest}.capsule', path / f'{unsigned.digest}.capsule')
    again = brain.session(registry(brain.ctx, path, key=b'k1')).registry
    assert 'is not signed' in again.refused[unsigned.digest]
    keyless = brain.session(registry(brain.ctx, path)).registry
    assert 'open the store with its key' in keyless.refused[signed.digest]


def test_folders_that_are_not_ones_own_are_refused(tmp_path: Path) -> None:
    """Planted faults: a link, a folder that others may write, a folder of somebody else."""
    real = tmp_path / 'real'
    real.mkdir(mode=0o700)
    (tmp_path / 'link').symlink_to(real)
    with pytest.raises(StoreError, match='a link'):
        DiskStore(tmp_path / 'link')
    real.chmod(0o777)
    with pytest.raises(StoreError, match='chmod 700'):
        DiskStore(real)
    real.chmod(0o700)
    if os.geteuid() == 0:
        os.chown(real, 12345, 12345)
        with pytest.raises(StoreError, match='belongs to user 12345'):
            DiskStore(real)


def test_a_file_of_somebody_else_is_refused(stored: Any) -> None:
    """Planted fault: same bytes, other owner."""
    if os.geteuid() != 0:
        pytest.skip('only root can give files away')
    brain, session, capsules, path = stored
    os.chown(path / f'{capsules[0][0].file}.capsule', 12345, 12345)
    with pytest.raises(StoreError, match='belongs to user 12345'):
        session.restore(capsules[0][0])


@pytest.mark.parametrize('name', ['../../etc/passwd', 'a' * 63, 'A' * 64, '', 'a' * 64 + '/x'])
def test_a_name_that_is_no_digest_is_refused(tmp_path: Path, name: str) -> None:
    """Planted faults; the folder is never left."""
    with pytest.raises(StoreError, match='is no digest'):
        DiskStore(tmp_path / 's').read(name, 'capsule')


def test_files_and_folder_are_private(stored: Any) -> None:
    """0600 and 0700; nothing temporary stays."""
    path = stored[3]
    assert path.stat().st_mode & 0o777 == 0o700
    assert {entry.stat().st_mode & 0o777 for entry in os.scandir(path)} == {0o600}
    assert DiskStore(path).strangers() == []


def test_the_quota_holds_and_nothing_is_written_beyond_it(brain: Any, tmp_path: Path) -> None:
    """Planted fault: a full store. The capsule stays where it is."""
    session = brain.session(registry(brain.ctx, tmp_path / 's', quota=3000))
    capsule = session.snapshot('fits', tier='disk')
    session.registry.settle()
    files = set(os.listdir(tmp_path / 's'))
    brain.step()
    second = session.snapshot('too much')
    with pytest.raises(BudgetError, match='quota 3000'):
        session.registry.demote(second, 'disk', wait=True)
    assert set(os.listdir(tmp_path / 's')) == files
    assert second.tier == 'gpu'
    session.registry.evict(capsule)
    session.registry.demote(second, 'disk')


def test_a_full_memory_goes_on_to_disk(brain: Any, tmp_path: Path) -> None:
    """Without a host tier, the least recently used capsule is demoted to disk."""
    tiers = Registry(brain.ctx, gpu_bytes=192, store=DiskStore(tmp_path / 's'))
    session = brain.session(tiers)
    capsules = []
    for index in range(5):
        brain.cursor.truncate(0)
        brain.flags.tensor.fill_(index)
        capsules.append((session.snapshot('s', index), brain.bytes()))
    assert [c.tier for c, _ in capsules[:2]] == ['disk', 'disk']
    for capsule, expected in capsules:
        session.restore(capsule)
        assert brain.bytes() == expected


def test_evicting_removes_the_file_and_the_segments_nobody_names(stored: Any) -> None:
    """Children keep what they share; memory-only relatives can still be stored afterwards."""
    brain, session, capsules, path = stored
    store = DiskStore(path)
    session.restore(capsules[2][0])
    brain.step()
    child = session.snapshot('child')
    for capsule, _ in capsules:
        session.registry.evict(capsule)
    assert store.names('capsule') == store.names('segment') == []
    expected = brain.bytes()
    session.registry.demote(child, 'disk')
    brain.step()
    session.registry.settle()
    session.restore(child)
    assert brain.bytes() == expected


def test_orphans_are_swept_and_strangers_left_alone(stored: Any) -> None:
    """Planted faults: temporary files and unnamed segments go at start; foreign files stay."""
    path = stored[3]
    name, parts = envelope.pack('segment', {'begin': 0}, {'x': torch.zeros(1)}, None)
    for file in (f'{name}.segment', f'.tmp-1-{name}.segment'):
        (path / file).write_bytes(b''.join(parts))
        (path / file).chmod(0o600)
    (path / 'notes.txt').write_text('mine')
    store = DiskStore(path)
    assert not (path / f'{name}.segment').exists()
    assert not list(path.glob('.tmp-*'))
    assert store.strangers() == ['notes.txt']
    assert len(store.names('segment')) == 3


def test_segments_stay_while_a_capsule_cannot_be_read(stored: Any) -> None:
    """A damaged capsule may be the one that names them: sweeping would make it worse."""
    capsules, path = stored[2], stored[3]
    os.truncate(path / f'{capsules[2][0].file}.capsule', 100)
    assert len(DiskStore(path).names('segment')) == 3


def test_a_pinned_file_is_held_against_other_processes(stored: Any) -> None:
    """A living session's pin keeps `remove` away, whichever process asks."""
    _, session, capsules, path = stored
    capsule, _ = capsules[0]
    capsule.pin(session)
    command = (
        'import sys; from flashrt_ros.capsule.store import DiskStore; '
        'DiskStore(sys.argv[1]).remove(sys.argv[2])'
    )
    arguments = [sys.executable, '-c', command, str(path), capsule.file]
    refused = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert refused.returncode != 0
    assert 'held by a living session' in refused.stderr
    session.close()
    subprocess.run(arguments, check=True)
    assert capsule.file not in DiskStore(path).names('capsule')


def test_headers_are_json_that_anybody_can_read(stored: Any) -> None:
    """No pickle: descriptor and host state are JSON, tensors safetensors."""
    capsules, path = stored[2], stored[3]
    header, payload = DiskStore(path).read(capsules[0][0].file, 'capsule')
    assert json.loads(json.dumps(header)) == header
    assert header['host']['queue']['queue'] == [1, 2, 3]
    assert payload[8:9] == b'{'


@pytest.mark.parametrize('dtype', envelope._DTYPES)
def test_a_file_is_made_of_views_and_read_as_safetensors(dtype: torch.dtype) -> None:
    """Nothing large is copied while it is packed, which would hold up other Python threads."""
    wide = torch.arange(64, dtype=torch.uint8).view(dtype).reshape(2, -1)
    flags = torch.ones(3, dtype=torch.uint8)
    expected = {'flags': flags, 'wide': wide}
    _, parts = envelope.pack('segment', {}, expected, None)
    pointers = [np.frombuffer(part, np.uint8).ctypes.data for part in parts[2:]]
    assert sorted(pointers) == sorted(tensor.data_ptr() for tensor in expected.values())
    found = load(b''.join(parts[1:]))
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert envelope.raw(found[name]) == envelope.raw(tensor)
        assert found[name].shape == tensor.shape


def test_a_dtype_that_no_file_holds_is_refused() -> None:
    """Planted fault: complex numbers of 16 bytes."""
    with pytest.raises(StoreError, match=r"takes no torch.complex128 \('x'\): use F64"):
        envelope.pack('segment', {}, {'x': torch.zeros(1, dtype=torch.complex128)}, None)
