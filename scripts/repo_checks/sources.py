"""What no source file may hold: code run from data, overlong files, paths of one machine."""

import ast
import re
from pathlib import Path

from repo_checks.tree import called, files, keyword, modules, parse

MAX_LINES = 350
# Reading any of these runs code that the file holds.
RUNS_CODE = {'pickle', 'cPickle', '_pickle', 'cloudpickle', 'dill', 'joblib', 'marshal', 'shelve'}
TEXT = ('.py', '.md', '.yaml', '.yml', '.toml', '.cfg', '.xml', '.txt', '.sh', '.json', '.cmake')
# Put together from parts, so that this file does not hold what it looks for.
MACHINE = re.compile(
    '|'.join('(?<![\\w.])/' + part for part in ('home/', 'root/', 'Users/', 'work/'))
)


def unsafe_call(node: ast.Call) -> str | None:
    """Return why a call may run code that comes as data; None if it may not."""
    name = called(node)
    if name in ('eval', 'exec', 'builtins.eval', 'builtins.exec'):
        return f'{name}() runs text as code'
    if name == 'torch.load' and keyword(node, 'weights_only') is not True:
        return 'torch.load without weights_only=True unpickles; use safetensors'
    if name.endswith('.load') and keyword(node, 'allow_pickle') is True:
        return f'{name} with allow_pickle=True unpickles'
    if name in ('yaml.load', 'yaml.unsafe_load', 'yaml.full_load'):
        return f'{name} makes objects; use yaml.safe_load'
    return None


def code_from_data(root: Path) -> list[str]:
    """Return every place in what is installed, or in scripts, that runs code from data."""
    faults = []
    scripts = root / 'scripts'
    paths = [*modules(root).values(), *(files(scripts, '.py') if scripts.is_dir() else ())]
    for path in paths:
        for node in ast.walk(parse(path)):
            why = None
            if isinstance(node, ast.Import):
                bad = [a.name for a in node.names if a.name.split('.')[0] in RUNS_CODE]
                why = f'imports {bad[0]}' if bad else None
            elif isinstance(node, ast.ImportFrom):
                bad_from = (node.module or '').split('.')[0] in RUNS_CODE
                why = f'imports {node.module}' if bad_from else None
            elif isinstance(node, ast.Call):
                why = unsafe_call(node)
            if why:
                faults.append(f'{path.relative_to(root)}:{getattr(node, "lineno", 0)}: {why}')
    return faults


def long_files(root: Path) -> list[str]:
    """Return the Python files with more than MAX_LINES lines."""
    faults = []
    for path in files(root, '.py'):
        size = len(path.read_text('utf-8').splitlines())
        if size > MAX_LINES:
            faults.append(f'{path.relative_to(root)}: {size} lines, at most {MAX_LINES}')
    return faults


def machine_paths(root: Path) -> list[str]:
    """Return every mention of a path that exists on one machine only."""
    faults = []
    for path in files(root, *TEXT):
        for number, line in enumerate(path.read_text('utf-8').splitlines(), 1):
            if MACHINE.search(line):
                faults.append(
                    f'{path.relative_to(root)}:{number}: path of one machine: {line[:80]}'
                )
    return faults
