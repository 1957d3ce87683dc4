"""The files of a repository, and the names its modules are imported by."""

import ast
from collections.abc import Iterator
from pathlib import Path

# Import name -> folder, as setup.py maps them.
ROOTS = {'flashrt_ros': 'flashrt_ros', 'flashrt_policies': 'policies', 'flashrt_sim': 'sim'}
NOT_SOURCE = {'build', 'install', 'log', 'runs', 'dist', '__pycache__'}


def files(root: Path, *suffixes: str) -> Iterator[Path]:
    """Yield the files below ``root`` with one of ``suffixes``; builds and dot folders left out."""
    for path in sorted(root.iterdir()):
        if path.is_dir() and path.name not in NOT_SOURCE:
            if not path.name.startswith('.') and not path.name.endswith('.egg-info'):
                yield from files(path, *suffixes)
        elif path.is_file() and path.suffix in suffixes:
            yield path


def modules(root: Path) -> dict[str, Path]:
    """Return import name -> file of every module that is installed."""
    found = {}
    for name, folder in ROOTS.items():
        if not (root / folder).is_dir():
            continue
        for path in files(root / folder, '.py'):
            parts = [name, *path.relative_to(root / folder).with_suffix('').parts]
            if parts[-1] == '__init__':
                parts.pop()
            found['.'.join(parts)] = path
    return found


def parse(path: Path) -> ast.Module:
    """Return the syntax tree of a Python file."""
    return ast.parse(path.read_text('utf-8'), str(path))


def called(node: ast.Call) -> str:
    """Return the dotted name of what a call calls, such as ``torch.load``; else an empty text."""
    parts, target = [], node.func
    while isinstance(target, ast.Attribute):
        parts.append(target.attr)
        target = target.value
    if not isinstance(target, ast.Name):
        return ''
    return '.'.join([target.id, *reversed(parts)])


def keyword(node: ast.Call, name: str) -> object:
    """Return the literal value of a keyword argument of a call; None if it has none."""
    for argument in node.keywords:
        if argument.arg == name and isinstance(argument.value, ast.Constant):
            return argument.value.value
    return None
