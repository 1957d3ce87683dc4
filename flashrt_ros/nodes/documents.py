"""The tables in docs/nodes: topics, services and parameters of each node, from the code itself.

`python -m flashrt_ros.nodes.documents` writes them into the pages, between two marks; a test
compares.
"""

from __future__ import annotations

import importlib
from pathlib import Path

from flashrt_ros.control.episode import table
from flashrt_ros.nodes.interface_table import NODES, OWN, TYPES
from flashrt_ros.nodes.params import Param
from flashrt_ros.share import share

MODULES = {
    'gate': 'gate_node', 'sim': 'sim_node', 'brain': 'brain', 'policy': 'policy_node',
    'planner': 'planner_node', 'supervisor': 'supervisor_node', 'recorder': 'recorder_node',
}  # fmt: skip
BEGIN, END = '<!-- from the code: do not edit -->', '<!-- end -->'


def pages() -> Path:
    """Return the folder of the pages."""
    return share() / 'docs' / 'nodes'


def tables(node: str) -> str:
    """Return the tables of ``node`` as Markdown."""
    it = NODES[node]
    parts = []
    for heading, names in (
        ('Publishes', {**it.publishes, **OWN}),
        ('Reads', it.reads),
        ('Offers', it.offers),
        ('Actions', it.actions),
        ('Calls', it.calls),
    ):
        if names:
            parts += ['', f'### {heading}', '', '| name | type | |', '|---|---|---|']
            parts += [f'| `{n}` | `{TYPES[n]}` | {text} |' for n, text in names.items()]
    params = importlib.import_module(f'flashrt_ros.nodes.{MODULES[node]}').PARAMS
    parts += ['', '### Parameters', '', '| name | default | range | |', '|---|---|---|---|']
    parts += [_row(param) for param in params]
    states = ['', '### States', '', table().rstrip('\n')] if node == 'supervisor' else []
    return '\n'.join([*parts[1:], *states]) + '\n'


def _row(param: Param) -> str:
    default = 'true' if param.default is True else 'false' if param.default is False else None
    default = default or str(param.default or "''" if param.default != 0 else 0)
    span = ', '.join(param.choices)
    if param.low is not None and param.high is not None:
        span = f'{param.low:g} to {param.high:g}'
    return f'| `{param.name}` | `{default}` | {span} | {param.description} |'


def filled(text: str, node: str) -> str:
    """Return a page with its tables as they are now."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f'{before}{BEGIN}\n\n{tables(node)}\n{END}{after}'


def main() -> None:
    """Fill every page."""
    for node in NODES:
        path = pages() / f'{node}.md'
        path.write_text(filled(path.read_text(), node))


if __name__ == '__main__':
    main()
