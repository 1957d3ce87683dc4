"""What scripts/bootstrap.py does its steps with: commands, hashes, and looking at the system."""

import ctypes
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / '.venv'
CACHE = ROOT / '.cache'
LOG = CACHE / 'setup.log'

# What pip and apt print when no server answered.
UNREACHABLE = (
    'Failed to establish a new connection',
    'Temporary failure in name resolution',
    'Temporary failure resolving',
    'Network is unreachable',
    'Could not resolve',
    'Name or service not known',
    'Connection refused',
    'No matching distribution found',
)


class SetupError(Exception):
    """A step failed; the message is one line that says what would be right."""


def say(text: str) -> None:
    """Print one line of progress."""
    print(f'[setup] {text}', flush=True)


def run(*command: object, env: Mapping[str, str] | None = None, check: bool = True) -> int:
    """Run a command with its output in the log; return its exit code.

    Raises:
        SetupError: It failed and ``check`` is set; the message holds the last telling line.
    """
    words = [str(word) for word in command]
    with LOG.open('a', encoding='utf-8') as log:
        print('$', *words, file=log, flush=True)
        start = log.tell()
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, 'PYTHONNOUSERSITE': '1', **(env or {})},
            cwd=ROOT,
        )
    if check and done.returncode != 0:
        with LOG.open(encoding='utf-8', errors='replace') as log:
            log.seek(start)
            raise SetupError(explain(words, log.read()))
    return done.returncode


def explain(words: list[str], output: str) -> str:
    """Return one line for a failed command: what went wrong, and what would be right."""
    if 'No space left' in output or shutil.disk_usage(ROOT).free < 64 * 2**20:
        return f'the disk that holds {ROOT} is full; free some space and run it again'
    if any(sign in output for sign in UNREACHABLE):
        tool = Path(words[0]).name if 'pip' not in words else 'pip'
        return (
            f'{tool} reached no package index; connect this machine, or point {tool} at a mirror '
            f'(details: {LOG.relative_to(ROOT)})'
        )
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    telling = [line for line in lines if line.lower().startswith(('error', 'e:', 'fatal'))]
    last = (telling or lines or ['it printed nothing'])[-1][:200]
    name = ' '.join(Path(word).name for word in words[:4])
    return f'`{name}` failed: {last} (details: {LOG.relative_to(ROOT)})'


def pip(*arguments: object, env: Mapping[str, str] | None = None) -> None:
    """Run the environment's pip."""
    quiet = ['--disable-pip-version-check', '--no-input', '--retries', '2']
    # The environment's own cmake and ninja are found on PATH.
    path = f'{VENV / "bin"}{os.pathsep}{os.environ.get("PATH", "")}'
    settings = {'PATH': path, 'VIRTUAL_ENV': str(VENV), **(env or {})}
    command = arguments[0]
    run(VENV / 'bin' / 'python', '-m', 'pip', command, *quiet, *arguments[1:], env=settings)


def digest(*paths: Path, extra: str = '') -> str:
    """Return the hash of the names and contents of files and folders, and of ``extra``."""
    total = hashlib.sha256(f'{sys.version_info[:2]} {extra}'.encode())
    for path in paths:
        files = [path] if path.is_file() else sorted(p for p in path.rglob('*') if p.is_file())
        for file in files:
            if '__pycache__' not in file.parts:
                total.update(f'\0{file.relative_to(ROOT)}\0'.encode())
                total.update(file.read_bytes())
    return total.hexdigest()


def system_numpy() -> str | None:
    """Return the version of the numpy that the sourced ROS uses, if there is one."""
    probe = 'import numpy; print(numpy.__version__)'
    done = subprocess.run([sys.executable, '-c', probe], capture_output=True, text=True)
    return done.stdout.strip() or None


def missing_system_packages() -> list[str]:
    """Return the names (Debian's) of the system packages that are not there."""
    missing = []
    version = f'{sys.version_info.major}.{sys.version_info.minor}'
    if not importlib.util.find_spec('ensurepip'):
        missing.append(f'python{version}-venv')
    if not (Path(sysconfig.get_paths()['include']) / 'Python.h').exists():
        missing.append(f'libpython{version}-dev')
    if not shutil.which('c++'):
        missing.append('g++')
    # Headless rendering: EGL, OpenGL, and Mesa's software driver behind them.
    for library, package in (('libEGL.so.1', 'libegl1'), ('libOpenGL.so.0', 'libopengl0')):
        if not loads(library):
            missing.append(package)
    if not loads('libEGL_mesa.so.0') and not loads('libEGL_nvidia.so.0'):
        missing += ['libegl-mesa0', 'libgl1-mesa-dri']
    return missing


def loads(library: str) -> bool:
    """Return whether the dynamic loader finds a library."""
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
