"""What no source file may hold, and what ruff is told to find."""

import subprocess
import sys

import pytest
from repo_checks.sources import MAX_LINES, code_from_data, long_files, machine_paths

RUNS_CODE = (
    'import pickle',
    'from pickle import loads',
    'import shelve',
    'import marshal',
    'import joblib',
    'eval("1")',
    'exec("a = 1")',
    'import torch\ntorch.load("a.pt")',
    'import torch\ntorch.load("a.pt", weights_only=False)',
    'import numpy as np\nnp.load("a.npy", allow_pickle=True)',
    'import yaml\nyaml.load("a: 1")',
)
HARMLESS = (
    'import torch\ntorch.load("a.pt", weights_only=True)\nmodel.eval()\nre.compile("a")\n'
    'yaml.safe_load("a")\nnp.load("a.npy")\ntext = "pickle"\n'
)


def test_nothing_runs_code_that_comes_as_data(root):
    """No pickle in any form, no eval, no exec, no unsafe load in what ships."""
    assert code_from_data(root) == []


@pytest.mark.parametrize('source', RUNS_CODE)
def test_code_from_data_is_found(plant, source):
    """Planted: each way to run code from data is one fault."""
    assert len(code_from_data(plant({'policies/a.py': source}))) == 1


def test_harmless_calls_are_not_faults(plant):
    """Look-alikes (a network's eval, a safe load, a string) are left alone."""
    assert code_from_data(plant({'sim/a.py': HARMLESS})) == []


def test_files_stay_short(root):
    """No Python file is longer than a person reads in one go."""
    assert long_files(root) == []


def test_a_long_file_is_found(plant):
    """Planted: one line too many is a fault; the last allowed length is none."""
    tree = plant({'a.py': 'x = 1\n' * MAX_LINES, 'b/c.py': 'x = 1\n' * (MAX_LINES + 1)})
    assert [fault.split(':')[0] for fault in long_files(tree)] == ['b/c.py']


def test_no_path_of_one_machine(root):
    """No text mentions a folder that exists on one machine only."""
    assert machine_paths(root) == []


def test_a_path_of_one_machine_is_found(plant):
    """Planted: somebody's home folder in a document and in a configuration file."""
    home = '/ho' + 'me/'
    texts = {'README.md': f'see {home}ada/x', 'config/a.yaml': f"path: '{home}b'"}
    tree = plant({**texts, 'docs/sound.md': f'relative{home}b'})
    assert len(machine_paths(tree)) == 2


@pytest.mark.parametrize(
    ('source', 'rule'),
    [
        ('"""A."""\n\nimport os\n', 'F401'),
        ('def f() -> None:\n    return None\n', 'D100'),
        (f'"""A."""\n\nx = {"1 + " * 40}1\n', 'E501'),
    ],
)
def test_ruff_is_on(root, plant, source, rule):
    """Planted: an unused import, no docstring, a long line are found with our configuration."""
    tree = plant({'flashrt_ros/planted.py': source})
    command = [sys.executable, '-m', 'ruff', 'check', '--no-cache', '--output-format', 'concise']
    command += ['--config', str(root / 'pyproject.toml'), str(tree)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert rule in done.stdout, done.stdout + done.stderr


def test_double_quotes_are_found(root, plant):
    """Planted: the formatter would change double quotes, so its check fails."""
    tree = plant({'planted.py': '"""A."""\n\nx = "a"\n'})
    command = [sys.executable, '-m', 'ruff', 'format', '--check', '--no-cache']
    command += ['--config', str(root / 'pyproject.toml'), str(tree)]
    assert subprocess.run(command, capture_output=True).returncode == 1


def test_mypy_is_on(root, plant):
    """Planted: a function without types and a wrong return are found with our configuration."""
    tree = plant({'planted.py': 'def f(x):\n    return x\n\n\ndef g() -> int:\n    return "a"\n'})
    command = [sys.executable, '-m', 'mypy', '--cache-dir', str(tree / 'cache')]
    command += ['--config-file', str(root / 'pyproject.toml'), str(tree / 'planted.py')]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tree)
    assert '[no-untyped-def]' in done.stdout and '[return-value]' in done.stdout, done.stdout
