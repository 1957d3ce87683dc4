"""Which way imports may run: contract <- capsule <- (control | policies) <- sim <- nodes, cli."""

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from repo_checks.tree import called, modules, parse

LAYERS = ('ground', 'contract', 'capsule', 'control', 'policies', 'sim', 'nodes', 'cli')
# Layer -> the layers it may import besides itself. The ground (errors, share) imports nothing.
ARROWS = {
    'ground': set(),
    'contract': {'ground'},
    'capsule': {'ground', 'contract'},
    'control': {'ground', 'contract', 'capsule'},
    'policies': {'ground', 'contract', 'capsule'},
    'sim': {'ground', 'contract', 'capsule', 'control', 'policies'},
    'nodes': {'ground', 'contract', 'capsule', 'control', 'policies', 'sim'},
    'cli': set(LAYERS),
}
# Layer -> what it may import besides the standard library, where that is limited.
THIRD_PARTY = {'ground': set(), 'contract': {'torch', 'numpy'}}
KNOW_ROS = {'nodes', 'cli'}
ROS = {'rclpy', 'rosidl_runtime_py', 'ament_index_python', 'launch', 'launch_ros', 'tf2_ros'}
# Processes that must start without torch.
NO_TORCH = ('flashrt_ros.nodes.gate_node', 'flashrt_ros.nodes.supervisor_node')


def layer(module: str) -> str:
    """Return the layer a module of ours stands in."""
    parts = module.split('.')
    if parts[0] in ('flashrt_policies', 'flashrt_sim'):
        return parts[0].removeprefix('flashrt_')
    if parts[1:2] in (['commands'], ['bench'], ['__main__']):
        return 'cli'
    return parts[1] if len(parts) > 1 and parts[1] in LAYERS else 'ground'


def ours(name: str) -> bool:
    """Return whether a name is of one of our three packages."""
    return name.split('.')[0] in ('flashrt_ros', 'flashrt_policies', 'flashrt_sim')


def knows_ros(name: str) -> bool:
    """Return whether a module is part of ROS 2: the client library or a message package."""
    top = name.split('.')[0]
    return top in ROS or top.endswith(('_msgs', '_srvs', '_interfaces'))


def imported(module: str, path: Path, typing: bool = True) -> Iterator[tuple[str, int]]:
    """Yield (absolute name, line) of every import of a file, also those inside functions.

    Args:
        module: Import name of the file.
        path: The file.
        typing: Also those under ``if TYPE_CHECKING``, which never run.
    """
    package = module.split('.') if path.name == '__init__.py' else module.split('.')[:-1]
    skipped = set()
    for node in ast.walk(parse(path)):
        if not typing and isinstance(node, ast.If) and 'TYPE_CHECKING' in ast.dump(node.test):
            skipped.update(id(inner) for part in node.body for inner in ast.walk(part))
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            up = package[: len(package) - node.level + 1] if node.level else []
            base = '.'.join([*up, *([node.module] if node.module else [])])
            # `from package import module` names a module; `from module import thing` does not.
            yield from ((f'{base}.{alias.name}', node.lineno) for alias in node.names)
        elif isinstance(node, ast.Call) and called(node).endswith(('import_module', '__import__')):
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield first.value, node.lineno


def direction(root: Path) -> list[str]:
    """Return every import that runs against the arrows or reaches past what its layer may know."""
    faults = []
    for module, path in modules(root).items():
        here = layer(module)
        for name, line in imported(module, path):
            top, where = name.split('.')[0], f'{path.relative_to(root)}:{line}'
            if top in ('policies', 'sim', 'tests'):
                faults.append(f'{where}: {top} is a folder; import flashrt_{top}')
            elif ours(name):
                there = layer(name)
                if there != here and there not in ARROWS[here]:
                    faults.append(f'{where}: {here} must not import {there} ({name})')
            elif top in sys.stdlib_module_names:
                continue
            elif here in THIRD_PARTY and top not in THIRD_PARTY[here]:
                faults.append(f'{where}: {here} must not import {top}')
            elif knows_ros(name) and here not in KNOW_ROS:
                faults.append(f'{where}: only nodes and the command line know ROS, not {here}')
    return faults


def reach(root: Path, start: str) -> Mapping[str, list[str]]:
    """Return what a module loads, directly or through ours: name -> the chain that leads there."""
    known = modules(root)
    chains: dict[str, list[str]] = {}
    todo = [(start, [start])]
    while todo:
        name, chain = todo.pop()
        parts = name.split('.')
        # Importing a.b.c runs a/__init__ and a.b/__init__ too; a.b.thing may be no module at all.
        for end in range(1, len(parts) + 1):
            prefix = '.'.join(parts[:end])
            if prefix in chains:
                continue
            chains[prefix] = chain
            if prefix in known:
                todo += [
                    (target, [*chain, target])
                    for target, _ in imported(prefix, known[prefix], typing=False)
                ]
    return chains


def torch_free(root: Path, starts: tuple[str, ...] = NO_TORCH) -> list[str]:
    """Return how a process that must start without torch would come to load it."""
    faults = []
    for start in starts:
        if start not in modules(root):
            faults.append(f'{start}: no such module')
        elif 'torch' in (reached := reach(root, start)):
            faults.append(f'{start} reaches torch: {" -> ".join(reached["torch"])}')
    return faults
