"""`make setup` says in one line what is wrong and what would be right, and repeats no work."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import setup_steps


def test_the_digest_sees_content_names_and_nothing_else(plant, monkeypatch):
    """Planted: a changed byte and a renamed file change the digest; time and caches do not."""
    tree = plant({'interfaces/msg/A.msg': 'int64 a', 'interfaces/__pycache__/x': 'x'})
    monkeypatch.setattr(setup_steps, 'ROOT', tree)
    folder, file = tree / 'interfaces', tree / 'interfaces' / 'msg' / 'A.msg'
    first = setup_steps.digest(folder)
    os.utime(file, (0, 0))
    (folder / '__pycache__' / 'x').write_text('y')
    assert setup_steps.digest(folder) == first
    assert setup_steps.digest(folder, extra='jazzy') != first
    file.write_text('int64 b')
    changed = setup_steps.digest(folder)
    file.rename(file.with_name('B.msg'))
    assert len({first, changed, setup_steps.digest(folder)}) == 3


@pytest.mark.parametrize(
    ('output', 'expected'),
    [
        ('x\nERROR: [Errno 28] No space left on device\n', 'free some space'),
        ('WARNING: ... Network is unreachable\nERROR: none\n', 'connect this machine'),
        ('Collecting a\nERROR: bad wheel\nnote: see above\n', 'failed: ERROR: bad wheel'),
        ('', 'it printed nothing'),
    ],
)
def test_a_failed_command_becomes_one_line(output, expected):
    """Full disk, no network, anything else, silence: one line that says what would be right."""
    line = setup_steps.explain(['python', '-m', 'pip', 'install'], output)
    assert expected in line and '\n' not in line


def bootstrap(root: Path, tmp_path: Path, version: str) -> subprocess.CompletedProcess[str]:
    """Run scripts/bootstrap with nothing but a python3 of some version on PATH."""
    answer = f'case $1 in -c) exit 1;; *) echo Python {version};; esac'
    (tmp_path / 'python3').write_text(f'#!/bin/sh\n{answer}\n')
    (tmp_path / 'python3').chmod(0o755)
    for tool in ('bash', 'dirname', 'env'):
        (tmp_path / tool).symlink_to(f'/usr/bin/{tool}')
    command = [str(root / 'scripts' / 'bootstrap')]
    env = {'PATH': str(tmp_path)}
    return subprocess.run(command, capture_output=True, text=True, env=env)


def test_an_old_python_is_refused_in_one_line(root, tmp_path):
    """The only Python is 3.9: exit code 1, and one line with what is needed and what there is."""
    done = bootstrap(root, tmp_path, '3.9.2')
    assert done.returncode == 1
    assert done.stderr.count('\n') == 1
    assert 'needs Python 3.11, 3.12 or 3.13, found Python 3.9.2' in done.stderr


def test_missing_system_packages_are_named_as_debian_names_them(monkeypatch):
    """Planted: no compiler, no headers, no libraries; each is named as apt-get wants it."""
    monkeypatch.setattr(setup_steps.shutil, 'which', lambda name: None)
    monkeypatch.setattr(setup_steps, 'loads', lambda name: False)
    monkeypatch.setattr(setup_steps.sysconfig, 'get_paths', lambda: {'include': '/none'})
    version = f'{sys.version_info.major}.{sys.version_info.minor}'
    expected = {f'libpython{version}-dev', 'g++', 'libegl1', 'libegl-mesa0', 'libgl1-mesa-dri'}
    assert expected <= set(setup_steps.missing_system_packages())
