"""SROS2 policy files from the table of interfaces: each node may do what it does, and no more.

`python -m flashrt_ros.nodes.policies` writes `config/security`; a test compares.
"""

from __future__ import annotations

from xml.sax.saxutils import escape

from flashrt_ros.nodes import names
from flashrt_ros.nodes.interface_table import CAMERA, NODES, OWN, Interface
from flashrt_ros.share import share

HEAD = (
    '<?xml version="1.0" encoding="UTF-8"?>\n'
    '<!-- Written by `python -m flashrt_ros.nodes.policies`; scripts/make_keystore fills in the\n'
    '     enclave and the namespace. -->\n'
)
EXECUTED = {'policy': 'brain'}  # `policy_node` runs under the brain's name, with fewer rights
LIFECYCLE = ('change_state', 'get_state', 'get_available_states', 'get_available_transitions',
             'get_transition_graph')  # fmt: skip
PARAMETERS = ('describe_parameters', 'get_parameter_types', 'get_parameters', 'list_parameters',
              'set_parameters', 'set_parameters_atomically')  # fmt: skip


def policy(node: str) -> str:
    """Return the policy file of ``node``."""
    it = NODES[node]
    own = [f'~/{name}' for name in (*LIFECYCLE, *PARAMETERS)]
    profile = [
        *_block('services', 'reply', 'service', [*it.offers, *own]),
        *_block('services', 'request', 'service', it.calls),
        *_block('topics', 'publish', 'topic', _published(node, it)),
        *_block('topics', 'subscribe', 'topic', [*it.reads, '/parameter_events']),
        *_block('actions', 'execute', 'action', it.actions),
    ]
    name = EXECUTED.get(node, node)
    body = '\n'.join(f'          {line}' for line in profile)
    return (
        f'{HEAD}<policy version="0.2.0">\n  <enclaves>\n    <enclave path="@ENCLAVE@">\n'
        f'      <profiles>\n        <profile ns="@NAMESPACE@" node="{name}">\n{body}\n'
        '        </profile>\n      </profiles>\n    </enclave>\n  </enclaves>\n</policy>\n'
    )


def _published(node: str, it: Interface) -> list[str]:
    topics = [*it.publishes, *OWN, '/rosout', '/parameter_events', '~/transition_event']
    if node in ('gate', 'brain', 'policy'):
        topics += ['~/commands', '~/joint_trajectory']
    return topics


def _block(kind: str, right: str, tag: str, given: object) -> list[str]:
    found = [_name(name) for name in given]  # type: ignore[attr-defined]
    if not found:
        return []
    lines = [f'  <{tag}>{escape(name)}</{tag}>' for name in sorted(found)]
    return [f'<{kind} {right}="ALLOW">', *lines, f'</{kind}>']


def _name(name: str) -> str:
    """Return a name as policy files have it; a camera stands for all."""
    return name.replace(CAMERA, names.IMAGE.format(camera='*'))


def main() -> None:
    """Write every file."""
    folder = share() / 'config' / 'security'
    folder.mkdir(exist_ok=True)
    for node in NODES:
        (folder / f'{node}.xml').write_text(policy(node))


if __name__ == '__main__':
    main()
