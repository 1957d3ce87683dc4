"""What is installed: three packages, their data and commands, under one version."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from repo_checks.packaging import large_files, setup_faults, version_faults, wheel_faults
from repo_checks.tree import NOT_SOURCE, ROOTS

SETUP = """
from setuptools import setup
VERSION = '0.1.0'
setup(name='a', version=VERSION, packages={packages}, package_dir={{'flashrt_sim': 'sim'}},
      entry_points={{'console_scripts': ['a = flashrt_sim.a:main']}})
"""


def test_one_version(root):
    """package.xml, setup.py, the interfaces and the newest entry of CHANGELOG.md agree."""
    assert version_faults(root) == []


def test_two_versions_are_found(plant):
    """Planted: package.xml is one ahead; the fault names both files."""
    tree = plant(
        {
            'setup.py': "VERSION = '0.1.0'\n",
            'package.xml': '<package><version>0.2.0</version></package>',
            'CHANGELOG.md': '# Changelog\n\n## 0.1.0\n',
        }
    )
    (fault,) = version_faults(tree)
    assert 'setup.py 0.1.0' in fault and 'package.xml 0.2.0' in fault


def test_setup_is_whole(root):
    """Only our three packages, every folder of them, and entry points that lead somewhere."""
    assert setup_faults(root) == []


def test_faults_of_setup_are_found(plant):
    """Planted: a package called sim, a folder without __init__.py, a command without function."""
    packages = "['flashrt_sim', 'sim']"
    tree = plant(
        {
            'setup.py': SETUP.format(packages=packages),
            'sim/__init__.py': '',
            'sim/a.py': 'def other(): pass',
            'sim/deep/b.py': '',
        }
    )
    assert [fault.split(';')[0] for fault in setup_faults(tree)] == [
        "entry point 'a = flashrt_sim.a:main': flashrt_sim.a has no main",
        'setup.py would install sim',
        'sim/deep: not installed',
    ]


def test_installed_files_stay_small(root):
    """Weights come in files under 16 MiB."""
    assert large_files(root) == []


def test_a_large_file_is_found(plant):
    """Planted: a file at the limit."""
    tree = plant({'policies/a.safetensors': 'x' * 2**20, 'flashrt_ros/a.py': '', 'sim/a.py': ''})
    assert large_files(tree, limit_mib=1) and not large_files(tree, limit_mib=2)


def test_every_entry_point_loads():
    """The command and the node executables import and are callable."""
    pytest.importorskip('rclpy', reason='no ROS 2 here')
    scripts = entry_points(group='console_scripts')
    ours = [point for point in scripts if point.value.startswith('flashrt_')]
    assert len(ours) >= 7 and all(callable(point.load()) for point in ours)


@pytest.fixture(scope='module')
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, built from a copy (a build leaves folders behind)."""
    root = Path(__file__).resolve().parents[2]
    copy, out = tmp_path_factory.mktemp('copy') / 'src', tmp_path_factory.mktemp('wheel')
    skip = shutil.ignore_patterns('.*', '*.egg-info', *NOT_SOURCE)
    shutil.copytree(root, copy, ignore=skip, symlinks=True)
    command = [sys.executable, '-m', 'pip', 'wheel', '--quiet', '--no-build-isolation']
    command += ['--no-deps', '--no-index', '--wheel-dir', str(out), str(copy)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    (built,) = out.glob('*.whl')
    return built


def test_the_wheel_holds_everything(root, wheel):
    """Every module, weight, configuration and launch file is in the wheel, and nothing else."""
    assert wheel_faults(zipfile.ZipFile(wheel).namelist(), root) == []


def test_faults_of_a_wheel_are_found(root, wheel):
    """Planted: no weights, no configuration, and a folder called tests."""
    names = zipfile.ZipFile(wheel).namelist()
    assert wheel_faults([*names, 'tests/a.py'], root) == [
        f'tests/ would be installed; only {", ".join(ROOTS)} may be'
    ]
    assert wheel_faults([n for n in names if '/config/' not in n], root)
    assert wheel_faults([n for n in names if not n.endswith('flashrt_sim/__init__.py')], root)


def test_an_installed_wheel_finds_its_files(wheel, tmp_path):
    """Installed elsewhere, the package finds configuration and weights there, in no checkout."""
    prefix = tmp_path / 'elsewhere'
    subprocess.run([sys.executable, '-m', 'venv', '--without-pip', str(prefix)], check=True)
    python = str(prefix / 'bin' / 'python')
    command = [sys.executable, '-m', 'pip', '--python', python, 'install', '--quiet']
    command += ['--no-deps', '--no-index', str(wheel)]
    subprocess.run(command, check=True, capture_output=True)
    probe = (
        'import json, flashrt_policies, flashrt_ros.share as s\n'
        'from pathlib import Path\n'
        'weights = Path(flashrt_policies.__file__).parent / "weights"\n'
        'files = [str(p) for p in (*(s.share() / "config").iterdir(), *weights.rglob("*.*"))]\n'
        'print(json.dumps([str(s.share()), files]))'
    )
    env = {**os.environ, 'PYTHONPATH': '', 'AMENT_PREFIX_PATH': ''}
    command = [python, '-c', probe]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    share, files = json.loads(done.stdout)
    assert share == str(prefix / 'share' / 'flashrt_ros')
    assert any(file.endswith('.yaml') for file in files)
    assert all(Path(file).is_relative_to(prefix) for file in files)
