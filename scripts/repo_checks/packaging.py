"""What gets installed: the packages, their data, their commands, and one version everywhere."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from repo_checks.tree import ROOTS, files, modules, parse

# Runs setup.py with a setup() that prints its arguments instead of building anything.
PROBE = """
import json, runpy, setuptools
setuptools.setup = lambda **given: print(json.dumps(given))
runpy.run_path('setup.py', run_name='__main__')
"""


def setup_arguments(root: Path) -> dict[str, Any]:
    """Return what ``setup.py`` gives to ``setup()``."""
    command = [sys.executable, '-c', PROBE]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    arguments: dict[str, Any] = json.loads(done.stdout)
    return arguments


def versions(root: Path) -> dict[str, str]:
    """Return file -> the version of the project that it states; missing files are left out."""
    patterns = {
        'CHANGELOG.md': r'^## \[?(\d+\.\d+\.\d+)',
        'setup.py': r"^VERSION = '([^']+)'",
        'interfaces/pyproject.toml': r"^version = '([^']+)'",
    }
    found = {}
    for name, pattern in patterns.items():
        if (root / name).is_file():
            match = re.search(pattern, (root / name).read_text('utf-8'), re.MULTILINE)
            found[name] = match.group(1) if match else 'none'
    for name in ('package.xml', 'interfaces/package.xml'):
        if (root / name).is_file():
            found[name] = ElementTree.parse(root / name).findtext('version', 'none')
    return found


def version_faults(root: Path) -> list[str]:
    """Return a fault when the stated versions differ."""
    found = versions(root)
    if len(set(found.values())) == 1:
        return []
    return ['versions differ: ' + ', '.join(f'{name} {v}' for name, v in found.items())]


def defines(path: Path, name: str) -> bool:
    """Return whether a module has a name at its top level."""
    names: set[str] = set()
    for node in parse(path).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return name in names


def setup_faults(root: Path) -> list[str]:
    """Return what is wrong with the packages, their data and their entry points."""
    given, known, faults = setup_arguments(root), modules(root), []
    installed = set(given['packages'])
    for name in sorted({package.split('.')[0] for package in installed} - set(ROOTS)):
        faults.append(f'setup.py would install {name}; only {", ".join(ROOTS)} may be')
    for module, path in known.items():
        package = module if path.name == '__init__.py' else module.rpartition('.')[0]
        if package not in installed:
            folder = path.parent.relative_to(root)
            faults.append(f'{folder}: not installed; add an __init__.py')
    for line in [entry for group in given['entry_points'].values() for entry in group]:
        module, _, name = line.partition('=')[2].strip().partition(':')
        if module not in known:
            faults.append(f'entry point {line!r}: no module {module}')
        elif name and not defines(known[module], name):
            faults.append(f'entry point {line!r}: {module} has no {name}')
    return sorted(set(faults))


def wheel_faults(names: list[str], root: Path) -> list[str]:
    """Return what a wheel lacks, or holds too much.

    Args:
        names: The files in the wheel.
        root: The repository that it was built from.
    """
    faults, there = [], set(names)
    allowed = tuple(f'{name}/' for name in ROOTS)
    for name in sorted({n.split('/')[0] for n in names}):
        if not name.endswith(('.dist-info', '.data')) and f'{name}/' not in allowed:
            faults.append(f'{name}/ would be installed; only {", ".join(ROOTS)} may be')
    for package, folder in ROOTS.items():
        if (root / folder).is_dir():
            for path in files(root / folder, '.py', '.json', '.safetensors'):
                name = f'{package}/{path.relative_to(root / folder).as_posix()}'
                if name not in there:
                    faults.append(f'{path.relative_to(root)} is not in the wheel')
    for folder, suffix in (('config', '.yaml'), ('config', '.xml'), ('launch', '.py')):
        for path in files(root / folder, suffix) if (root / folder).is_dir() else ():
            place = path.relative_to(root).as_posix()
            if not any(n.endswith(f'/share/flashrt_ros/{place}') for n in names):
                faults.append(f'{place} is not in the wheel')
    return faults


def large_files(root: Path, limit_mib: int = 16) -> list[str]:
    """Return the installed files that are larger than a file here may be."""
    faults = []
    for folder in ROOTS.values():
        for path in files(root / folder, '.safetensors', '.json', '.npz', '.png'):
            if path.stat().st_size >= limit_mib * 2**20:
                faults.append(f'{path.relative_to(root)}: {limit_mib} MiB or more; split it')
    return faults
