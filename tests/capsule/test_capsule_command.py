"""`flashrt capsule`: what it prints and how it exits, for sound stores and damaged ones."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from flashrt_ros import cli
from flashrt_ros.capsule.registry import Registry
from flashrt_ros.capsule.store import DiskStore
from flashrt_ros.contract.context import Context


@pytest.fixture
def family(make_brain: Any, tmp_path: Path) -> tuple[Any, list[Any], Path]:
    """A store with start -> a -> b and start -> c: (session, capsules, path)."""
    path = tmp_path / 'store'
    brain = make_brain(Context('cpu'))
    session = brain.session(Registry(brain.ctx, 1 << 20, store=DiskStore(path)))
    capsules = [session.snapshot('start', 0, tier='disk')]
    for name in 'ab':
        brain.step()
        capsules.append(session.snapshot(name, 1, tier='disk'))
    session.rollback(capsules[0])
    brain.flags.tensor.add_(1)
    capsules.append(session.snapshot('c', 1, tier='disk'))
    session.registry.settle()
    return session, capsules, path


def flashrt(*words: object) -> int:
    """Run the command."""
    return cli.main(['capsule', *map(str, words)])


def test_list_shows_the_tree(family: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Children below parents; sizes, tier and age beside them."""
    _, capsules, path = family
    assert flashrt('list', '--store', path) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [re.sub(r'^[└├│─ ]*', '', line).split()[1] for line in lines]
    assert names == ['start', 'a', 'b', 'c']
    assert lines[1].startswith('├─ ')
    assert lines[2].startswith('│  ')
    assert lines[3].startswith('└─ ')
    assert all('disk' in line and ' ago' in line for line in lines)
    assert flashrt('list', '--store', path, '--json') == 0
    rows = json.loads(capsys.readouterr().out)['capsules']
    parents = {row['digest']: row['parent'] for row in rows}
    assert parents[capsules[2].digest] == capsules[1].digest
    assert parents[capsules[3].digest] == capsules[0].digest


def test_show_names_fingerprint_entries_and_host_state(
    family: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """A prefix of the digest is enough."""
    _, capsules, path = family
    assert flashrt('show', capsules[1].digest[:10], '--store', path) == 0
    text = capsys.readouterr().out
    for part in (capsules[1].digest, 'a @1', 'weights', 'queue', 'keys', 'torch.bfloat16'):
        assert part in text
    assert flashrt('show', capsules[1].digest, '--store', path, '--json') == 0
    assert json.loads(capsys.readouterr().out)['boundary'] == 'a'


def test_verify_finds_the_damaged_ones(family: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Planted fault: a segment is damaged; whoever names it is reported, exit code 1."""
    _, capsules, path = family
    assert flashrt('verify', '--store', path) == 0
    assert capsys.readouterr().out.count('ok') == 4
    segment = path / f'{capsules[1].texts[0].node.file}.segment'
    data = bytearray(segment.read_bytes())
    data[-1] ^= 1
    segment.write_bytes(data)
    assert flashrt('verify', '--store', path, '--json') == 1
    found = json.loads(capsys.readouterr().out)
    damaged = {name for name, reason in found.items() if reason != 'ok'}
    assert damaged == {capsules[1].digest, capsules[2].digest}
    assert flashrt('verify', capsules[3].digest, '--store', path) == 0


def test_list_reports_what_is_refused(family: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Planted faults: a truncated capsule, a stranger in the folder."""
    _, capsules, path = family
    file = path / f'{capsules[3].digest}.capsule'
    file.write_bytes(file.read_bytes()[:-5])
    (path / 'notes.txt').write_text('x')
    assert flashrt('list', '--store', path) == 1
    text = capsys.readouterr().out
    assert 'refused:' in text
    assert 'truncated' in text
    assert 'notes.txt' in text


def test_rm_refuses_pinned_and_removes_others(
    family: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Planted fault: a living session's pin. Then the same, unpinned."""
    session, capsules, path = family
    capsules[1].pin(session)
    assert flashrt('list', '--store', path) == 0
    assert 'pinned' in capsys.readouterr().out
    assert flashrt('rm', capsules[1].digest, '--store', path) == 2
    assert 'held by a living session' in capsys.readouterr().err
    session.close()
    assert flashrt('rm', capsules[1].digest, capsules[2].digest, '--store', path) == 0
    assert 'removed 2' in capsys.readouterr().out
    assert len(DiskStore(path).names('capsule')) == 2
    assert flashrt('verify', '--store', path) == 0


@pytest.mark.parametrize(
    ('words', 'says'),
    [
        (['list', '--store', '/nowhere'], 'no folder /nowhere'),
        (['show', 'ffff'], "no capsule in .* start with 'ffff'"),
        (['show', ''], '4 capsules in'),
        (['list', '--key-file', '/nowhere'], 'No such file'),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(
    family: Any, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    """Planted faults: no store, an unknown digest, an ambiguous one, no key."""
    store = [] if '--store' in words else ['--store', str(family[2])]
    assert flashrt(*words, *store) == 2
    error = capsys.readouterr().err
    assert re.search(says, error)
    assert error.count('\n') == 1
